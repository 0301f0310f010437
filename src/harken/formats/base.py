"""What every form of a transcript can do."""

from __future__ import annotations

from typing import Protocol

from harken.results import Segment, Transcript


class TranscriptFormat(Protocol):
    """One transcript on its way into one form; every call gives the next piece of text."""

    def header(self) -> str:
        """What comes before the first segment."""
        ...

    def segment(self, segment: Segment) -> str:
        """What the next segment adds; it may be held back until a later call."""
        ...

    def footer(self, transcript: Transcript) -> str:
        """What comes after the last segment."""
        ...


def without_blank_lines(text: str) -> str:
    """Text without the blank lines that would end a cue."""
    return "\n".join(line for line in map(str.strip, text.splitlines()) if line)


def single_line(text: str) -> str:
    """Text on one line, without tabs."""
    return without_blank_lines(text).replace("\n", " ").replace("\t", " ")


def to_milliseconds(seconds: float) -> int:
    """Time in whole milliseconds."""
    return round(seconds * 1000)


def to_centiseconds(seconds: float) -> int:
    """Time in whole hundredths of a second."""
    return round(seconds * 100)


def format_timestamp(milliseconds: int, decimal_marker: str = ".") -> str:
    """Time as ``hh:mm:ss.mmm``; the hours take more than two digits where they need them."""
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{decimal_marker}{milliseconds:03}"
