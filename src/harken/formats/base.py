"""The interface and the layout options of all output formats, and helpers for text and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from harken.errors import OptionError
from harken.formats.characters import printable, replace_controls
from harken.option_types import check, option
from harken.results import Segment, Transcript


class TranscriptFormat(Protocol):
    """A writer of one transcript in one format; each call returns the next part of the text, by default nothing."""

    def header(self) -> str:
        """Return the text before the first segment."""
        return ""

    def header_chunks(self) -> Iterator[str]:
        """Yield the text before the first segment, in pieces if it is long."""
        yield self.header()

    def segment(self, segment: Segment) -> str:
        """Return the text that the next segment adds; a later call may return part of it."""
        return ""

    def footer(self, transcript: Transcript) -> str:
        """Return the text after the last segment."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Options for line breaks and word times; the defaults leave segments unchanged.

    A segment without words is always written as a whole.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    max_line_width: int | None = option(
        None, "Characters a line of srt, vtt, ass and lrc; a longer one is broken between words.", low=1
    )
    max_line_count: int | None = option(
        None, "Lines a cue; together with the width above, cues are filled without regard to segments.", low=1
    )
    max_words_per_line: int | None = option(
        None, "Words a cue; without effect on cues that are filled without regard to segments.", low=1
    )
    highlight_words: bool = option(False, "In srt and vtt underline each word while it is spoken.")
    karaoke: bool = option(False, "In vtt, lrc and ass put the time of every word inside its line.")
    embed_audio: bool = option(False, "Put the recording into the html page, instead of a link to it.")
    speakers: bool = option(
        False, "Prepare tsv, words.tsv and ass for speakers, which segments alone tell too late."
    )

    def __post_init__(self) -> None:
        check(self)
        if self.highlight_words and self.karaoke:
            raise OptionError("karaoke", True, "False together with highlight_words=True")

    @property
    def breaks_lines(self) -> bool:
        """True if cues are made of words, not of segments."""
        return (self.max_line_width, self.max_line_count, self.max_words_per_line) != (None, None, None)

    @property
    def needs_words(self) -> bool:
        """True if segments need words."""
        return self.breaks_lines or self.highlight_words or self.karaoke


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
