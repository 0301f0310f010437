"""Decode windows at rising temperatures until their results pass the thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harken.contract import Backend, Features
from harken.decoding import Decoded, DecodeStats, Drafter, Observer, Rules, Window, decode
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe.options import TranscribeOptions

Kept = tuple[Decoded, tuple[Attempt, ...]]
"""What was kept of a window, and all rungs that were tried for it, the one that was kept last."""


def decode_with_fallback(
    backend: Backend,
    features: Features,
    windows: Sequence[Window],
    *,
    tokenizer: Tokenizer,
    rules: Rules,
    options: TranscribeOptions,
    observe: Observer,
    attention: bool = False,
    drafter: Drafter | None = None,
) -> tuple[list[Kept], DecodeStats]:
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
    tried: list[list[tuple[Decoded, str | None]]] = [[] for _ in windows]
    failing, total = list(range(len(windows))), DecodeStats()
    for rung, strategy in enumerate(options.strategies()):
        results, stats = decode(
            backend,
            features,
            [_attempted(windows[i], rung, tried[i]) for i in failing],
            tokenizer=tokenizer,
            rules=rules,
            strategy=strategy,
            observe=observe,
            attention=attention,
            drafter=drafter,
        )
        total += stats
        for i, decoded in zip(failing, results, strict=True):
            tried[i].append((decoded, options.rejection(decoded)))
        failing = [i for i in failing if tried[i][-1][1] is not None]
        if not failing:
            break
    return [_keep(its, options) for its in tried], total


def _attempted(window: Window, rung: int, tried: list[tuple[Decoded, str | None]]) -> Window:
    """A window as it goes into a rung: with random numbers of its own, and what was said last as a draft."""
    previous = tried[-1][0].hypothesis.tokens if tried else window.previous
    return replace(window, seed=(*window.seed, rung), previous=previous)


def _keep(tried: list[tuple[Decoded, str | None]], options: TranscribeOptions) -> Kept:
    """The last attempt if it passed, else the best of the failures."""
    kept = tried[-1]
    if kept[1] is not None:
        kept = max(tried, key=lambda rejected: _merit(rejected[0], options))
    others = [_attempt(decoded, reason) for decoded, reason in tried if decoded is not kept[0]]
    return kept[0], (*others, _attempt(kept[0], None))


def _merit(decoded: Decoded, options: TranscribeOptions) -> tuple[bool, float]:
    """By which failures are ranked; those with the same text are equal, however a batch has rounded them."""
    limit = options.compression_ratio_threshold
    return limit is None or decoded.compression_ratio <= limit, round(decoded.hypothesis.avg_logprob, 4)


def _attempt(decoded: Decoded, reason: str | None) -> Attempt:
    return Attempt(
        temperature=decoded.temperature,
        avg_logprob=decoded.hypothesis.avg_logprob,
        compression_ratio=decoded.compression_ratio,
        no_speech_prob=decoded.no_speech_prob,
        reason=reason,
    )
