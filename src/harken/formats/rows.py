"""The forms of one row a segment or a word: txt, tsv and words.tsv."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harken.formats.plain import line, milliseconds
from harken.results import Segment, Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """`harken.formats.form.Form` in which each segment stands for itself.

    Parameters
    ----------
    head : str
        What comes first.
    rows : callable
        What a segment becomes.
    """

    head: str = ""
    rows: Callable[[Segment], str]

    def header(self) -> str:
        """The head of the table, if it is one."""
        return self.head

    def segment(self, segment: Segment) -> str:
        """Its rows; none where it has no text."""
        return self.rows(segment) if segment.text.strip() else ""

    def footer(self, transcript: Transcript) -> str:
        """Nothing."""
        return ""


def _txt(segment: Segment) -> str:
    return f"{line(segment.text)}\n"


def _tsv(segment: Segment) -> str:
    return f"{milliseconds(segment.start_s)}\t{milliseconds(segment.end_s)}\t{line(segment.text)}\n"


def _words(segment: Segment) -> str:
    return "".join(
        f"{milliseconds(word.start_s)}\t{milliseconds(word.end_s)}\t{word.probability:.4f}\t{line(word.text)}\n"
        for word in segment.words
    )


TXT = Rows(rows=_txt)
TSV = Rows(head="start\tend\ttext\n", rows=_tsv)
WORDS = Rows(head="start\tend\tprobability\tword\n", rows=_words)
