"""Segments made by hand, of a text or of words."""

from __future__ import annotations

from typing import Any

from harken.results import Segment, Word


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
