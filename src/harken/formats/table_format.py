"""The formats with one row per segment or word: txt, tsv and words.tsv."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harken.formats.base import Layout, TranscriptFormat, main_speaker, single_line, to_milliseconds
from harken.results import Segment

Row = tuple[Sequence[str], tuple[object, ...]]
"""Speakers and cells of a row."""


class TextFormat(TranscriptFormat):
    """The format txt: a segment on each line, after the name of its speaker where the speaker changes."""

    def __init__(self) -> None:
        self._speaker = ""

    def segment(self, segment: Segment) -> str:
        """Return the line of a segment; empty if it has no text."""
        if not segment.text.strip():
            return ""
        speaker, before = main_speaker(segment.speakers), self._speaker
        self._speaker = speaker
        return f"{f'{speaker}: ' if speaker not in ('', before) else ''}{single_line(segment.text)}\n"


class TableFormat(TranscriptFormat):
    """A format whose rows each depend on one segment only.

    Parameters
    ----------
    columns : tuple of str
        Their names; that of the speaker comes behind them if the layout has speakers.
    rows : callable
        Yields the rows of a segment.
    layout : Layout
    """

    def __init__(
        self, columns: tuple[str, ...], rows: Callable[[Segment], Iterator[Row]], layout: Layout
    ) -> None:
        self._columns, self._rows, self._has_speakers = columns, rows, layout.speakers

    def header(self) -> str:
        """Return the names of the columns."""
        return self._line(self._columns, "speaker")

    def segment(self, segment: Segment) -> str:
        """Return the rows of a segment; empty if it has no text."""
        if not segment.text.strip():
            return ""
        return "".join(self._line(cells, main_speaker(speakers)) for speakers, cells in self._rows(segment))

    def _line(self, cells: Sequence[object], speaker: str) -> str:
        return "\t".join(map(str, (*cells, speaker) if self._has_speakers else cells)) + "\n"


def _segment_rows(segment: Segment) -> Iterator[Row]:
    times = to_milliseconds(segment.start_s), to_milliseconds(segment.end_s)
    yield segment.speakers, (*times, single_line(segment.text))


def _word_rows(segment: Segment) -> Iterator[Row]:
    for word in segment.words:
        times = to_milliseconds(word.start_s), to_milliseconds(word.end_s)
        yield word.speakers, (*times, f"{word.probability:.4f}", single_line(word.text))


def tsv_format(layout: Layout) -> TableFormat:
    """Return the format tsv."""
    return TableFormat(("start", "end", "text"), _segment_rows, layout)


def words_format(layout: Layout) -> TableFormat:
    """Return the format words.tsv."""
    return TableFormat(("start", "end", "probability", "word"), _word_rows, layout)
