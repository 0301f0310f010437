"""The formats with one row per segment or word: txt, tsv and words.tsv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harken.formats.base import TranscriptFormat, single_line, to_milliseconds
from harken.results import Segment, Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat(TranscriptFormat):
    """A format whose rows each depend on one segment only.

    Parameters
    ----------
    header_row : str
        The first row, if any.
    format_segment : callable
        Formats a segment as rows.
    """

    header_row: str = ""
    format_segment: Callable[[Segment], str]

    def header(self) -> str:
        """Return the header row, if any."""
        return self.header_row

    def segment(self, segment: Segment) -> str:
        """Return the rows of a segment; empty if it has no text."""
        return self.format_segment(segment) if segment.text.strip() else ""

    def footer(self, transcript: Transcript) -> str:
        """Return an empty text: tables have no footer."""
        return ""


def _txt(segment: Segment) -> str:
    return f"{single_line(segment.text)}\n"


def _tsv(segment: Segment) -> str:
    return (
        f"{to_milliseconds(segment.start_s)}\t{to_milliseconds(segment.end_s)}\t{single_line(segment.text)}\n"
    )


def _words(segment: Segment) -> str:
    rows = (
        (
            to_milliseconds(word.start_s),
            to_milliseconds(word.end_s),
            f"{word.probability:.4f}",
            single_line(word.text),
        )
        for word in segment.words
    )
    return "".join(f"{start}\t{end}\t{probability}\t{text}\n" for start, end, probability, text in rows)


TXT = TableFormat(format_segment=_txt)
TSV = TableFormat(header_row="start\tend\ttext\n", format_segment=_tsv)
WORDS = TableFormat(header_row="start\tend\tprobability\tword\n", format_segment=_words)
