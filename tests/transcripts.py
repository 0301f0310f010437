"""Transcripts made by hand, of segments of a text or of words, and the cues of subtitles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from harken.results import Segment, Transcript, Word

CLOCK = r"(\d{2,}):([0-5]\d):([0-5]\d)[.,](\d{3})"
TIMES = re.compile(rf"{CLOCK} --> {CLOCK}")


def segment(start_s: float, end_s: float, text: str = "", **other: Any) -> Segment:
    """Return a segment of usual numbers."""
    numbers = {"temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": 0.01}
    fields = {"index": 0, "tokens": (), "seek_s": 0.0, **numbers, **other}
    return Segment(start_s=start_s, end_s=end_s, text=text, **fields)


def spoken(*spans: tuple[Any, ...], **other: Any) -> Segment:
    """Return a segment of words, each of its start, its end, its text and, where they are known, its speakers."""
    words = tuple(
        Word(start_s=start_s, end_s=end_s, text=text, probability=0.5, speakers=speakers[0] if speakers else ())
        for start_s, end_s, text, *speakers in spans
    )
    whole = {"start_s": spans[0][0], "end_s": spans[-1][1], "text": "".join(word.text for word in words)}
    return segment(**{**whole, "words": words, **other})


def transcript(*segments: Segment, **other: Any) -> Transcript:
    """Return a transcript in English."""
    return Transcript(
        **{"segments": segments, "language": "en", "duration_s": 9.0, "model": "tiny.en", **other}
    )


def blocks(content: str) -> list[list[str]]:
    """Return the lines of each block of subtitles."""
    return [block.split("\n") for block in content.split("\n\n") if block]


def parse_cue(lines: list[str]) -> tuple[int, int, str]:
    """Return start and end in milliseconds, and the text, of a cue of srt behind its number, or of vtt."""
    times = TIMES.fullmatch(lines[0])
    assert times is not None
    assert not any("-->" in line for line in lines[1:])
    hours, minutes, seconds, thousandths = np.array(times.groups(), int).reshape(2, 4).T
    start, end = (((hours * 60 + minutes) * 60 + seconds) * 1000 + thousandths).tolist()
    return start, end, "\n".join(lines[1:])


def parse_srt(content: str) -> Iterator[tuple[int, int, str]]:
    """Yield the cues of a file in the format srt."""
    for number, block in enumerate(blocks(content), 1):
        assert block[0] == str(number)
        assert "," in block[1]
        yield parse_cue(block[1:])
