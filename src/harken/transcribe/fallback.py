"""Decode a window at rising temperatures until a result passes the thresholds."""

from __future__ import annotations

from dataclasses import replace

from harken.contract import Backend, Features
from harken.decoding import Decoded, DecodeStats, Observer, Rules, Window, decode
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe.options import TranscribeOptions


def decode_with_fallback(
    backend: Backend,
    features: Features,
    window: Window,
    *,
    tokenizer: Tokenizer,
    rules: Rules,
    options: TranscribeOptions,
    observe: Observer,
) -> tuple[Decoded, tuple[Attempt, ...], DecodeStats]:
    """Go down the ladder of strategies; where every rung fails, keep the most probable of the least repetitive.

    Each rung has random numbers of its own, so that a result depends neither on the rungs before it nor on what else
    is decoded.

    Returns
    -------
    decoded : Decoded
        What was kept.
    attempts : tuple of Attempt
        All rungs that were tried, the one that was kept last; only that has no reason for a rejection.
    stats : DecodeStats

    Notes
    -----
    Source: openai/whisper, transcribe.py, decode_with_fallback, which keeps the last rung where all fail: a sample at
    temperature 1. Keeping the best is faster-whisper's rule (transcribe.py, generate_with_fallback).
    """
    tried: list[tuple[Decoded, str]] = []
    total = DecodeStats()
    for rung, strategy in enumerate(options.strategies()):
        seeded = replace(window, seed=(*window.seed, rung))
        (decoded,), stats = decode(
            backend, features, [seeded], tokenizer=tokenizer, rules=rules, strategy=strategy, observe=observe
        )
        total += stats
        reason = options.rejection(decoded)
        if reason is None:
            break
        tried.append((decoded, reason))
    else:
        decoded, reason = max(tried, key=lambda rejected: _merit(rejected[0], options))
        tried.remove((decoded, reason))
    attempts = [_attempt(rejected, reason) for rejected, reason in tried]
    return decoded, (*attempts, _attempt(decoded, None)), total


def _merit(decoded: Decoded, options: TranscribeOptions) -> tuple[bool, float]:
    """By which failures are ranked."""
    limit = options.compression_ratio_threshold
    return limit is None or decoded.compression_ratio <= limit, decoded.hypothesis.avg_logprob


def _attempt(decoded: Decoded, reason: str | None) -> Attempt:
    return Attempt(
        temperature=decoded.temperature,
        avg_logprob=decoded.hypothesis.avg_logprob,
        compression_ratio=decoded.compression_ratio,
        no_speech_prob=decoded.no_speech_prob,
        reason=reason,
    )
