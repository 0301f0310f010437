"""Decode windows at rising temperatures until their results pass the thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harken.contract import Backend, Features
from harken.decoding import DecodeStats, DecodingResult, DraftContext, LogitRules, Observer, Window, decode
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe.options import TranscribeOptions

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
