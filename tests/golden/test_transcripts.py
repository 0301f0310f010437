"""Whole transcriptions against those of openai-whisper (see record_whisper.py)."""

import numpy as np
import pytest
from goldens import read_json
from transcript_inputs import AS_REFERENCE, CASES, digest, need, samples

from real_models import larger_recognizer, recognizer, words

GOLDEN = read_json("transcripts")
WORD_S = 0.25
"""Median distance from the reference's words, which come 0.1 s late (docs/decisions/words.md)."""
BY_DAY = {
    *("jfk", "jfk, initial prompt", "long, beam", "long, no timestamps", "long, clips"),
    *("german into English", "russian", "chinese, words", "jfk, words", "german/de_rhasspy-0802.flac, words"),
}
"""Every option and kind of script once; larger models, longer recordings and more pairs of options run at night."""
pytestmark = pytest.mark.real


def transcribe(name, precision="fp32"):
    case = CASES[name]
    need(case.recording)
    model = recognizer(precision) if case.model == "tiny.en" else larger_recognizer(case.model)
    return model.transcribe(samples(case.recording), **AS_REFERENCE | case.options).result()


@pytest.mark.parametrize("recording", GOLDEN["sha256_of_files"])
def test_recordings_are_those_of_the_reference(recording):
    need(recording)
    assert digest(recording) == GOLDEN["sha256_of_files"][recording]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in BY_DAY)) for name in CASES]
)
def test_float32_gives_the_tokens_times_and_probabilities_of_the_reference(name):
    transcript, golden = transcribe(name), GOLDEN["transcripts"][name]
    segments, expected = list(transcript.segments), golden["segments"]
    if CASES[name].options.get("word_timestamps"):
        # The next window begins behind the last word, and times of words differ on purpose (docs/decisions/words.md).
        segments = [segment for segment in segments if segment.seek_s == 0]
        expected = [recorded for recorded in expected if recorded["seek"] == 0]
    assert transcript.language == golden["language"]
    assert [list(segment.tokens) for segment in segments] == [recorded["tokens"] for recorded in expected]
    assert [segment.text for segment in segments] == [recorded["text"] for recorded in expected]
    for segment, recorded in zip(segments, expected, strict=True):
        start_s, end_s = recorded["start"], recorded["end"]
        if "words" in recorded:
            assert_words(segment.words, recorded["words"])
            # The reference leaves a segment's time where it has moved a word to it.
            start_s, end_s = segment.words[0].start_s, segment.words[-1].end_s
        assert segment.start_s == pytest.approx(start_s, abs=1e-6)
        # The reference lets a segment end in the padding; here it ends with the recording.
        assert segment.end_s == pytest.approx(min(end_s, transcript.duration_s), abs=1e-6)
        assert segment.seek_s == recorded["seek"] / 100
        for name in {"avg_logprob", "no_speech_prob"} & recorded.keys():
            assert getattr(segment, name) == pytest.approx(recorded[name], abs=1e-3)


def assert_words(actual, expected):
    """Compare words one by one: texts, probabilities, and in the middle of the differences their times."""
    assert [word.text for word in actual] == [text for _, _, text, _ in expected]
    for word, (_, _, text, probability) in zip(actual, expected, strict=True):
        assert word.probability == pytest.approx(probability, abs=2e-3), text
    times_s = np.array([(word.start_s, word.end_s) for word in actual])
    assert np.median(np.abs(times_s - [word[:2] for word in expected])) <= WORD_S


@pytest.mark.parametrize("name", ["jfk", "jfk, beam"])
def test_int8_gives_the_words_of_the_reference(name):
    """Not its times and stops: it prefers one timestamp by 0.004 of log-probability, which int8 does not."""
    expected = "".join(recorded["text"] for recorded in GOLDEN["transcripts"][name]["segments"])
    assert words(transcribe(name, "int8").text) == words(expected)


def test_every_case_is_recorded():
    assert GOLDEN["transcripts"].keys() == CASES.keys()
