"""Speakers in the output formats: the exact text that is written for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harken.formats import (
    Layout,
    RecordingLink,
    Writer,
    as_json,
    from_json,
    render,
    segment_from_json,
)
from harken.formats.rttm import read_rttm
from harken.results import Segment, Speaker, SpeakerTurn, Transcript
from transcripts import spoken


def said(start_s: float, *spans: tuple[str, tuple[str, ...]], speakers: tuple[str, ...]) -> Segment:
    """Return a segment of words of half a second, each with its speakers."""
    spans_s = [(start_s + i / 2, start_s + (i + 1) / 2, *span) for i, span in enumerate(spans)]
    return spoken(*spans_s, speakers=speakers)


def transcript(*segments: Segment, names: Sequence[str] = ("A", "B")) -> Transcript:
    return Transcript(
        segments=segments,
        language="en",
        duration_s=9.0,
        model="tiny.en",
        speakers=tuple(Speaker(name=name, seconds=1.5) for name in names),
        turns=(
            SpeakerTurn(start_s=0.0, end_s=1.0, speaker=names[0]),
            SpeakerTurn(start_s=0.75, end_s=2.0, speaker=names[-1]),
        ),
    )


A, B = ("A",), ("B",)
GOOD_DAY = said(0.0, (" Good", A), (" day.", A), speakers=A)
AND_YOU = said(1.0, (" And", A), (" you?", ("A", "B")), speakers=A)
YES = said(2.0, (" Yes.", B), speakers=B)
TALK = transcript(GOOD_DAY, AND_YOU, YES)

EXPECTED = {  # of formats that name a speaker once; of the others test_formats_roundtrip.py reads every name
    "txt": "A: Good day.\nAnd you?\nB: Yes.\n",
    "lrc": "[00:00.00]A: Good day.\n[00:01.00]And you?\n[00:02.00]B: Yes.\n",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_speakers_are_written_as_specified(name: str) -> None:
    assert "".join(render(TALK, name)) == EXPECTED[name]


def test_more_speakers_than_colours_share_them() -> None:
    names = [f"speaker {number}" for number in range(9)]
    many = transcript(*(said(i, (" hi", (name,)), speakers=(name,)) for i, name in enumerate(names)))
    events = [line for line in "".join(render(many, "ass")).splitlines() if line.startswith("Dialogue")]
    assert [event.split(",")[3] for event in events[-2:]] == ["Speaker 1", "Speaker 2"]
    assert events[-1].split(",")[4] == "speaker 8"


def test_writer_that_does_not_know_of_speakers_writes_the_usual_columns_and_styles() -> None:
    assert Writer("tsv").header() + Writer("tsv").segment(YES) == "start\tend\ttext\n2000\t2500\tYes.\n"
    assert "Default,B,0,0,0,,Yes." in Writer("ass").segment(YES)
    told = Writer("tsv", Layout(speakers=True))
    assert told.header() + told.segment(YES) == "start\tend\ttext\tspeaker\n2000\t2500\tYes.\tB\n"


@pytest.mark.parametrize(
    ("layout", "cues"),
    [
        ({"max_line_width": 80}, ["A: Good day.", "A: And you?", "B: Yes. Fine.", "A: Bye."]),
        ({"max_line_width": 11}, ["A: Good\nday.", "A: And you?", "B: Yes.\nFine.", "A: Bye."]),
    ],
)
def test_cues_made_of_words_end_at_a_change_of_speaker(layout: dict[str, Any], cues: list[str]) -> None:
    both = said(2.0, (" Yes.", B), (" Fine.", B), (" Bye.", A), speakers=B)
    content = "".join(render(transcript(GOOD_DAY, AND_YOU, both), "srt", Layout(**layout)))
    assert [block.split("\n", 2)[2] for block in content.split("\n\n")[:-1]] == cues


def test_name_that_is_longer_than_a_line_leaves_a_word_on_each() -> None:
    named = said(0.0, (" Good", ("Alexandra",)), (" day.", ("Alexandra",)), speakers=("Alexandra",))
    content = "".join(render(transcript(named), "srt", Layout(max_line_width=5)))
    assert content.split("\n", 2)[2] == "Alexandra: Good\nday.\n\n"


def test_label_comes_before_marks_of_words() -> None:
    marked = "".join(render(transcript(YES), "srt", Layout(highlight_words=True)))
    assert marked.endswith("\nB: <u>Yes.</u>\n\n")
    assert "".join(render(transcript(YES), "vtt", Layout(karaoke=True))).endswith("\n<v B><c>Yes.</c>\n\n")
    timed = "".join(render(transcript(YES), "lrc", Layout(karaoke=True)))
    assert timed == "[00:02.00]B: <00:02.00>Yes.<00:02.50>\n"


def test_rttm_names_the_recording_and_has_no_spaces_in_names() -> None:
    talk = RecordingLink(path=Path("a talk.of two.mp3"), transcript_folder=Path())
    content = "".join(render(transcript(names=["Anna Maria"]), "rttm", recording=talk))
    assert content.splitlines()[0] == "SPEAKER a_talk.of_two 1 0.000 1.000 <NA> <NA> Anna_Maria <NA> <NA>"


def test_rttm_is_read_back(tmp_path: Path) -> None:
    written = transcript(names=["Anna Maria", "\x85--> é"])
    path = tmp_path / "talk.rttm"
    path.write_text("".join(render(written, "rttm")), encoding="utf-8")
    assert read_rttm(path) == tuple(
        replace(turn, speaker="_".join(turn.speaker.split())) for turn in written.turns
    )


class TestJson:
    def test_speaker_is_a_key_and_those_at_once_are_beside_it(self) -> None:
        document = json.loads("".join(render(TALK, "json")))
        assert [entry["speaker"] for entry in document["segments"]] == ["A", "A", "B"]
        words = document["segments"][1]["words"]
        assert words[0]["speaker"] == words[1]["speaker"] == "A"
        assert ("speakers" in words[0], words[1]["speakers"]) == (False, ["A", "B"])
        assert document["speakers"] == [{"name": "A", "seconds": 1.5}, {"name": "B", "seconds": 1.5}]
        assert document["turns"][1] == {"start": 0.75, "end": 2.0, "speaker": "B"}

    def test_nobody_found_is_not_the_same_as_not_looked_for(self) -> None:
        nobody = Transcript(segments=(), language="en", duration_s=1.0, model="m", speakers=())
        assert json.loads("".join(render(nobody, "json")))["speakers"] == []
        assert from_json("".join(render(nobody, "json"))) == nobody

    def test_speaker_alone_is_read_as_other_programs_write_it(self) -> None:
        read = segment_from_json(as_json(YES) | {"speaker": "SPEAKER_01"})
        assert read.speakers == ("SPEAKER_01",)
        assert segment_from_json(as_json(YES) | {"speaker": None}).speakers == ()
