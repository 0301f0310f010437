"""Tests of the exact text of every output format, speakers included."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from harken.errors import OptionError
from harken.formats import (
    FORMATS,
    Layout,
    RecordingLink,
    as_json,
    format_timestamp,
    from_json,
    make_writer,
    render,
    segment_from_json,
)
from harken.formats.table_format import read_rttm
from harken.results import Attempt, DroppedSegment, Speaker, SpeakerTurn, UnwrittenSpeech, Word
from transcripts import segment, spoken, transcript


def rendered(transcript, name, **layout):
    return "".join(render(transcript, name, Layout(**layout)))


def said(start_s, *spans, speakers):
    """Return a segment of words of half a second, each with its speakers."""
    spans_s = [(start_s + i / 2, start_s + (i + 1) / 2, *span) for i, span in enumerate(spans)]
    return spoken(*spans_s, speakers=speakers)


def talk(*segments, names=("A", "B")):
    """Return a transcript with speakers."""
    spans = ((0.0, 1.0, names[0]), (0.75, 2.0, names[-1]))
    turns = (SpeakerTurn(start_s=start_s, end_s=end_s, speaker=name) for start_s, end_s, name in spans)
    speakers = tuple(Speaker(name=name, seconds=1.5) for name in names)
    return transcript(*segments, speakers=speakers, turns=tuple(turns))


TWO = transcript(segment(0.0, 2.5, " And so, my fellow"), segment(2.5, 3661.007, " Americans."))
A, B = ("A",), ("B",)
GOOD_DAY = said(0.0, (" Good", A), (" day.", A), speakers=A)
AND_YOU = said(1.0, (" And", A), (" you?", ("A", "B")), speakers=A)
YES = said(2.0, (" Yes.", B), speakers=B)
TALK = talk(GOOD_DAY, AND_YOU, YES)

# Of formats that write a speaker with every cue test_formats_roundtrip.py reads the names.
EXPECTED = [
    (TWO, "srt", "1\n00:00:00,000 --> 00:00:02,500\nAnd so, my fellow\n\n"
                 "2\n00:00:02,500 --> 01:01:01,007\nAmericans.\n\n"),
    (TWO, "vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nAnd so, my fellow\n\n"
                 "00:00:02.500 --> 01:01:01.007\nAmericans.\n\n"),
    (TWO, "tsv", "start\tend\ttext\n0\t2500\tAnd so, my fellow\n2500\t3661007\tAmericans.\n"),
    (TALK, "txt", "A: Good day.\nAnd you?\nB: Yes.\n"),
    (TALK, "lrc", "[00:00.00]A: Good day.\n[00:01.00]And you?\n[00:02.00]B: Yes.\n"),
]  # fmt: skip


@pytest.mark.parametrize(("of", "name", "text"), EXPECTED)
def test_segments_and_their_speakers_are_written_as_specified(of, name, text):
    assert rendered(of, name) == text


@pytest.mark.timeout(60)  # less than a second; what grows with the square of the length takes minutes
@pytest.mark.parametrize("name", FORMATS)
def test_long_text_without_spaces_is_written(name):
    text = "".join(20_000 * character for character in ("a", "-", "\x1b", "\\", "{", "漢"))
    long = spoken((1.0, 2.0, text))
    for layout in ({"max_line_width": 10, "karaoke": True}, {}):
        assert len(rendered(transcript(long), name, **layout)) > 100_000 or name == "rttm"


def test_times_are_rounded_only_once():
    assert format_timestamp(round(59.9996 * 1000)) == "00:01:00.000"
    assert make_writer("lrc").segment(segment(59.996, 61.0, "x")) == "[01:00.00]x\n"
    assert "00:59:59,999 --> 01:00:00,000" in make_writer("srt").segment(segment(3599.9994, 3599.9996, "x"))


LEFT_OUT = segment(2.5, 3.0, " Untertitel", index=2, tokens=(50364, 400))
ATTEMPTS = (
    Attempt(
        temperature=0.0,
        avg_logprob=math.nan,
        compression_ratio=3.0,
        no_speech_prob=0.5,
        reason="ratio 3.0 > 2.4",
    ),
    Attempt(temperature=0.2, avg_logprob=-0.5, compression_ratio=1.0, no_speech_prob=0.5),
)
WORDS = (Word(start_s=0.5, end_s=1.0, text=" Größe", probability=0.75),)
HEARD = {"avg_logprob": -math.inf, "language": "de", "hallucination_score": 0.25, "seek_s": 0.5}
FULL = transcript(
    segment(0.0, 2.0, ' "Größe"\n', attempts=ATTEMPTS, words=WORDS, **HEARD),
    segment(2.0, 3.0, " b", index=1),
    language="de",
    language_probability=0.875,
    duration_s=3.25,
    model="tiny",
    task="translate",
    dropped=(DroppedSegment(segment=LEFT_OUT, reason="a known phrase"),),
    speech=((0.25, 1.5),),
    unwritten=(UnwrittenSpeech(start_s=0.5, end_s=1.75, reason="no words"),),
)
PLAIN = {
    "tokens": [], "temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": 0.01,
    "seek_s": 0.0, "attempts": [], "language": None, "hallucination_score": 0.0,
}  # fmt: skip
FULL_IN_JSON = {
    "segments": [
        PLAIN | {
            "id": 0, "start": 0.0, "end": 2.0, "text": ' "Größe"\n', "avg_logprob": None, "seek_s": 0.5,
            "attempts": [
                {"temperature": 0.0, "avg_logprob": None, "compression_ratio": 3.0, "no_speech_prob": 0.5,
                 "reason": "ratio 3.0 > 2.4"},
                {"temperature": 0.2, "avg_logprob": -0.5, "compression_ratio": 1.0, "no_speech_prob": 0.5,
                 "reason": None},
            ],
            "words": [{"start": 0.5, "end": 1.0, "word": " Größe", "probability": 0.75}],
            "language": "de", "hallucination_score": 0.25,
        },
        PLAIN | {"id": 1, "start": 2.0, "end": 3.0, "text": " b"},
    ],
    "language": "de", "language_probability": 0.875, "duration": 3.25, "model": "tiny", "task": "translate",
    "dropped": [
        {"segment": PLAIN | {"id": 2, "start": 2.5, "end": 3.0, "text": " Untertitel", "tokens": [50364, 400]},
         "reason": "a known phrase"},
    ],
    "speech": [[0.25, 1.5]],
    "unwritten": [{"start": 0.5, "end": 1.75, "reason": "no words"}],
    "text": '"Größe"\n b',
}  # fmt: skip


def test_json_contains_every_field():
    assert json.loads(rendered(FULL, "json")) == FULL_IN_JSON


def test_json_without_newer_fields_is_read():
    document = json.loads(rendered(TWO, "json"))
    for key in ("dropped", "speech", "task", "unwritten"):
        del document[key]
    document["key of a later version"] = 1
    assert from_json(document) == TWO


REFUSED_VALUES = [
    (["segments", 0, "start"], math.nan, "segments[0].start=nan: allowed is a time from 0 s to 1e+09 s"),
    (["segments", 0, "end"], None, "segments[0].end=None: allowed is a time from"),
    (["segments", 0, "end"], math.inf, "segments[0].end=inf: allowed is a time from"),
    (["segments", 1, "end"], 1.0, "segments[1].end=1.0: allowed is a time from its start, 2.5 s, on"),
    (["segments", 0, "seek_s"], -1, "segments[0].seek_s=-1: allowed is a time from"),
    (["duration"], -2, "duration=-2: allowed is a time from"),
    (["duration"], 10**400, "duration=1000000000000000"),
    (["speech"], [[2, 1]], "speech[0][1]=1.0: allowed is a time from its start, 2.0 s, on"),
    (["segments", 0, "id"], 10**6000, "segments[0].id=<int"),
    (["segments", 0, "text"], [[[[[[[["a"]]]]]]]], "segments[0].text=[[[[[[[...]]]]]]]: allowed is str"),
    (["segments"], "x\n" * 10**6, "segments='x\\nx\\nx"),
    (["segments", 0, "words"], [{"start": -0.5}], "segments[0].words[0].start=-0.5: allowed is"),
    (["segments", 0, "tokens"], 5, "segments[0].tokens=5: allowed is a list"),
    (["speech"], [[1.0]], "speech[0]=[1.0]: allowed is a list of two times"),
    (["segments", 0], [], "segments[0]=[]: allowed is Segment"),
    (["segments", 0], {}, "segments[0].id=None: allowed is a value, which is required"),
]
REFUSED_TEXTS = [
    ("[" * 100_000, "JSON that is not nested as deeply"),
    ('{"a":' * 100_000, "JSON that is not nested as deeply"),
    ("", "JSON; this is none: Expecting value"),
    (b"\xff\xfe\x00", "JSON; this is none: "),
    ('{"segments": [], "segments": [1]}', "transcript='segments': allowed is an object with every key once"),
    ('{"duration": NaN}', "transcript='NaN': allowed is JSON, which has no such number"),
    ("1" * 5000, "JSON; this is none: Exceeds the limit"),
    ("[]", "transcript=[]: allowed is Transcript"),
]


def changed(path, value):
    """Return a document of JSON with another value at a path."""
    document = parent = json.loads(rendered(TWO, "json"))
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        *((changed(path, value), f"transcript.{message}") for path, value, message in REFUSED_VALUES),
        *REFUSED_TEXTS,
    ],
    ids=range(len(REFUSED_VALUES) + len(REFUSED_TEXTS)),
)
def test_json_that_is_no_transcript_is_rejected_in_one_short_line(document, message):
    with pytest.raises(OptionError) as refused:
        from_json(document)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", FORMATS)
def test_output_after_an_interruption_is_complete(name):
    writer = make_writer(name)
    written = writer.header() + writer.segment(FULL.segments[0])
    done = transcript(FULL.segments[0])
    assert written + writer.footer(done) == rendered(done, name)


def test_unknown_format_is_rejected_with_the_known_ones():
    formats = r"txt, srt, vtt, ass, lrc, tsv, words\.tsv, json, html, rttm"
    with pytest.raises(OptionError, match=f"format='doc': allowed is {formats}"):
        make_writer("doc")


@pytest.mark.parametrize(
    ("start_s", "end_s"),
    [
        *((-0.1, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.nan), (0.0, math.inf), (math.inf, math.inf)),
        *((1e300, 1e301), (0.0, 1e301)),
    ],
)
def test_impossible_times_are_rejected(start_s, end_s):
    with pytest.raises(OptionError, match="a finite time from"):
        segment(start_s, end_s, "x")
    with pytest.raises(OptionError, match="a finite time from"):
        Word(start_s=start_s, end_s=end_s, text="x", probability=1.0)


def test_more_speakers_than_colours_share_them():
    names = [f"speaker {number}" for number in range(9)]
    many = talk(*(said(i, (" hi", (name,)), speakers=(name,)) for i, name in enumerate(names)))
    events = [line for line in rendered(many, "ass").splitlines() if line.startswith("Dialogue")]
    assert [event.split(",")[3] for event in events[-2:]] == ["Speaker 1", "Speaker 2"]
    assert events[-1].split(",")[4] == "speaker 8"


def test_writer_that_does_not_know_of_speakers_writes_the_usual_columns_and_styles():
    assert (
        make_writer("tsv").header() + make_writer("tsv").segment(YES) == "start\tend\ttext\n2000\t2500\tYes.\n"
    )
    assert "Default,B,0,0,0,,Yes." in make_writer("ass").segment(YES)
    told = make_writer("tsv", Layout(speakers=True))
    assert told.header() + told.segment(YES) == "start\tend\ttext\tspeaker\n2000\t2500\tYes.\tB\n"


def test_name_that_is_longer_than_a_line_leaves_a_word_on_each():
    named = said(0.0, (" Good", ("Alexandra",)), (" day.", ("Alexandra",)), speakers=("Alexandra",))
    content = rendered(talk(named), "srt", max_line_width=5)
    assert content.split("\n", 2)[2] == "Alexandra: Good\nday.\n\n"


def test_label_comes_before_marks_of_words():
    assert rendered(talk(YES), "srt", highlight_words=True).endswith("\nB: <u>Yes.</u>\n\n")
    assert rendered(talk(YES), "vtt", karaoke=True).endswith("\n<v B><c>Yes.</c>\n\n")
    assert rendered(talk(YES), "lrc", karaoke=True) == "[00:02.00]B: <00:02.00>Yes.<00:02.50>\n"


def test_rttm_names_the_recording_and_has_no_spaces_in_names():
    link = RecordingLink(path=Path("a talk.of two.mp3"), transcript_folder=Path())
    content = "".join(render(talk(names=["Anna Maria"]), "rttm", recording=link))
    assert content.splitlines()[0] == "SPEAKER a_talk.of_two 1 0.000 1.000 <NA> <NA> Anna_Maria <NA> <NA>"


def test_rttm_is_read_back(tmp_path):
    written = talk(names=["Anna Maria", "\x85--> é"])
    path = tmp_path / "talk.rttm"
    path.write_text(rendered(written, "rttm"), encoding="utf-8")
    assert read_rttm(path) == tuple(
        replace(turn, speaker="_".join(turn.speaker.split())) for turn in written.turns
    )


def test_json_has_the_main_speaker_as_a_key_and_those_at_once_beside_it():
    document = json.loads(rendered(TALK, "json"))
    assert [entry["speaker"] for entry in document["segments"]] == ["A", "A", "B"]
    words = document["segments"][1]["words"]
    assert words[0]["speaker"] == words[1]["speaker"] == "A"
    assert ("speakers" in words[0], words[1]["speakers"]) == (False, ["A", "B"])
    assert document["speakers"] == [{"name": "A", "seconds": 1.5}, {"name": "B", "seconds": 1.5}]
    assert document["turns"][1] == {"start": 0.75, "end": 2.0, "speaker": "B"}


def test_nobody_found_is_not_the_same_as_not_looked_for():
    nobody = transcript(speakers=())
    assert json.loads(rendered(nobody, "json"))["speakers"] == []
    assert from_json(rendered(nobody, "json")) == nobody


def test_speaker_alone_is_read_as_other_programs_write_it():
    for speaker, speakers in (("SPEAKER_01", ("SPEAKER_01",)), (None, ())):
        assert segment_from_json(as_json(YES) | {"speaker": speaker}).speakers == speakers
