"""What a writer writes, a reader of that form reads back."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.formats import FORMATS, render
from harken.results import Attempt, Segment, Transcript, Word

Cue = tuple[int, int, str]  # start and end in milliseconds, text

CLOCK = r"(\d{2,}):([0-5]\d):([0-5]\d)[.,](\d{3})"
TIMES = re.compile(rf"{CLOCK} --> {CLOCK}")


def milliseconds(hours: str, minutes: str, seconds: str, thousandths: str) -> int:
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1000 + int(thousandths)


def parse_cue(lines: list[str]) -> Cue:
    times = TIMES.fullmatch(lines[0])
    assert times is not None
    return milliseconds(*times.groups()[:4]), milliseconds(*times.groups()[4:]), "\n".join(lines[1:])


def blocks(content: str) -> list[list[str]]:
    return [block.split("\n") for block in content.split("\n\n") if block]


def parse_srt(content: str) -> Iterator[Cue]:
    for number, block in enumerate(blocks(content), 1):
        assert block[0] == str(number)
        assert "," in block[1]
        yield parse_cue(block[1:])


def parse_vtt(content: str) -> Iterator[Cue]:
    header, *cues = blocks(content)
    assert header == ["WEBVTT"]
    for start, end, text in map(parse_cue, cues):
        assert "<" not in text
        yield start, end, html.unescape(text)


def parse_tsv(content: str) -> Iterator[Cue]:
    header, *rows = content.removesuffix("\n").split("\n")
    assert header == "start\tend\ttext"
    for row in rows:
        start, end, text = row.split("\t")
        yield int(start), int(end), text


def parse_txt(content: str) -> Iterator[str]:
    yield from content.split("\n")[:-1]


def parse_lrc(content: str) -> Iterator[tuple[int, str]]:
    for line in content.split("\n")[:-1]:
        tag = re.match(r"\[(\d{2,}):([0-5]\d)\.(\d\d)\](?!\[)", line)
        assert tag is not None
        minutes, seconds, hundredths = map(int, tag.groups())
        yield (minutes * 60 + seconds) * 100 + hundredths, line[tag.end() :].strip()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.text(
    "ab-->< &;lt\t\r\n\x85[]1:.", max_size=30
)
numbers = st.floats()
probabilities = st.floats(0, 1)


@st.composite
def spans(draw: st.DrawFn) -> dict[str, float]:
    start_s = draw(st.floats(0, 5e5))
    return {"start_s": start_s, "end_s": start_s + draw(st.floats(0, 5e3))}


attempts = st.builds(
    Attempt,
    temperature=probabilities,
    avg_logprob=numbers,
    compression_ratio=numbers,
    no_speech_prob=probabilities,
    reason=st.none() | texts,
)
words = st.builds(lambda span, **other: Word(**span, **other), spans(), text=texts, probability=probabilities)
segments = st.builds(
    lambda span, **other: Segment(**span, **other),
    spans(),
    index=st.integers(0, 1000),
    text=texts,
    tokens=st.lists(st.integers(0, 51865), max_size=3).map(tuple),
    temperature=probabilities,
    avg_logprob=numbers,
    compression_ratio=numbers,
    no_speech_prob=probabilities,
    seek_s=st.floats(0, 5e5),
    attempts=st.lists(attempts, max_size=2).map(tuple),
    words=st.lists(words, max_size=2).map(tuple),
)
transcripts = st.builds(
    Transcript,
    segments=st.lists(segments, max_size=4).map(tuple),
    language=st.sampled_from(["en", "de"]),
    language_probability=st.none() | probabilities,
    duration_s=st.floats(0, 1e6),
    model=texts,
    task=st.sampled_from(["transcribe", "translate"]),
)


def spoken(transcript: Transcript) -> list[Segment]:
    return [segment for segment in transcript.segments if segment.text.strip()]


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def one_line(segment: Segment) -> str:
    return " ".join(lines(segment.text)).replace("\t", " ")


def times_ms(segment: Segment) -> tuple[int, int]:
    return round(segment.start_s * 1000), round(segment.end_s * 1000)


@pytest.mark.parametrize(
    ("name", "parse", "arrow"), [("srt", parse_srt, "->"), ("vtt", parse_vtt, None)], ids=["srt", "vtt"]
)
def test_cues(name: str, parse: Callable[[str], Iterator[Cue]], arrow: str | None) -> None:
    @given(transcript=transcripts)
    def check(transcript: Transcript) -> None:
        cues = list(parse("".join(render(transcript, name))))
        assert len(cues) == len(spoken(transcript))
        for (start, end, text), segment in zip(cues, spoken(transcript), strict=True):
            assert start == times_ms(segment)[0]
            assert end == max(times_ms(segment)[1], start + 1)
            expected = "\n".join(lines(segment.text))
            assert text == (expected if arrow is None else re.sub("-{2,}>", arrow, expected))

    check()


@given(transcript=transcripts)
def test_tsv(transcript: Transcript) -> None:
    rows = list(parse_tsv("".join(render(transcript, "tsv"))))
    assert rows == [(*times_ms(segment), one_line(segment)) for segment in spoken(transcript)]


@given(transcript=transcripts)
def test_txt(transcript: Transcript) -> None:
    assert list(parse_txt("".join(render(transcript, "txt")))) == [*map(one_line, spoken(transcript))]


@given(transcript=transcripts)
def test_lrc(transcript: Transcript) -> None:
    tags = list(parse_lrc("".join(render(transcript, "lrc"))))
    assert tags == [(round(segment.start_s * 100), one_line(segment)) for segment in spoken(transcript)]


def finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


@given(transcript=transcripts)
def test_json(transcript: Transcript) -> None:
    content = "".join(render(transcript, "json"))
    read = json.loads(content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (read["text"], read["model"], read["duration"]) == (
        transcript.text,
        transcript.model,
        transcript.duration_s,
    )
    assert len(read["segments"]) == len(transcript.segments)
    for got, segment in zip(read["segments"], transcript.segments, strict=True):
        assert (got["id"], got["start"], got["end"]) == (segment.index, segment.start_s, segment.end_s)
        assert (got["text"], tuple(got["tokens"])) == (segment.text, segment.tokens)
        assert got["avg_logprob"] == finite(segment.avg_logprob)
        assert [a["reason"] for a in got["attempts"]] == [a.reason for a in segment.attempts]
        assert [(w["word"], w["start"], w["end"]) for w in got["words"]] == [
            (w.text, w.start_s, w.end_s) for w in segment.words
        ]


@given(transcript=transcripts, name=st.sampled_from([*FORMATS]))
def test_every_form_is_text_that_utf_8_can_hold(transcript: Transcript, name: str) -> None:
    content = "".join(render(transcript, name))
    assert content.encode().decode() == content
