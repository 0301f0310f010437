"""What must be equal in the segments of two transcriptions of the same audio, however they came about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harken.results import Segment, Word


def comparable(segments: Iterable[Segment], offset_s: float = 0.0) -> list[tuple[Any, ...]]:
    """Return the fields that must be equal, times counted from `offset_s`; another batch may change last digits."""

    def times(timed: Segment | Word) -> tuple[float, float]:
        return round(timed.start_s - offset_s, 6), round(timed.end_s - offset_s, 6)

    return [
        (
            *(segment.tokens, segment.text, segment.language, times(segment)),
            *(round(segment.seek_s - offset_s, 6), round(segment.avg_logprob, 3)),
            [(attempt.temperature, attempt.reason is None) for attempt in segment.attempts],
            [(word.text, times(word)) for word in segment.words],
        )
        for segment in segments
    ]
