"""The window decoder: encodes windows, those of one length together, detects their languages, and decodes them.

Whisper learned on windows of 30 s. After short audio most of a window is padding, which the encoder cannot do without:
windows that end earlier cost words (docs/decisions/fidelity.md). But padding resembles that of any other window: so it
is not encoded, and some positions of a window that was encoded once stand for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple, cast

import numpy as np

from harken.audio.vad import SpeechDetector
from harken.contract import Backend, Features, Floats, JoiningBackend
from harken.decoding import (
    Assistant,
    DecodeStats,
    DecodingResult,
    DraftContext,
    Greedy,
    LogitRules,
    SpeculativeDecoder,
    Step,
    Window,
    decode,
    make_logit_rules,
    make_prompt,
)
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe.fallback import decode_with_fallback
from harken.transcribe.language_id import LanguageProbabilities, language_probabilities
from harken.transcribe.options import Callbacks, TranscribeOptions
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

TEXT_WEIGHT = 3.0
"""Weight of the average log-probability of a text for its language, beside that of the detected probability."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AudioWindow:
    """One window of a recording.

    Parameters
    ----------
    mel : ndarray of shape (1, n_mels, window_frames), float32
        Normalised log10 mel of the whole window, padding included.
    content_frames : int
        Frames that hold audio; padding follows.
    seek : int
        Frame of the recording at which the window begins.
    is_first, is_gap : bool
        True for the first window of a recording; for a gap in the text of a window, which has one attempt.
    speech_end : int or None
        Timestamp of the end of its speech; None if speech may go on behind the window.
    """

    mel: Floats
    content_frames: int
    seek: int
    is_first: bool
    is_gap: bool = False
    speech_end: int | None = None

    @property
    def start_s(self) -> float:
        """Start of the window in the recording, in seconds."""
        return self.seek / FRAMES_PER_SECOND


@dataclass(slots=True, eq=False)
class EncodedBatch:
    """Windows of one length that were encoded together.

    Parameters
    ----------
    features : Features
    partial : bool
        True if only the first positions of each window were encoded.
    encode_s : float
        Seconds that encoding took, a window.
    draft_context : DraftContext or None
    probabilities : list of dict
        Language probabilities of each window; empty until they are asked for.
    """

    features: Features
    partial: bool
    encode_s: float
    draft_context: DraftContext | None = None
    probabilities: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedWindow:
    """A window and its place in the batch that it was encoded in."""

    window: AudioWindow
    batch: EncodedBatch
    index: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeRequest:
    """One encoded window with all that decoding it takes.

    Parameters
    ----------
    encoded : EncodedWindow
    language : str
        Code of the language.
    prompt : tuple of int
    draft_tokens : tuple of int
        Tokens expected in the window, verified as a draft.
    callbacks : Callbacks
        Those of its recording.
    """

    encoded: EncodedWindow
    language: str
    prompt: tuple[int, ...]
    draft_tokens: tuple[int, ...] = ()
    callbacks: Callbacks = field(default_factory=Callbacks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowResult:
    """The accepted result of a window, all attempts at it, and the encoded window that it comes from."""

    decoded: DecodingResult
    attempts: tuple[Attempt, ...]
    language: str
    encoded: EncodedWindow


class DecodePass(NamedTuple):
    """The cost of decoding some of the requests together, which are given by their indices."""

    requests: tuple[int, ...]
    stats: DecodeStats


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedLength:
    """The number of positions of a window that are encoded, where the rest is padding.

    Parameters
    ----------
    margin : int
        Positions behind the audio that are encoded.
    step : int
        The number is a multiple of this: windows with the same are encoded together.
    """

    margin: int = 50
    step: int = 50

    def positions(self, content_frames: int, window_positions: int) -> int | None:
        """Return the number for a window that holds so many frames of audio; None if all are to be encoded."""
        content_positions = -(-content_frames // FRAMES_PER_POSITION)
        encoded = -(-(content_positions + self.margin) // self.step) * self.step
        return encoded if encoded < window_positions else None


@dataclass(slots=True)
class WindowDecoder:
    """A model with the options of a transcription.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    options : TranscribeOptions
    speculator : SpeculativeDecoder or None
        Drafts tokens.
    clock : callable or None
        Gives seconds, to measure encoding and decoding; without it both are counted as 0 s.
    speech_detector : callable
        Makes the detector of the speech of one recording or stream.
    encoded_length : EncodedLength
        How much of a window is encoded, unless all are exact.

    Attributes
    ----------
    exact : bool
        True if windows are encoded whole, as the reference does.
    stats : DecodeStats
        Cost of all windows so far.
    """

    backend: Backend
    tokenizer: Tokenizer
    options: TranscribeOptions
    speculator: SpeculativeDecoder | None = None
    clock: Callable[[], float] | None = None
    speech_detector: Callable[[], SpeechDetector] = SpeechDetector
    encoded_length: EncodedLength = EncodedLength()
    exact: bool = field(init=False)
    stats: DecodeStats = field(init=False, default_factory=DecodeStats)
    initial_prompt_tokens: list[int] = field(init=False)
    _rules: LogitRules = field(init=False)
    _first_window_rules: LogitRules = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        self.exact = options.is_exact(self.backend.capabilities.precision)
        self.initial_prompt_tokens = self.encode_text(options.initial_prompt)
        self._rules = self.make_rules(timestamps=options.timestamps)
        self._first_window_rules = (
            self.make_rules(timestamps=options.timestamps, prefix=options.prefix)
            if options.prefix
            else self._rules
        )

    @property
    def window_frames(self) -> int:
        """Mel frames of a whole window."""
        return FRAMES_PER_POSITION * self.backend.dims.n_audio_ctx

    def make_rules(self, *, timestamps: bool, prefix: str | None = None) -> LogitRules:
        """Make the logit rules of a window that is forced to begin with a prefix, if there is one."""
        options = self.options
        return make_logit_rules(
            self.tokenizer,
            timestamps=timestamps,
            suppress_tokens=options.suppress_tokens,
            suppress_blank=options.suppress_blank,
            max_initial_timestamp_s=options.max_initial_timestamp_s,
            suppress_regex=options.suppress_regex,
            forced_prefix=self.encode_text(prefix),
            hotwords=options.hotwords,
        )

    def build_prompt(
        self, language: str, previous_tokens: Sequence[int], *, partial: bool = False
    ) -> tuple[int, ...]:
        """Build the prompt of a window from its language and the text before it.

        That of a partial window asks for no timestamps and always has the initial prompt.
        """
        options = self.options
        return make_prompt(
            self.tokenizer,
            self.backend.dims.n_text_ctx,
            language=language,
            task=options.task,
            timestamps=options.timestamps and not partial,
            initial_prompt_tokens=self.initial_prompt_tokens if partial or options.carry_initial_prompt else (),
            previous_tokens=previous_tokens,
        )

    def encode(self, windows: Sequence[AudioWindow], *, whole: bool = False) -> list[EncodedWindow]:
        """Encode windows, those of equal lengths together: without their padding, unless all are exact or whole."""
        groups: dict[int | None, list[int]] = {}
        for i, window in enumerate(windows):
            positions = None if whole else self.positions_to_encode(window.content_frames)
            groups.setdefault(positions, []).append(i)
        encoded: dict[int, EncodedWindow] = {}
        for positions, indices in groups.items():
            mel, padded = np.concatenate([windows[i].mel for i in indices]), positions is not None
            if positions:  # padding is constant, so the last of these frames are those of any position in it
                mel = mel[:, :, : FRAMES_PER_POSITION * positions]
            began_s = self.now_s()
            features = self.backend.encode(mel, padded=padded)
            encode_s = self.now_s() - began_s
            batch = EncodedBatch(features, padded, encode_s / len(indices))
            if self.speculator:
                batch.draft_context = DraftContext(
                    self.speculator,
                    partial(Assistant.encode, mel=mel, features=features, padded=padded),
                    window_s=mel.shape[2] / FRAMES_PER_SECOND,
                    encode_s=encode_s,
                )
            encoded.update({i: EncodedWindow(windows[i], batch, index) for index, i in enumerate(indices)})
        return [encoded[i] for i in range(len(windows))]

    def positions_to_encode(self, content_frames: int) -> int | None:
        """Choose how many positions to encode of a window with so many frames of audio; None is all."""
        if self.exact or not self.backend.capabilities.frozen_padding:
            return None
        return self.encoded_length.positions(content_frames, self.backend.dims.n_audio_ctx)

    def languages_of(self, features: Features) -> list[dict[str, float]]:
        """Return the probability of each allowed language in each window, most probable first."""
        return language_probabilities(self.backend, features, self.tokenizer, self.options.languages)

    def language_probabilities(self, encoded: EncodedWindow) -> LanguageProbabilities:
        """Return the probability of each allowed language in a window.

        The two likeliest are weighed by their texts where neither is sure: the text in the language that was spoken is
        more probable (docs/decisions/languages.md).
        """
        batch = encoded.batch
        batch.probabilities = batch.probabilities or self.languages_of(batch.features)
        probabilities = batch.probabilities[encoded.index]
        likeliest = sorted(probabilities, key=lambda code: -probabilities[code])[:2]
        if len(likeliest) < 2 or probabilities[likeliest[0]] >= self.options.language_threshold:
            return probabilities
        results, stats = decode(
            self.backend,
            batch.features,
            [Window(window_index=encoded.index, prompt=self.build_prompt(code, ())) for code in likeliest],
            tokenizer=self.tokenizer,
            logit_rules=self._rules,
            strategy=Greedy(),
            max_compression_ratio=self.options.compression_ratio_threshold,
        )
        self.stats += stats
        weights = {
            code: probabilities[code] * math.exp(TEXT_WEIGHT * result.hypothesis.avg_logprob)
            for code, result in zip(likeliest, results, strict=True)
        }
        scale = sum(probabilities[code] for code in likeliest) / sum(weights.values())
        likelier = sorted(likeliest, key=lambda code: -weights[code])
        return {code: weights[code] * scale for code in likelier} | {
            code: probability for code, probability in probabilities.items() if code not in weights
        }

    def decode(self, requests: Sequence[DecodeRequest]) -> tuple[list[WindowResult], list[DecodePass]]:
        """Decode encoded windows.

        Where the encoded part of a window is taken for silence, the whole window is encoded and decoded.

        Returns
        -------
        results : list of WindowResult
            One a request; none depends on which others are decoded with it.
        passes : list of DecodePass

        Raises
        ------
        Cancelled
            As soon as a callback asks for it.
        CallbackError
            If a callback fails.
        """
        results, passes = self._decode(dict(enumerate(requests)))
        silent = {
            i: result
            for i, result in results.items()
            if result.encoded.batch.partial and self.options.is_silence(result.decoded)
        }
        if silent:
            whole = self.encode([requests[i].encoded.window for i in silent], whole=True)
            retried, retry_passes = self._decode(
                {i: replace(requests[i], encoded=encoded) for i, encoded in zip(silent, whole, strict=True)}
            )
            for i, result in retried.items():
                *failed, last = silent[i].attempts
                rejected = replace(last, reason="no speech, in the encoded part of the window")
                results[i] = replace(result, attempts=(*failed, rejected, *result.attempts))
            passes += retry_passes
        for request, result in zip(requests, results.values(), strict=True):
            start_s, callbacks = request.encoded.window.start_s, request.callbacks
            callbacks.call(callbacks.on_window_end, start_s, result.decoded, result.attempts)
        return [*results.values()], passes

    def _decode(
        self, requests: Mapping[int, DecodeRequest]
    ) -> tuple[dict[int, WindowResult], list[DecodePass]]:
        """Decode windows with the same options together; return the results by number, in the order of the requests.

        If the backend, or that of the assistant, cannot join features, only those that were encoded together.
        """
        assistant = self.speculator.assistant if self.speculator else None
        backends = [self.backend, *([assistant.backend] if assistant else [])]
        joins = all(backend.capabilities.joins_features for backend in backends)
        groups: dict[tuple[EncodedBatch | None, TranscribeOptions, LogitRules], list[int]] = {}
        for i, request in requests.items():
            options = self.options.in_language(request.language)
            rules = self._first_window_rules if request.encoded.window.is_first else self._rules
            apart = None if joins else request.encoded.batch
            groups.setdefault((apart, options, rules), []).append(i)
        results: dict[int, WindowResult] = {}
        passes = []
        for (_, options, rules), indices in groups.items():
            group_results, stats = self._decode_group(options, rules, [requests[i] for i in indices])
            results.update(zip(indices, group_results, strict=True))
            passes.append(DecodePass(tuple(indices), stats))
        return {i: results[i] for i in requests}, passes

    def _decode_group(
        self, options: TranscribeOptions, rules: LogitRules, requests: Sequence[DecodeRequest]
    ) -> tuple[list[WindowResult], DecodeStats]:
        """Decode windows with the same options together."""
        batches = list(dict.fromkeys(request.encoded.batch for request in requests))
        features = batches[0].features
        if len(batches) > 1:
            joining = cast(JoiningBackend, self.backend)
            features = joining.join_features([batch.features for batch in batches])
        contexts = [batch.draft_context for batch in batches if batch.draft_context]
        n_before = accumulate((batch.features.n_windows for batch in batches), initial=0)
        first_index = dict(zip(batches, n_before, strict=False))
        windows = []
        for request in requests:
            window = request.encoded.window
            request.callbacks.call(request.callbacks.on_window_start, window.start_s, request.prompt)
            windows.append(
                Window(
                    window_index=first_index[request.encoded.batch] + request.encoded.index,
                    prompt=request.prompt,
                    seed=(options.seed, window.seek),
                    draft_tokens=request.draft_tokens,
                    speech_end=window.speech_end,
                )
            )
        unique_callbacks = list(dict.fromkeys(request.callbacks for request in requests))

        def observe(step: Step) -> None:
            for callbacks in unique_callbacks:
                callbacks.handle_step(step)

        began_s = self.now_s()
        decoded_windows, stats = decode_with_fallback(
            self.backend,
            features,
            windows,
            tokenizer=self.tokenizer,
            rules=rules,
            options=options,
            tried_once={i for i, request in enumerate(requests) if request.encoded.window.is_gap},
            observe=observe,
            draft_context=DraftContext.join(contexts) if contexts else None,
        )
        stats += DecodeStats(
            encode_s=sum(request.encoded.batch.encode_s for request in requests),
            decode_s=self.now_s() - began_s,
        )
        self.stats += stats
        results = [
            WindowResult(decoded=decoded, attempts=attempts, language=request.language, encoded=request.encoded)
            for request, (decoded, attempts) in zip(requests, decoded_windows, strict=True)
        ]
        return results, stats

    def encode_text(self, text: str | None) -> list[int]:
        """Return the tokens of a text that follows other text; none without a text."""
        return self.tokenizer.encode(" " + text.strip()) if text else []

    def now_s(self) -> float:
        """Return the time of the clock; 0 without one."""
        return self.clock() if self.clock else 0.0
