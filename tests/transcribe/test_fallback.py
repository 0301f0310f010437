"""Temperature fallback: attempts, reasons of rejection, the accepted result."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from fakes.backends import TranscriptBackend, WindowText, window_text
from harken.decoding import (
    DecodeStats,
    DecodingResult,
    Step,
    Strategy,
    Window,
    decode,
    make_logit_rules,
    make_prompt,
)
from harken.errors import Cancelled
from harken.results import Attempt
from harken.transcribe import TranscribeOptions, fallback
from harken.transcribe.fallback import decode_with_fallback
from tiny_models import TOKENIZER

PROMPT = make_prompt(TOKENIZER, 448, language="en", task="transcribe", timestamps=True)
# No spaces: a vocabulary of bytes has them among its symbols that are not spoken.
FLUENT = "andsomyfellowamericans"
GOOD = window_text(0, FLUENT, 20)
REPETITIVE = window_text(0, "so" * 40, 20)
MORE_REPETITIVE = window_text(0, "so" * 60, 20)
IMPROBABLE = window_text(0, FLUENT, 20, gap=4.5)
MORE_IMPROBABLE = window_text(0, FLUENT, 20, gap=4.0)
UNREPETITIVE = "average log-probability -"
TOO_REPETITIVE = "compression ratio "


def decode_one(
    *attempts: WindowText, **options: Any
) -> tuple[DecodingResult, tuple[Attempt, ...], DecodeStats]:
    # Best of one, and no temperature at which anything but the line is drawn from the good ones.
    made = TranscribeOptions(**{"best_of": 1, "temperatures": (0.0, 0.01, 0.02, 0.03), **options})
    backend = TranscriptBackend(attempts, n_text_ctx=448)
    ((decoded, attempts),), stats = decode_with_fallback(
        backend,
        backend.encode(None),
        [Window(window_index=0, prompt=PROMPT, seed=(7, 300))],
        tokenizer=TOKENIZER,
        rules=make_logit_rules(TOKENIZER, timestamps=True),
        options=made,
        observe=lambda step: None,
    )
    return decoded, attempts, stats


def test_all_attempts_are_reported_the_accepted_one_last() -> None:
    decoded, attempts, stats = decode_one(REPETITIVE, IMPROBABLE, GOOD, MORE_REPETITIVE)
    assert [attempt.temperature for attempt in attempts] == [0, 0.01, 0.02]
    first, second, kept = attempts
    assert (first.reason or "").startswith(TOO_REPETITIVE)
    assert (second.reason or "").startswith(UNREPETITIVE)
    assert kept == Attempt(
        temperature=0.02,
        avg_logprob=decoded.hypothesis.avg_logprob,
        compression_ratio=decoded.compression_ratio,
        no_speech_prob=decoded.no_speech_prob,
    )
    assert decoded.text == FLUENT
    assert (stats.windows, stats.prompt_tokens) == (3, 3 * len(PROMPT))
    assert stats.forwards == stats.sampled_tokens > 100


@pytest.mark.parametrize("its", [GOOD, REPETITIVE, MORE_REPETITIVE])
def test_compression_ratio_is_computed_from_the_text(its: WindowText) -> None:
    data = TOKENIZER.decode(its.tokens).strip().encode()
    _, attempts, _ = decode_one(its, GOOD)
    assert attempts[0].compression_ratio == len(data) / len(zlib.compress(data))
    assert attempts[0].compression_ratio > 0.5


@pytest.mark.parametrize(
    ("attempts", "best"),
    [
        ((IMPROBABLE, MORE_IMPROBABLE, MORE_IMPROBABLE, MORE_IMPROBABLE), 0),
        ((MORE_IMPROBABLE, IMPROBABLE, MORE_IMPROBABLE, MORE_IMPROBABLE), 1),
        ((REPETITIVE, REPETITIVE, MORE_IMPROBABLE, REPETITIVE), 2),
        ((REPETITIVE, MORE_IMPROBABLE, REPETITIVE, IMPROBABLE), 3),
    ],
)
def test_best_attempt_is_accepted_if_all_fail(attempts: tuple[WindowText, ...], best: int) -> None:
    decoded, tried, stats = decode_one(*attempts)
    temperatures = [0, 0.01, 0.02, 0.03]
    kept = temperatures.pop(best)
    assert decoded.temperature == kept
    assert [attempt.temperature for attempt in tried] == [*temperatures, kept]
    assert [attempt.reason is None for attempt in tried] == [False, False, False, True]
    assert stats.windows == 4


def test_each_attempt_has_its_strategy_and_its_own_random_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts_tried: list[tuple[Strategy, tuple[int, ...]]] = []

    def spy(backend: Any, features: Any, windows: list[Window], **rest: Any) -> Any:
        attempts_tried.append((rest["strategy"], windows[0].seed))
        return decode(backend, features, windows, **rest)

    monkeypatch.setattr(fallback, "decode", spy)
    options = {"beam_size": 2, "temperatures": (0.0, 0.5, 0.5, 1.0), "logprob_threshold": 0.0}
    decode_one(IMPROBABLE, **options)
    assert [strategy for strategy, _ in attempts_tried] == list(
        TranscribeOptions(best_of=1, **options).strategies()
    )
    assert [seed for _, seed in attempts_tried] == [(7, 300, 0), (7, 300, 1), (7, 300, 2), (7, 300, 3)]


def test_attempts_at_one_temperature_differ_and_are_reproducible() -> None:
    def texts() -> list[float]:
        options = {"temperatures": (1.0, 1.0, 1.0), "logprob_threshold": 0.0, "best_of": 2}
        _, attempts, _ = decode_one(MORE_IMPROBABLE, **options)
        return [attempt.avg_logprob for attempt in attempts]

    drawn = texts()
    assert len(set(drawn)) == 3
    assert drawn == texts()


def test_exception_of_the_observer_ends_the_fallback() -> None:
    seen: list[Step] = []

    def observe(step: Step) -> None:
        seen.append(step)
        if len(seen) == 5:
            raise Cancelled

    backend = TranscriptBackend(GOOD, n_text_ctx=448)
    with pytest.raises(Cancelled):
        decode_with_fallback(
            backend,
            backend.encode(None),
            [Window(window_index=0, prompt=PROMPT)],
            tokenizer=TOKENIZER,
            rules=make_logit_rules(TOKENIZER, timestamps=True),
            options=TranscribeOptions(),
            observe=observe,
        )
    assert backend.steps == len(seen) == 5
