"""Long-form transcripts against what openai-whisper transcribed (see record_transcripts.py)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from transcript_inputs import CASES, EXAMPLE, samples

from harken.results import Transcript
from harken.text import Tokenizer
from real import recognizer

GOLDEN = json.loads(Path(__file__).with_name("transcripts.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.real


def transcribe(precision: str, name: str) -> Transcript:
    case = CASES[name]
    options = {"language": "en", "temperatures": (0.0,), **case.options}
    return recognizer(precision).transcribe(samples(case.recording), **options).result()


@pytest.mark.parametrize("recording", ["jfk", "long"])
def test_recordings_are_those_of_the_reference(recording: str) -> None:
    assert hashlib.sha256(EXAMPLE.read_bytes()).hexdigest() == GOLDEN["sha256"]["examples/jfk.flac"]
    digest = hashlib.sha256(samples(recording).tobytes()).hexdigest()
    assert digest == GOLDEN["sha256_of_samples"][recording]


@pytest.mark.parametrize("name", CASES)
def test_float32_gives_the_tokens_times_and_probabilities_of_the_reference(name: str) -> None:
    transcript, expected = transcribe("fp32", name), GOLDEN["transcripts"][name]
    segments = transcript.segments
    assert [list(segment.tokens) for segment in segments] == [its["tokens"] for its in expected]
    assert [segment.text for segment in segments] == [its["text"] for its in expected]
    for segment, its in zip(segments, expected, strict=True):
        assert segment.start_s == pytest.approx(its["start"], abs=1e-6)
        # The reference lets a segment end in the padding; here it ends with the recording.
        assert segment.end_s == pytest.approx(min(its["end"], transcript.duration_s), abs=1e-6)
        assert segment.seek_s == its["seek"] / 100
        assert segment.avg_logprob == pytest.approx(its["avg_logprob"], abs=1e-3)
        assert segment.no_speech_prob == pytest.approx(its["no_speech_prob"], abs=1e-3)


@pytest.mark.parametrize("name", ["jfk", "jfk, beam"])
def test_int8_gives_the_words_of_the_reference(name: str) -> None:
    """Not its times and stops: it prefers one timestamp by 0.004 of log-probability, which int8 does not."""
    expected = "".join(its["text"] for its in GOLDEN["transcripts"][name])
    assert words(transcribe("int8", name).text) == words(expected)


def words(text: str) -> list[str]:
    return "".join(character for character in text if character.isalnum() or character == " ").split()


def test_recorded_tokens_and_texts_belong_together() -> None:
    tokenizer = Tokenizer.builtin(51864)
    recorded = [its for transcript in GOLDEN["transcripts"].values() for its in transcript]
    assert [tokenizer.decode(its["tokens"]) for its in recorded] == [its["text"] for its in recorded]
    assert GOLDEN["transcripts"].keys() == CASES.keys()
