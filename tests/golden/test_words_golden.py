"""Words and their times, against those of openai-whisper (see record_whisper.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from goldens import read_json, sha256

from real_models import EXAMPLE, SHARED, larger_recognizer, recognizer

GOLDEN = read_json("words")["recordings"]
TOLERANCE_S = 0.02 + 1e-6
"""One timestamp position."""
OPTIONS: dict[str, Any] = {
    "word_timestamps": True,
    "temperatures": (0.0,),
    "condition_on_previous_text": False,
    "vad": False,
    "hallucination_threshold": None,
}
BY_DAY = {
    "jfk",
    "librispeech-test-other/2609-156975-0007.flac",
    "librispeech-test-other/367-130732-0001.flac",
    "arctic/arctic_b0504_1592526099.flac",
    "noisy/p287_003.wav",
    "telephone/limit-simul-calls.wav",
    "long-form/kennedy_moon_21s.mp3",
    "german/de_rhasspy-0802.flac",
    "chinese/BAC009S0150W0174.wav",
    "many-languages/leopard_test_ja.wav",
}
"""Short and long ones of every kind and script."""
pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param(
            recorded,
            id=recorded["recording"],
            marks=[pytest.mark.nightly] * (recorded["recording"] not in BY_DAY),
        )
        for recorded in GOLDEN
    ],
)
def test_words_have_the_times_of_the_reference(recorded: dict[str, Any]) -> None:
    path = EXAMPLE if recorded["recording"] == "jfk" else SHARED / "audio" / recorded["recording"]
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    assert sha256([path]) == recorded["sha256"]
    model = recognizer("fp32") if recorded["model"] == "tiny.en" else larger_recognizer(recorded["model"])
    segments = model.transcribe(path, language=recorded["language"], **OPTIONS).result().segments
    expected = recorded["segments"]
    assert [segment.tokens for segment in segments] == [tuple(segment["tokens"]) for segment in expected]
    assert [round(100 * segment.seek_s) for segment in segments] == [segment["seek"] for segment in expected]
    words = [word for segment in segments for word in segment.words]
    reference = [word for segment in expected for word in segment["words"]]
    assert [word.text for word in words] == [text for text, *_ in reference]
    probabilities = [word.probability for word in words]
    np.testing.assert_allclose(probabilities, [word[3] for word in reference], atol=2e-3, rtol=0)
    times = [(each.start_s, each.end_s) for each in (*words, *segments)]
    expected_times = [*(word[1:3] for word in reference), *((each["start"], each["end"]) for each in expected)]
    np.testing.assert_allclose(times, expected_times, atol=TOLERANCE_S, rtol=0)


def test_known_text_is_aligned_like_its_transcript() -> None:
    """From a second pass over the text, as the reference does it; a transcript has them from decoding."""
    reference = [word for segment in GOLDEN[0]["segments"] for word in segment["words"]]
    words = recognizer("fp32").align(EXAMPLE, "".join(text for text, *_ in reference), vad=False)
    assert [word.text for word in words] == [text for text, *_ in reference]
    difference_s = np.abs(
        np.subtract([(word.start_s, word.end_s) for word in words], [w[1:3] for w in reference])
    )
    assert np.median(difference_s) <= TOLERANCE_S
