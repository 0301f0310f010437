"""Quiet speech is transcribed, offline and live, with the model that comes with harken; quiet noise is not."""

from __future__ import annotations

import numpy as np
import pytest

from harken.audio import load_audio
from harken.contract import Floats
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, recognizer, recordings, words
from session_events import Utterance, check_events, run_session

pytestmark = [pytest.mark.real, pytest.mark.slow]

TEXT = (
    "and so my fellow americans ask not what your country can do for you ask what you can do for your country"
)


def scaled(factor: float) -> Floats:
    """Return the example times a factor, in the steps of 16 bits, of which there are 24 at a thousandth."""
    return np.rint(load_audio(EXAMPLE) * factor * 32768).astype(np.float32) / np.float32(32768)


def live_utterances(samples: Floats) -> list[Utterance]:
    session = recognizer("int8").stream(clock=None)
    events = run_session(session, samples, range(SAMPLE_RATE // 2, len(samples), SAMPLE_RATE // 2))
    return check_events(events, len(samples))


@pytest.mark.parametrize("factor", [0.01, 0.003, 0.001])
def test_quiet_recording_has_its_whole_text(factor: float) -> None:
    assert words(recognizer("int8").transcribe(scaled(factor)).text) == words(TEXT)


def test_live_session_transcribes_quiet_speech() -> None:
    utterances = live_utterances(scaled(0.01))
    assert words(" ".join(utterance.text for utterance in utterances)) == words(TEXT)


@pytest.mark.parametrize("factor", [0.003, 0.001])
def test_live_session_finds_speech_of_few_steps(factor: float) -> None:
    # Found as a whole; of so few steps, "my" is understood as "am I" in an utterance of its own, in float32 as well.
    utterances = live_utterances(scaled(factor))
    assert sum(utterance.ended - utterance.began for utterance in utterances) > 10
    assert words(" ".join(utterance.text for utterance in utterances))[-17:] == words(TEXT)[-17:]


@pytest.mark.parametrize("factor", [0.03, 0.01, 0.003])
def test_quiet_recordings_without_speech_have_no_more_words_than_loud_ones(factor: float) -> None:
    samples_of = [load_audio(path)[: 10 * SAMPLE_RATE] for path in recordings("non-speech")[::3]]
    loud = [words(recognizer("int8").transcribe(samples).text) for samples in samples_of]
    quiet = [words(recognizer("int8").transcribe(samples * np.float32(factor)).text) for samples in samples_of]
    assert sum(map(len, quiet)) <= sum(map(len, loud))
