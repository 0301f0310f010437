"""The formats of rows: txt, tsv and words.tsv of segments and words; rttm of turns of speakers, which is read too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from pathlib import Path

from harken.errors import ManifestError, OptionError
from harken.files import decode, read_file
from harken.formats.base import (
    Layout,
    TranscriptFormat,
    main_speaker,
    printable,
    single_line,
    to_milliseconds,
)
from harken.formats.html_format import RecordingLink
from harken.results import Segment, SpeakerTurn, Transcript

Row = tuple[Sequence[str], tuple[object, ...]]
"""Speakers and cells of a row."""
UNKNOWN = "<NA>"
"""The sign for a field without a value."""
FIELDS = 8
"""Fewest fields of a line: type, recording, channel, start, duration, two that are not used, speaker."""


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

    The name of the speaker comes behind the other columns if the layout has speakers.
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


def segment_rows(segment: Segment) -> Iterator[Row]:
    """Yield the row of a segment in tsv."""
    times = to_milliseconds(segment.start_s), to_milliseconds(segment.end_s)
    yield segment.speakers, (*times, single_line(segment.text))


def word_rows(segment: Segment) -> Iterator[Row]:
    """Yield the rows of a segment in words.tsv."""
    for word in segment.words:
        times = to_milliseconds(word.start_s), to_milliseconds(word.end_s)
        yield word.speakers, (*times, f"{word.probability:.4f}", single_line(word.text))


class RttmFormat(TranscriptFormat):
    """The format rttm (NIST, Rich Transcription 2009 evaluation plan, appendix A): a line for each turn.

    Each begins with the name of the recording, without its ending; "recording" if it has none.
    """

    def __init__(self, recording: RecordingLink | None) -> None:
        self._file = _field(recording.path.stem if recording else "recording")

    def footer(self, transcript: Transcript) -> str:
        """Return all turns, which are known at the end."""
        return "".join(map(self._line, transcript.turns))

    def _line(self, turn: SpeakerTurn) -> str:
        start = to_milliseconds(turn.start_s)
        length = max(1, to_milliseconds(turn.end_s) - start)  # readers refuse a turn of no length
        times = f"{start / 1000:.3f} {length / 1000:.3f}"
        speaker = _field(turn.speaker)
        return f"SPEAKER {self._file} 1 {times} {UNKNOWN} {UNKNOWN} {speaker} {UNKNOWN} {UNKNOWN}\n"


def _field(name: str) -> str:
    """Return a name as one field: spaces separate the fields of a line."""
    return printable("_".join(name.split())) or UNKNOWN


def read_rttm(path: str | os.PathLike[str]) -> tuple[SpeakerTurn, ...]:
    """Read the turns of the recording of a file, ordered by start.

    Only lines of the type ``SPEAKER`` hold turns; others, empty lines and comments (``;;``) are skipped. A file with
    turns of several recordings is refused.
    """
    text = decode(read_file(Path(path), "allowed is a file of turns in RTTM"), str(path))
    turns: list[SpeakerTurn] = []
    recordings: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0] != "SPEAKER":
            continue
        where = f"{path}:{number}"
        if len(fields) < FIELDS:
            raise ManifestError(f"{where}: has {len(fields)} fields; allowed are {FIELDS} or more, as RTTM has")
        recordings.add(fields[1])
        turns.append(_turn(fields, where))
    if len(recordings) > 1:
        names = ", ".join(sorted(recordings)[:3])
        raise ManifestError(f"{path}: has turns of several recordings ({names}); allowed is one")
    return tuple(sorted(turns, key=lambda turn: (turn.start_s, turn.end_s, turn.speaker)))


def _turn(fields: list[str], where: str) -> SpeakerTurn:
    try:
        start_s, duration_s = float(fields[3]), float(fields[4])
    except ValueError:
        start_s = duration_s = float("nan")
    if not (isfinite(start_s) and isfinite(duration_s) and start_s >= 0 and duration_s >= 0):
        raise ManifestError(f"{where}: start {fields[3]}, duration {fields[4]}: allowed are seconds, from 0 on")
    try:
        return SpeakerTurn(start_s=start_s, end_s=start_s + duration_s, speaker=fields[7])
    except OptionError as error:
        raise ManifestError(f"{where}: {error}") from error
