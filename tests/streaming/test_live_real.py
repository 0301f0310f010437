"""Live sessions on recordings, with a published model and real voice activity detection."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest

from harken.audio import load_audio
from harken.contract import Floats
from harken.streaming import Event, Interim
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, EXAMPLE_WORDS, recognizer, recordings, words
from session_events import check_committed_text, check_events, final_text, run_session

pytestmark = [pytest.mark.real, pytest.mark.slow]

BLOCK = SAMPLE_RATE // 10


@cache
def example() -> Floats:
    return load_audio(EXAMPLE)


@cache
def events(finals: str, precision: str) -> list[Event]:
    samples = example()
    session = recognizer(precision).stream(clock=None, finals=finals)
    return run_session(session, samples, range(BLOCK, len(samples), BLOCK))


@pytest.mark.parametrize("precision", ["int8", pytest.param("fp32", marks=pytest.mark.nightly)])
def test_exact_finals_equal_offline_transcription_of_each_utterance(precision: str) -> None:
    found = check_events(events("exact", precision), len(example()))
    assert found
    for utterance in found:
        offline = recognizer(precision).transcribe(utterance.of(example())).result().segments
        assert [segment.tokens for segment in utterance.segments] == [segment.tokens for segment in offline]
        times = [
            (segment.start_s - utterance.began, segment.end_s - utterance.began)
            for segment in utterance.segments
        ]
        assert times == [pytest.approx((segment.start_s, segment.end_s)) for segment in offline]


def test_streamed_finals_are_the_committed_text() -> None:
    found = check_events(events("streamed", "int8"), len(example()))
    check_committed_text(found)
    assert any(utterance.committed for utterance in found)


def test_words_are_shown_while_they_are_spoken() -> None:
    """Almost all words of the recording appear before it ends."""
    assert words(final_text(events("exact", "int8"))) == EXAMPLE_WORDS
    shown = [event for event in events("exact", "int8") if isinstance(event, Interim)]
    early = {word for event in shown for word in words(event.committed + event.tentative)}
    assert len(early & {*EXAMPLE_WORDS}) >= 0.8 * len({*EXAMPLE_WORDS})
    assert shown[0].emitted_samples < len(example()) / 2


@pytest.mark.parametrize("finals", ["exact", "streamed"])
def test_non_speech_gives_no_text(finals: str) -> None:
    for path in islice(recordings("non-speech"), 0, None, 6):
        samples = load_audio(path)[: 20 * SAMPLE_RATE]
        session = recognizer("int8").stream(clock=None, finals=finals)
        assert final_text(run_session(session, samples, range(BLOCK, len(samples), BLOCK))) == "", path.name


@pytest.mark.nightly
def test_speech_without_pauses_is_split_and_keeps_most_words() -> None:
    """45 s of utterances without their soft chunks."""
    paths = recordings("librispeech-test-other")[:10]
    samples = np.concatenate([load_audio(path) for path in paths])[: 45 * SAMPLE_RATE]
    chunks = samples[: len(samples) // 512 * 512].reshape(-1, 512)
    samples = chunks[np.abs(chunks).max(axis=1) > 0.02].ravel()
    offline = words(recognizer("int8").transcribe(samples).text)
    for finals in ("exact", "streamed"):
        session = recognizer("int8").stream(clock=None, finals=finals)
        emitted = run_session(session, samples, range(BLOCK, len(samples), BLOCK))
        found = check_events(emitted, len(samples))
        if finals == "streamed":
            check_committed_text(found)
        streamed = words(final_text(emitted))
        assert len({*streamed} & {*offline}) >= 0.7 * len({*offline})
        assert 0.8 * len(offline) <= len(streamed) <= 1.2 * len(offline)
