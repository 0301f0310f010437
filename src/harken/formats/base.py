"""The interface of all output formats, and helpers for text and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from harken.formats.characters import printable, replace_controls
from harken.results import Segment, Transcript


class TranscriptFormat(Protocol):
    """A writer of one transcript in one format; each call returns the next part of the text."""

    def header(self) -> str:
        """Return the text before the first segment."""
        ...

    def header_chunks(self) -> Iterator[str]:
        """Yield the text before the first segment, in pieces if it is long."""
        yield self.header()

    def segment(self, segment: Segment) -> str:
        """Return the text that the next segment adds; a later call may return part of it."""
        ...

    def footer(self, transcript: Transcript) -> str:
        """Return the text after the last segment."""
        ...


def split_lines(text: str) -> list[str]:
    """Split text at line breaks of all kinds, and replace the other control characters."""
    return [replace_controls(line) for line in text.splitlines()]


def without_blank_lines(text: str) -> str:
    """Return text without blank lines, which would end a cue."""
    return "\n".join(line for line in map(str.strip, split_lines(text)) if line)


def single_line(text: str) -> str:
    """Return text on one line, without tabs."""
    return without_blank_lines(text).replace("\n", " ").replace("\t", " ")


def main_speaker(speakers: Sequence[str]) -> str:
    """Return the name of who speaks most, on one line; an empty text if nobody is known."""
    return printable(" ".join(speakers[0].split())) if speakers else ""


def to_milliseconds(seconds: float) -> int:
    """Round a time to milliseconds."""
    return round(seconds * 1000)


def to_centiseconds(seconds: float) -> int:
    """Round a time to hundredths of a second."""
    return round(seconds * 100)


def format_timestamp(milliseconds: int, decimal_marker: str = ".") -> str:
    """Format a time as ``hh:mm:ss.mmm``, with more than two digits for the hours if needed."""
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{decimal_marker}{milliseconds:03}"
