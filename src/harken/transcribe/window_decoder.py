"""Hear windows: encode them, settle their language, and decode those of one length together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from harken.contract import Backend, Features, Floats
from harken.decoding import (
    DecodeStats,
    DecodingResult,
    DraftContext,
    LogitRules,
    Observer,
    SpeculativeDecoder,
    Step,
    Window,
    decode,
    language_probabilities,
    make_logit_rules,
)
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe.callbacks import Callbacks
from harken.transcribe.options import TranscribeOptions
from harken.types import FRAMES_PER_SECOND

FallbackResult = tuple[DecodingResult, tuple[Attempt, ...]]
"""What was kept of a window, and all rungs that were tried for it, the one that was kept last."""


def decode_with_fallback(
    backend: Backend,
    features: Features,
    windows: Sequence[Window],
    *,
    tokenizer: Tokenizer,
    rules: LogitRules,
    options: TranscribeOptions,
    observe: Observer,
    attention: bool = False,
    draft_context: DraftContext | None = None,
) -> tuple[list[FallbackResult], DecodeStats]:
    """Go down the ladder of strategies; where every rung fails, keep the most probable of the least repetitive.

    Each window goes down by itself: those that pass a rung wait for no other. What one rung has said is a draft for the
    next. Each rung has random numbers of its own,
    so that a result depends neither on the rungs before it nor on what else is decoded.

    Returns
    -------
    kept : list of Kept
        One a window; only the attempt that was kept has no reason for a rejection.
    stats : DecodeStats

    Notes
    -----
    Source: openai/whisper, transcribe.py, decode_with_fallback, which keeps the last rung where all fail: a sample at
    temperature 1. Keeping the best is faster-whisper's rule (transcribe.py, generate_with_fallback).
    """
    attempts: list[list[tuple[DecodingResult, str | None]]] = [[] for _ in windows]
    failing, total = list(range(len(windows))), DecodeStats()
    for attempt_index, strategy in enumerate(options.strategies()):
        results, stats = decode(
            backend,
            features,
            [_window_for_attempt(windows[i], attempt_index, attempts[i]) for i in failing],
            tokenizer=tokenizer,
            logit_rules=rules,
            strategy=strategy,
            observe=observe,
            attention=attention,
            draft_context=draft_context,
        )
        total += stats
        for i, decoded in zip(failing, results, strict=True):
            attempts[i].append((decoded, options.rejection_reason(decoded)))
        failing = [i for i in failing if attempts[i][-1][1] is not None]
        if not failing:
            break
    return [_select_attempt(window_attempts, options) for window_attempts in attempts], total


def _window_for_attempt(
    window: Window, attempt_index: int, attempts: list[tuple[DecodingResult, str | None]]
) -> Window:
    """A window as it goes into a rung: with random numbers of its own, and what was said last as a draft."""
    previous = attempts[-1][0].hypothesis.tokens if attempts else window.draft_tokens
    return replace(window, seed=(*window.seed, attempt_index), draft_tokens=previous)


def _select_attempt(
    attempts: list[tuple[DecodingResult, str | None]], options: TranscribeOptions
) -> FallbackResult:
    """The last attempt if it passed, else the best of the failures."""
    best = attempts[-1]
    if best[1] is not None:
        best = max(attempts, key=lambda rejected: _failure_rank(rejected[0], options))
    others = [_to_attempt(decoded, reason) for decoded, reason in attempts if decoded is not best[0]]
    return best[0], (*others, _to_attempt(best[0], None))


def _failure_rank(decoded: DecodingResult, options: TranscribeOptions) -> tuple[bool, float]:
    """By which failures are ranked; those with the same text are equal, however a batch has rounded them."""
    limit = options.compression_ratio_threshold
    return limit is None or decoded.compression_ratio <= limit, round(decoded.hypothesis.avg_logprob, 4)


def _to_attempt(decoded: DecodingResult, reason: str | None) -> Attempt:
    return Attempt(
        temperature=decoded.temperature,
        avg_logprob=decoded.hypothesis.avg_logprob,
        compression_ratio=decoded.compression_ratio,
        no_speech_prob=decoded.no_speech_prob,
        reason=reason,
    )


LanguageProbabilities = dict[str, float]
"""Of languages by their codes, most probable first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """One window that waits to be decoded.

    Parameters
    ----------
    mel : ndarray of shape (1, n_mels, window_frames), float32
        The whole window.
    heard : int
        How many of its frames are tried first; a result that fails a threshold or says that nothing was spoken is
        not relied on where that is less than all of it.
    seek : int
        Frame of the recording where the window begins.
    opens : bool
        Whether it is the first of its recording.
    language : callable
        Answers with the language to decode in; may ask for the probabilities in this window.
    prompt : callable
        Makes the prompt for a language.
    account : callable
        Told what decoding has cost.
    hooks : Hooks
    previous : tuple of int
        What has been sampled of it before, as a draft.
    """

    mel: Floats
    frames_to_encode: int
    seek: int
    is_first: bool
    resolve_language: Callable[[Callable[[], LanguageProbabilities]], str]
    build_prompt: Callable[[str], tuple[int, ...]]
    add_stats: Callable[[DecodeStats], None]
    callbacks: Callbacks
    draft_tokens: tuple[int, ...] = ()

    @property
    def start_s(self) -> float:
        """Where the window begins in the recording."""
        return self.seek / FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """What came of a window: the result that was kept, all that was tried, and which features it comes from."""

    decoded: DecodingResult
    attempts: tuple[Attempt, ...]
    language: str
    features: Features
    audio_index: int


@dataclass(slots=True)
class WindowDecoder:
    """A model and the options that it works with.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    options : TranscribeOptions
    speculator : Speculator or None
        Drafts what is decoded.
    clock : callable
        Seconds, for the account of what encoding and decoding take.

    Attributes
    ----------
    exact : bool
        Whether windows are the reference's, frame by frame.
    stats : DecodeStats
        What all that was heard has cost.
    """

    backend: Backend
    tokenizer: Tokenizer
    options: TranscribeOptions
    speculator: SpeculativeDecoder | None = None
    clock: Callable[[], float] = float
    exact: bool = field(init=False)
    stats: DecodeStats = field(init=False, default_factory=DecodeStats)
    _rules: LogitRules = field(init=False)
    _first_window_rules: LogitRules = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        self.exact = options.is_exact(self.backend.capabilities.precision)
        make_window_rules = partial(
            make_logit_rules,
            self.tokenizer,
            timestamps=options.timestamps,
            suppress_tokens=options.suppress_tokens,
            suppress_blank=options.suppress_blank,
            max_initial_timestamp_s=options.max_initial_timestamp_s,
            suppress_regex=options.suppress_regex,
            hotwords=options.hotwords,
        )
        self._rules = make_window_rules()
        prefix_tokens = self.encode_text(options.prefix)
        self._first_window_rules = (
            make_window_rules(forced_prefix=prefix_tokens) if prefix_tokens else self._rules
        )

    def encode_text(self, text: str | None) -> list[int]:
        """Tokens of a text as it stands behind other text; none of no text."""
        return self.tokenizer.encode(" " + text.strip()) if text else []

    def detect_languages(self, mel: Floats) -> list[LanguageProbabilities]:
        """Probability of each allowed language in each window."""
        return self._language_probabilities(self.backend.encode(mel))

    def decode(self, requests: Sequence[DecodeRequest]) -> list[WindowResult]:
        """Decode windows, one outcome each; what they say does not depend on which are decoded together."""
        results = self._decode_frames(requests, [job.frames_to_encode for job in requests])
        rejection_reasons = {
            i: reason
            for i, (job, outcome) in enumerate(zip(requests, results, strict=True))
            if job.frames_to_encode < job.mel.shape[-1]
            and (reason := self._rejection_of_partial(outcome.decoded))
        }
        retries = [
            replace(requests[i], draft_tokens=results[i].decoded.hypothesis.tokens) for i in rejection_reasons
        ]
        for i, result in zip(
            rejection_reasons, self._decode_frames(retries, [job.mel.shape[-1] for job in retries]), strict=True
        ):
            reason = f"{rejection_reasons[i]}, in the part of the window that was heard"
            rejected = replace(results[i].attempts[0], reason=reason)
            results[i] = replace(result, attempts=(rejected, *result.attempts))
        for request, result in zip(requests, results, strict=True):
            request.callbacks.on_window_end(request.start_s, result.decoded, result.attempts)
        return results

    def _decode_frames(
        self, requests: Sequence[DecodeRequest], frame_counts: Sequence[int]
    ) -> list[WindowResult]:
        """Decode so many frames of each window, together those that are alike in it."""
        group_keys = [(size, request.is_first) for request, size in zip(requests, frame_counts, strict=True)]
        group_indices = {
            kind: [i for i, its in enumerate(group_keys) if its == kind] for kind in dict.fromkeys(group_keys)
        }
        groups = {
            kind: _EncodedGroup(self, np.concatenate([requests[i].mel[:, :, : kind[0]] for i in its]))
            for kind, its in group_indices.items()
        }
        # In the order of the windows, whatever their lengths: what is known of a recording's language grows with them.
        languages = [
            job.resolve_language(partial(groups[kind].language_probabilities, group_indices[kind].index(i)))
            for i, (job, kind) in enumerate(zip(requests, group_keys, strict=True))
        ]
        results: dict[int, WindowResult] = {}
        for key, indices in group_indices.items():
            group_results = self._decode_group(
                groups[key], [requests[i] for i in indices], [languages[i] for i in indices], *key
            )
            results.update(zip(indices, group_results, strict=True))
        return [results[i] for i in range(len(requests))]

    def _decode_group(
        self,
        group: _EncodedGroup,
        requests: Sequence[DecodeRequest],
        languages: Sequence[str],
        n_frames: int,
        is_first: bool,
    ) -> list[WindowResult]:
        options = self.options
        if any(n_frames < job.mel.shape[-1] for job in requests):
            options = replace(options, temperatures=options.temperatures[:1])
        windows = []
        for audio_index, (request, language) in enumerate(zip(requests, languages, strict=True)):
            prompt = request.build_prompt(language)
            request.callbacks.on_window_start(request.start_s, prompt)
            seed = (options.seed, request.seek)
            windows.append(
                Window(window_index=audio_index, prompt=prompt, seed=seed, draft_tokens=request.draft_tokens)
            )
        unique_callbacks = list(dict.fromkeys(job.callbacks for job in requests))

        def handle_step(step: Step) -> None:
            for callbacks in unique_callbacks:
                callbacks.handle_step(step)

        began = self.clock()
        decoded_windows, stats = decode_with_fallback(
            self.backend,
            group.features,
            windows,
            tokenizer=self.tokenizer,
            rules=self._first_window_rules if is_first else self._rules,
            options=options,
            observe=handle_step,
            attention=options.word_timestamps or options.hallucination_threshold is not None,
            draft_context=group.draft_context,
        )
        stats += DecodeStats(encode_s=group.encode_s, decode_s=self.clock() - began)
        self.stats += stats
        for add_stats in dict.fromkeys(job.add_stats for job in requests):
            add_stats(stats)
        return [
            WindowResult(
                decoded=decoded,
                attempts=attempts,
                language=language,
                features=group.features,
                audio_index=audio,
            )
            for audio, ((decoded, attempts), language) in enumerate(
                zip(decoded_windows, languages, strict=True)
            )
        ]

    def _language_probabilities(self, features: Features) -> list[LanguageProbabilities]:
        return language_probabilities(self.backend, features, self.tokenizer, self.options.languages)

    def _rejection_of_partial(self, decoded: DecodingResult) -> str | None:
        """Why a result of a part of a window is not relied on."""
        return self.options.rejection_reason(decoded) or (
            "no speech" if self.options.is_silence(decoded) else None
        )


class _EncodedGroup:
    """Windows of one length, encoded together; their languages are looked for once, and only if somebody asks."""

    def __init__(self, window_decoder: WindowDecoder, mel: Floats) -> None:
        self._window_decoder = window_decoder
        began = window_decoder.clock()
        self.features = window_decoder.backend.encode(mel)
        self.encode_s = window_decoder.clock() - began
        self.draft_context = (
            window_decoder.speculator.prepare(mel, self.features) if window_decoder.speculator else None
        )
        self._language_probabilities: list[LanguageProbabilities] = []

    def language_probabilities(self, audio_index: int) -> LanguageProbabilities:
        """Probabilities in one of the windows."""
        self._language_probabilities = (
            self._language_probabilities or self._window_decoder._language_probabilities(self.features)
        )
        return self._language_probabilities[audio_index]
