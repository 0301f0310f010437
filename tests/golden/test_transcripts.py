"""Whole transcriptions against those of openai-whisper (see record_transcripts.py)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from transcript_inputs import AS_REFERENCE, CASES, digest, need, samples

from harken.results import Transcript, Word
from harken.text import Tokenizer
from real_models import larger_recognizer, recognizer

GOLDEN = json.loads(Path(__file__).with_name("transcripts.json").read_text(encoding="utf-8"))
STEP_S = 0.02 + 1e-6
NIGHTLY = {
    "chinese, base, beam",
    "book, prompted, each window alone",
    "german, words",
    "french, base, words",
    "russian, small",
    "chinese into English, small, beam",
    "book, prompted",
    "french, patient beam",
}
"""Cases that take ten seconds and more, of which a smaller model or another recording has the like."""
pytestmark = pytest.mark.real


def transcribe(name: str, precision: str = "fp32") -> Transcript:
    case = CASES[name]
    need(case.recording)
    model = recognizer(precision) if case.model == "tiny.en" else larger_recognizer(case.model)
    return model.transcribe(samples(case.recording), **AS_REFERENCE | case.options).result()


@pytest.mark.parametrize("recording", GOLDEN["sha256_of_files"])
def test_recordings_are_those_of_the_reference(recording: str) -> None:
    need(recording)
    assert digest(recording) == GOLDEN["sha256_of_files"][recording]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name in CASES]
)
def test_float32_gives_the_tokens_times_and_probabilities_of_the_reference(name: str) -> None:
    transcript, golden = transcribe(name), GOLDEN["transcripts"][name]
    segments, expected = transcript.segments, golden["segments"]
    assert transcript.language == golden["language"]
    assert [list(segment.tokens) for segment in segments] == [
        golden_segment["tokens"] for golden_segment in expected
    ]
    assert [segment.text for segment in segments] == [golden_segment["text"] for golden_segment in expected]
    for segment, golden_segment in zip(segments, expected, strict=True):
        if "words" in golden_segment:
            assert_words(segment.words, golden_segment["words"])
            # The reference leaves a segment's time where it has moved a word to it.
            golden_segment = {
                **golden_segment,
                "start": segment.words[0].start_s,
                "end": segment.words[-1].end_s,
            }
        assert segment.start_s == pytest.approx(golden_segment["start"], abs=1e-6)
        # The reference lets a segment end in the padding; here it ends with the recording.
        assert segment.end_s == pytest.approx(min(golden_segment["end"], transcript.duration_s), abs=1e-6)
        assert segment.seek_s == golden_segment["seek"] / 100
        assert segment.avg_logprob == pytest.approx(golden_segment["avg_logprob"], abs=1e-3)
        assert segment.no_speech_prob == pytest.approx(golden_segment["no_speech_prob"], abs=1e-3)


def assert_words(words: Sequence[Word], expected: Sequence[tuple[float, float, str, float]]) -> None:
    """Compare words one by one: texts, times within one step, probabilities."""
    assert [word.text for word in words] == [text for _, _, text, _ in expected]
    for word, (start_s, end_s, text, probability) in zip(words, expected, strict=True):
        assert word.start_s == pytest.approx(start_s, abs=STEP_S), text
        assert word.end_s == pytest.approx(end_s, abs=STEP_S), text
        assert word.probability == pytest.approx(probability, abs=2e-3), text


@pytest.mark.parametrize("name", ["jfk", "jfk, beam"])
def test_int8_gives_the_words_of_the_reference(name: str) -> None:
    """Not its times and stops: it prefers one timestamp by 0.004 of log-probability, which int8 does not."""
    expected = "".join(golden_segment["text"] for golden_segment in GOLDEN["transcripts"][name]["segments"])
    assert words(transcribe(name, "int8").text) == words(expected)


def words(text: str) -> list[str]:
    return "".join(character for character in text if character.isalnum() or character == " ").split()


def test_recorded_tokens_and_texts_belong_together() -> None:
    for name, case in CASES.items():
        tokenizer = Tokenizer.builtin(51864 if case.model == "tiny.en" else 51865)
        recorded = GOLDEN["transcripts"][name]["segments"]
        assert [tokenizer.decode(golden_segment["tokens"]) for golden_segment in recorded] == [
            golden_segment["text"] for golden_segment in recorded
        ]
    assert GOLDEN["transcripts"].keys() == CASES.keys()
