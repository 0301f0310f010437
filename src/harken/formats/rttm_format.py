"""The format rttm: who spoke when, without words, as programs that score diarization read it."""

from __future__ import annotations

from harken.formats.base import TranscriptFormat, to_milliseconds
from harken.formats.characters import printable
from harken.formats.html_format import RecordingLink
from harken.results import Segment, SpeakerTurn, Transcript

UNKNOWN = "<NA>"
"""The sign for a field without a value."""


class RttmFormat(TranscriptFormat):
    """The format rttm (NIST, Rich Transcription 2009 evaluation plan, appendix A): a line for each turn.

    Parameters
    ----------
    recording : RecordingLink or None
        The recording whose name, without its ending, is the first field of every line; "recording" if it has none.
    """

    def __init__(self, recording: RecordingLink | None) -> None:
        self._file = _field(recording.path.stem if recording else "recording")

    def header(self) -> str:
        """Return an empty text: there is no header."""
        return ""

    def segment(self, segment: Segment) -> str:
        """Return an empty text: turns are known at the end."""
        return ""

    def footer(self, transcript: Transcript) -> str:
        """Return all turns."""
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
