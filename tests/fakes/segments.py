"""Segments of which only some fields matter."""

from __future__ import annotations

from typing import Any

from harken.results import Segment


def made_segment(start_s: float, end_s: float, text: str = "", **fields: Any) -> Segment:
    """Make a segment with some fields; of the others each has a value that is allowed."""
    given = {
        "index": 0, "tokens": (), "temperature": 0.0, "avg_logprob": 0.0, "compression_ratio": 1.0,
        "no_speech_prob": 0.0, "seek_s": 0.0, **fields,
    }  # fmt: skip
    return Segment(start_s=start_s, end_s=end_s, text=text, **given)
