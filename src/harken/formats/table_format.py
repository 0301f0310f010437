"""The forms of one row a segment or a word: txt, tsv and words.tsv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harken.formats.base import single_line, to_milliseconds
from harken.results import Segment, Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """`harken.formats.base.Form` in which each segment stands for itself.

    Parameters
    ----------
    head : str
        What comes first.
    rows : callable
        What a segment becomes.
    """

    header_row: str = ""
    format_segment: Callable[[Segment], str]

    def header(self) -> str:
        """The head of the table, if it is one."""
        return self.header_row

    def segment(self, segment: Segment) -> str:
        """Its rows; none where it has no text."""
        return self.format_segment(segment) if segment.text.strip() else ""

    def footer(self, transcript: Transcript) -> str:
        """Nothing."""
        return ""


def _txt(segment: Segment) -> str:
    return f"{single_line(segment.text)}\n"


def _tsv(segment: Segment) -> str:
    return (
        f"{to_milliseconds(segment.start_s)}\t{to_milliseconds(segment.end_s)}\t{single_line(segment.text)}\n"
    )


def _words(segment: Segment) -> str:
    return "".join(
        f"{to_milliseconds(word.start_s)}\t{to_milliseconds(word.end_s)}\t{word.probability:.4f}\t{single_line(word.text)}\n"
        for word in segment.words
    )


TXT = TableFormat(format_segment=_txt)
TSV = TableFormat(header_row="start\tend\ttext\n", format_segment=_tsv)
WORDS = TableFormat(header_row="start\tend\tprobability\tword\n", format_segment=_words)
