"""The format rttm: who spoke when, without words, as programs that score diarization read it; written and read."""

from __future__ import annotations

import os
from math import isfinite
from pathlib import Path

from harken.errors import ManifestError, OptionError
from harken.formats.base import TranscriptFormat, to_milliseconds
from harken.formats.characters import printable
from harken.formats.html_format import RecordingLink
from harken.results import SpeakerTurn, Transcript

UNKNOWN = "<NA>"
"""The sign for a field without a value."""
FIELDS = 8
"""Fewest fields of a line: type, recording, channel, start, duration, two that are not used, speaker."""


class RttmFormat(TranscriptFormat):
    """The format rttm (NIST, Rich Transcription 2009 evaluation plan, appendix A): a line for each turn.

    Parameters
    ----------
    recording : RecordingLink or None
        The recording whose name, without its ending, is the first field of every line; "recording" if it has none.
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


def read_rttm(path: str | os.PathLike[str], recording: str | None = None) -> tuple[SpeakerTurn, ...]:
    """Read the turns of one recording, ordered by start.

    Only lines of the type ``SPEAKER`` hold turns; others, empty lines and comments (``;;``) are skipped.

    Parameters
    ----------
    path : path
    recording : str, optional
        Name of the recording; without, all turns of the file must be of the same one.

    Raises
    ------
    ManifestError
        If the file cannot be read, or a line is not RTTM.
    """
    turns: list[SpeakerTurn] = []
    recordings: set[str] = set()
    for number, line in enumerate(_read(Path(path)).splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0] != "SPEAKER":
            continue
        where = f"{path}:{number}"
        if len(fields) < FIELDS:
            raise ManifestError(f"{where}: has {len(fields)} fields; allowed are {FIELDS} or more, as RTTM has")
        if recording is None or fields[1] == recording:
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


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise ManifestError(f"{path}: {reason}; allowed is a file of turns in RTTM") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not UTF-8 text, at byte {error.start}") from error
