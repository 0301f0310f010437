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
    """Go down the ladder of strategies; the last result is kept whatever it is.

    Each rung has random numbers of its own, so that a result depends neither on the rungs before it nor on what else
    is decoded.

    Notes
    -----
    Source: openai/whisper, transcribe.py, decode_with_fallback; Radford et al. 2022, section 4.5.
    """
    attempts: list[Attempt] = []
    total = DecodeStats()
    strategies = options.strategies()
    for rung, strategy in enumerate(strategies):
        seeded = replace(window, seed=(*window.seed, rung))
        (decoded,), stats = decode(
            backend, features, [seeded], tokenizer=tokenizer, rules=rules, strategy=strategy, observe=observe
        )
        total += stats
        reason = options.rejection(
            avg_logprob=decoded.hypothesis.avg_logprob,
            compression_ratio=decoded.compression_ratio,
            no_speech_prob=decoded.no_speech_prob,
        )
        attempts.append(
            Attempt(
                temperature=decoded.temperature,
                avg_logprob=decoded.hypothesis.avg_logprob,
                compression_ratio=decoded.compression_ratio,
                no_speech_prob=decoded.no_speech_prob,
                reason=reason if rung + 1 < len(strategies) else None,
            )
        )
        if reason is None:
            break
    return decoded, tuple(attempts), total
