"""Live sessions on recordings, with a published model and real voice activity detection."""

from __future__ import annotations

import numpy as np
import pytest

from comparable import comparable
from harken.audio import load_audio
from harken.contract import Floats
from harken.streaming import Event, Interim
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, EXAMPLE_WORDS, recognizer, recordings, words
from session_events import check_committed_text, check_events, final_text, run_session

pytestmark = [pytest.mark.real, pytest.mark.slow]

BLOCK = SAMPLE_RATE // 10


def listen(samples: Floats, finals: str, precision: str = "int8") -> list[Event]:
    session = recognizer(precision).stream(clock=None, finals=finals)
    return run_session(session, samples, range(BLOCK, len(samples), BLOCK))


@pytest.mark.parametrize("precision", ["int8", pytest.param("fp32", marks=pytest.mark.nightly)])
def test_exact_finals_equal_offline_transcription_and_words_are_shown_while_they_are_spoken(
    precision: str,
) -> None:
    """Almost all words of the recording appear before it ends."""
    samples = load_audio(EXAMPLE)
    events = listen(samples, "exact", precision)
    found = check_events(events, len(samples))
    assert found
    for utterance in found:
        offline = recognizer(precision).transcribe(utterance.of(samples)).result().segments
        assert comparable(utterance.segments, utterance.began) == comparable(offline)
    assert words(final_text(events)) == EXAMPLE_WORDS
    shown = [event for event in events if isinstance(event, Interim)]
    early = {word for event in shown for word in words(event.committed + event.tentative)}
    assert len(early & {*EXAMPLE_WORDS}) >= 0.8 * len({*EXAMPLE_WORDS})
    assert shown[0].emitted_samples < len(samples) / 2


def test_streamed_finals_are_the_committed_text() -> None:
    samples = load_audio(EXAMPLE)
    found = check_events(listen(samples, "streamed"), len(samples))
    check_committed_text(found)
    assert any(utterance.committed for utterance in found)


@pytest.mark.parametrize("finals", ["exact", "streamed"])
def test_non_speech_gives_no_text(finals: str) -> None:
    for path in recordings("non-speech")[::6]:
        assert final_text(listen(load_audio(path)[: 20 * SAMPLE_RATE], finals)) == "", path.name


@pytest.mark.nightly
def test_speech_without_pauses_is_split_and_keeps_most_words() -> None:
    """45 s of utterances without their soft chunks."""
    paths = recordings("librispeech-test-other")[:10]
    samples = np.concatenate([load_audio(path) for path in paths])[: 45 * SAMPLE_RATE]
    chunks = samples[: len(samples) // 512 * 512].reshape(-1, 512)
    samples = chunks[np.abs(chunks).max(axis=1) > 0.02].ravel()
    offline = words(recognizer("int8").transcribe(samples).text)
    for finals in ("exact", "streamed"):
        emitted = listen(samples, finals)
        found = check_events(emitted, len(samples))
        if finals == "streamed":
            check_committed_text(found)
        streamed = words(final_text(emitted))
        assert len({*streamed} & {*offline}) >= 0.7 * len({*offline})
        assert 0.8 * len(offline) <= len(streamed) <= 1.2 * len(offline)
