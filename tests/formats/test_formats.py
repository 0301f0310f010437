"""Tests of the exact text of every output format."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from harken.errors import OptionError
from harken.formats import FORMATS, Layout, Writer, dump_json, format_timestamp, from_json, render
from harken.results import Attempt, DroppedSegment, Segment, Transcript, UnwrittenSpeech, Word
from transcripts import segment, spoken


def transcript(*segments: Segment) -> Transcript:
    return Transcript(segments=segments, language="en", duration_s=12.5, model="tiny.en")


TWO = transcript(segment(0.0, 2.5, " And so, my fellow"), segment(2.5, 3661.007, " Americans."))

EXPECTED = {
    "txt": "And so, my fellow\nAmericans.\n",
    "srt": (
        "1\n00:00:00,000 --> 00:00:02,500\nAnd so, my fellow\n\n"
        "2\n00:00:02,500 --> 01:01:01,007\nAmericans.\n\n"
    ),
    "vtt": (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nAnd so, my fellow\n\n"
        "00:00:02.500 --> 01:01:01.007\nAmericans.\n\n"
    ),
    "tsv": "start\tend\ttext\n0\t2500\tAnd so, my fellow\n2500\t3661007\tAmericans.\n",
    "lrc": "[00:00.00]And so, my fellow\n[00:02.50]Americans.\n",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_segments_are_written_as_specified(name: str) -> None:
    assert "".join(render(TWO, name)) == EXPECTED[name]


@pytest.mark.timeout(60)  # less than a second; what grows with the square of the length takes minutes
@pytest.mark.parametrize("name", FORMATS)
def test_long_text_without_spaces_is_written(name: str) -> None:
    text = "".join(20_000 * character for character in ("a", "-", "\x1b", "\\", "{", "漢"))
    long = spoken((1.0, 2.0, text))
    for layout in (Layout(max_line_width=10, karaoke=True), Layout()):
        assert len("".join(render(transcript(long), name, layout))) > 100_000 or name == "rttm"


def test_times_are_rounded_only_once() -> None:
    assert format_timestamp(round(59.9996 * 1000)) == "00:01:00.000"
    assert Writer("lrc").segment(segment(59.996, 61.0, "x")) == "[01:00.00]x\n"
    assert "00:59:59,999 --> 01:00:00,000" in Writer("srt").segment(segment(3599.9994, 3599.9996, "x"))


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
FULL = Transcript(
    segments=(
        segment(0.0, 2.0, ' "Größe"\n', attempts=ATTEMPTS, words=WORDS, **HEARD),
        segment(2.0, 3.0, " b", index=1),
    ),
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
    "seek_s": 0.0, "attempts": [], "words": [], "language": None, "hallucination_score": 0.0,
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


def test_json_contains_every_field() -> None:
    assert json.loads("".join(render(FULL, "json"))) == FULL_IN_JSON


def test_json_without_newer_fields_is_read() -> None:
    document = json.loads("".join(render(TWO, "json")))
    for key in ("dropped", "speech", "task", "unwritten"):
        del document[key]
    document["key of a later version"] = 1
    assert from_json(document) == TWO


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["segments", 0, "start"], math.nan, "transcript.segments[0].start=nan: allowed is a time from 0 s to 1e+09 s"),
        (["segments", 0, "end"], None, "transcript.segments[0].end=None: allowed is a time from"),
        (["segments", 0, "end"], math.inf, "transcript.segments[0].end=inf: allowed is a time from"),
        (["segments", 1, "end"], 1.0, "transcript.segments[1].end=1.0: allowed is a time from its start, 2.5 s, on"),
        (["segments", 0, "seek_s"], -1, "transcript.segments[0].seek_s=-1: allowed is a time from"),
        (["duration"], -2, "transcript.duration=-2: allowed is a time from"),
        (["duration"], 10**400, "transcript.duration=1000000000000000"),
        (["speech"], [[2, 1]], "transcript.speech[0][1]=1.0: allowed is a time from its start, 2.0 s, on"),
        (["segments", 0, "id"], 10**6000, "transcript.segments[0].id=<int>: allowed is int of 64 bits"),
        (["segments", 0, "text"], [[[[[[[["a"]]]]]]]], "transcript.segments[0].text=[[[[[[[...]]]]]]]: allowed is str"),
        (["segments"], "x\n" * 10**6, "transcript.segments='x\\nx\\nx"),
        (["segments", 0, "words"], [{"start": -0.5}], "transcript.segments[0].words[0].start=-0.5: allowed is"),
        (["segments", 0, "tokens"], 5, "transcript.segments[0].tokens=5: allowed is tuple"),
        (["speech"], [[1.0]], "transcript.speech[0]=[1.0]: allowed is tuple"),
        (["segments", 0], [], "transcript.segments[0]=[]: allowed is Segment"),
        (["segments", 0], {}, "transcript.segments[0].id=None: allowed is a value, which is required"),
    ],
    ids=range(16),
)  # fmt: skip
def test_json_value_that_is_not_allowed_is_rejected_in_one_short_line(
    path: list[Any], value: object, message: str
) -> None:
    document = json.loads("".join(render(TWO, "json")))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(OptionError) as refused:
        from_json(document)
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "JSON that is not nested as deeply"),
        ('{"a":' * 100_000, "JSON that is not nested as deeply"),
        ("", "JSON; this is none: Expecting value"),
        (b"\xff\xfe\x00", "JSON; this is none: "),
        (
            '{"segments": [], "segments": [1]}',
            "transcript='segments': allowed is an object with every key once",
        ),
        ('{"duration": NaN}', "transcript='NaN': allowed is JSON, which has no such number"),
        ("1" * 5000, "JSON; this is none: Exceeds the limit"),
        ("[]", "transcript=[]: allowed is Transcript"),
    ],
    ids=range(8),
)
def test_text_that_is_no_transcript_is_rejected_in_one_short_line(text: str | bytes, message: str) -> None:
    with pytest.raises(OptionError) as refused:
        from_json(text)
    assert message in str(refused.value)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


def test_json_has_no_nan_and_escapes_what_cannot_be_seen() -> None:
    assert dump_json({"a": math.nan, "b": [(-math.inf, "\x9b\udcff\u202eé")]}) == (
        r'{"a": null, "b": [[null, "\u009b\udcff\u202eé"]]}'
    )


@pytest.mark.parametrize("name", FORMATS)
def test_output_after_an_interruption_is_complete(name: str) -> None:
    writer = Writer(name)
    written = writer.header() + writer.segment(FULL.segments[0])
    done = Transcript(segments=FULL.segments[:1], language="de", duration_s=3.25, model="tiny")
    assert written + writer.footer(done) == "".join(render(done, name))


def test_unknown_format_is_rejected_with_the_known_ones() -> None:
    formats = r"txt, srt, vtt, ass, lrc, tsv, words\.tsv, json, html, rttm"
    with pytest.raises(OptionError, match=f"format='doc': allowed is {formats}"):
        Writer("doc")


@pytest.mark.parametrize(
    ("start_s", "end_s"),
    [
        *((-0.1, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.nan), (0.0, math.inf), (math.inf, math.inf)),
        *((1e300, 1e301), (0.0, 1e301)),
    ],
)
def test_impossible_times_are_rejected(start_s: float, end_s: float) -> None:
    with pytest.raises(OptionError, match="a finite time from"):
        segment(start_s, end_s, "x")
    with pytest.raises(OptionError, match="a finite time from"):
        Word(start_s=start_s, end_s=end_s, text="x", probability=1.0)
