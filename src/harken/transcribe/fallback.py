"""Temperature fallback: decoding at rising temperatures until a result passes the thresholds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from harken.contract import Backend, Features
from harken.decoding import (
    DecodeStats,
    DecodingResult,
    DraftContext,
    Greedy,
    LogitRules,
    Observer,
    Strategy,
    Window,
    decode,
)
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe.options import TranscribeOptions

SURE_LOGPROB = -0.6
"""Average log-probability below which greedy text is not sure (docs/decisions/fallback.md)."""
MOST_LAYERS_IN_DOUBT = 6
"""Most layers of the encoder of multilingual models that gain by a second look at such text: `tiny` and `base`."""

FallbackResult = tuple[DecodingResult, tuple[Attempt, ...]]
"""The result of a window, and all attempts at it, the accepted one last."""


class _Judged(NamedTuple):
    """The result of an attempt, and the reason if it is rejected."""

    decoded: DecodingResult
    rejection: str | None


def decode_with_fallback(
    backend: Backend,
    features: Features,
    windows: Sequence[Window],
    *,
    tokenizer: Tokenizer,
    rules: LogitRules,
    options: TranscribeOptions,
    tried_once: Collection[int] = (),
    observe: Observer,
    draft_context: DraftContext | None,
) -> tuple[list[FallbackResult], DecodeStats]:
    """Decode windows at rising temperatures until their results pass the thresholds.

    Greedy text of `tiny` and `base` that is not sure is decoded again with beams, unless the options choose otherwise.
    The temperature rises no more once it has made a text no more probable (docs/decisions/fallback.md). If every
    attempt fails, the most probable of the least repetitive ones is accepted. Each window is tried again by itself, and
    the tokens of a failed attempt are the draft of the next. Each attempt has random numbers of its own, so a result
    depends neither on the attempts before it nor on the windows beside it. Those that are tried once have the attempts
    at the first temperature only.

    Returns
    -------
    results : list of FallbackResult
        One a window; only the accepted attempt has no reason for a rejection.
    stats : DecodeStats

    Notes
    -----
    Source: openai/whisper, transcribe.py, decode_with_fallback, which accepts the last attempt if all fail: a sample at
    temperature 1. Accepting the best is faster-whisper's rule (transcribe.py, generate_with_fallback).
    """
    attempts: list[list[_Judged]] = [[] for _ in windows]
    total = DecodeStats()

    def attempt(
        indices: Sequence[int], strategy: Strategy, number: int, drafts: DraftContext | None
    ) -> list[_Judged]:
        nonlocal total
        results, stats = decode(
            backend,
            features,
            [_window_for_attempt(windows[i], number, attempts[i]) for i in indices],
            tokenizer=tokenizer,
            logit_rules=rules,
            strategy=strategy,
            observe=observe,
            attention=options.needs_attention,
            word_attention=options.word_timestamps,
            draft_context=drafts,
            max_compression_ratio=options.compression_ratio_threshold,
        )
        total += stats
        return [_Judged(decoded, options.rejection_reason(decoded)) for decoded in results]

    gains = tokenizer.multilingual and backend.dims.n_audio_layer <= MOST_LAYERS_IN_DOUBT
    second_look = options.second_look if gains else None
    failing = list(range(len(windows)))
    for number, strategy in enumerate(options.strategies()):
        for i, judged in zip(failing, attempt(failing, strategy, number, draft_context), strict=True):
            attempts[i].append(judged)
        if isinstance(strategy, Greedy) and second_look:
            unsure = [i for i in failing if _is_unsure(attempts[i][-1], options)]
            looks = attempt(unsure, second_look, number, None) if unsure else []
            for i, judged in zip(unsure, looks, strict=True):
                attempts[i][-1:] = _surer_last(attempts[i][-1], judged)
        failing = [i for i in failing if i not in tried_once and _may_improve(attempts[i], options)]
        if not failing:
            break
    return [_select_attempt(window_attempts, options) for window_attempts in attempts], total


def _may_improve(attempts: Sequence[_Judged], options: TranscribeOptions) -> bool:
    """Return whether the last attempt failed, and a higher temperature may help.

    It would not if the text, which does not repeat itself, was as probable at a lower one.
    """
    last, rejection = attempts[-1]
    if rejection is None:
        return False
    lower = [decoded for decoded, _ in attempts if decoded.temperature < last.temperature]
    not_repetitive, _ = rank = _failure_rank(last, options)
    return not (not_repetitive and any(rank <= _failure_rank(decoded, options) for decoded in lower))


def _is_unsure(greedy: _Judged, options: TranscribeOptions) -> bool:
    """Return whether greedy text is to be decoded again with beams."""
    sure = _logprob(greedy.decoded) >= SURE_LOGPROB or options.is_silence(greedy.decoded)
    return greedy.rejection is not None or not sure


def _surer_last(greedy: _Judged, beams: _Judged) -> list[_Judged]:
    """Return both attempts: last the one that passed, of two that did the more probable one."""
    surer, other = beams, greedy
    if greedy.rejection is None and (
        beams.rejection is not None or _logprob(greedy.decoded) >= _logprob(beams.decoded)
    ):
        surer, other = greedy, beams
    if surer.rejection is None and other.rejection is None:
        other = other._replace(rejection="less probable than the accepted attempt")
    return [other, surer]


def _logprob(decoded: DecodingResult) -> float:
    """Return the average log-probability, rounded so that equal texts are equal in every batch."""
    return round(decoded.hypothesis.avg_logprob, 4)


def _window_for_attempt(window: Window, number: int, attempts: Sequence[_Judged]) -> Window:
    """Return a window with the random seed of an attempt, and the tokens of the attempt before as its draft."""
    previous = attempts[-1].decoded.hypothesis.tokens if attempts else window.draft_tokens
    return replace(window, seed=(*window.seed, number), draft_tokens=previous)


def _select_attempt(attempts: Sequence[_Judged], options: TranscribeOptions) -> FallbackResult:
    """Return the last attempt if it passed, else the best of the failures."""
    best, rejection = attempts[-1]
    if rejection is not None:
        best = max((decoded for decoded, _ in attempts), key=lambda decoded: _failure_rank(decoded, options))
    others = [_to_attempt(decoded, reason) for decoded, reason in attempts if decoded is not best]
    return best, (*others, _to_attempt(best, None))


def _failure_rank(decoded: DecodingResult, options: TranscribeOptions) -> tuple[bool, float]:
    """Return the sort key of a failed attempt."""
    limit = options.compression_ratio_threshold
    repetitive = decoded.loops or (limit is not None and decoded.compression_ratio > limit)
    return not repetitive, _logprob(decoded)


def _to_attempt(decoded: DecodingResult, reason: str | None) -> Attempt:
    return Attempt(
        temperature=decoded.temperature,
        avg_logprob=decoded.hypothesis.avg_logprob,
        compression_ratio=decoded.compression_ratio,
        no_speech_prob=decoded.no_speech_prob,
        reason=reason,
    )
