"""The files that a live session writes: its audio as WAV, its text in any format; both survive whatever ends it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Self

import numpy as np

from harken.cli.kept_files import KeptFile
from harken.cli.signals import deferring_stop
from harken.cli.terminal import format_time, write_stderr
from harken.contract import Floats
from harken.formats import RecordingLink, make_writer
from harken.results import Segment, SpeakerTurn, Transcript, speakers_of
from harken.speakers.attribution import cut_at_changes
from harken.streaming import Event, FinalSegment, SpeakersChanged
from harken.types import SAMPLE_RATE

_UNKNOWN_BYTES = (
    0xFFFFFFFF  # length unknown so far, or too large for the field: readers go on to the end of the file
)
_PATIENCE = 4  # signals that wait for the end of a file; a stalled pipe must not take all of them
_SAMPLE_BYTES = 2


class Recording(KeptFile):
    """A WAV file (16 bits, 16 kHz, mono), which can be played while it grows."""

    def __init__(self, path: Path) -> None:
        self._samples = 0
        super().__init__(path, _wav_header(_UNKNOWN_BYTES))

    def add(self, block: Floats) -> None:
        """Append samples of shape (samples,) in [-1, 1]."""
        pcm = np.rint(np.clip(block * 32768, -32768, 32767)).astype("<i2")
        self._samples += len(pcm)
        self.append(pcm.tobytes())

    def holds(self) -> str:
        """Say how much of the audio the file holds."""
        written_s = self._written_bytes / _SAMPLE_BYTES / SAMPLE_RATE
        return f"the first {format_time(written_s)} of {format_time(self._samples / SAMPLE_RATE)}"

    def complete(self) -> None:
        """Complete the header and give the file its name; remove it if there was no audio."""
        if self._written_bytes:
            self.keep(_wav_header(self._written_bytes), usable_if_cut=True)
        else:
            self.discard()

    @property
    def _written_bytes(self) -> int:
        return self.size - len(_wav_header(0))


class TranscriptFile(KeptFile):
    """A transcript, which holds every segment as soon as it is final and its speakers change no more.

    Parameters
    ----------
    params : mapping
        Parameters of ``harken listen``.
    recording_path : str or None
        Path of the recording that the transcript links to.

    Attributes
    ----------
    encode : callable
        Returns the tokens of a text, for segments that are cut where the speaker changes; to be set once it is known.
    """

    encode: Callable[[str], Sequence[int]]

    def __init__(self, params: Mapping[str, Any], recording_path: str | None) -> None:
        path, format_name = params["transcript"]
        link = None
        if recording_path:
            link = RecordingLink(path=Path(recording_path), transcript_folder=path.parent)
        self._params = params
        self._writer = make_writer(format_name, recording=link)
        self.encode = lambda text: ()
        self._unsettled: dict[int, Segment] = {}
        self._segments: list[Segment] = []
        self._has_content = False
        self._piece_ends_s = [0.0]  # the time until which each piece of the file has the text
        super().__init__(path, _encode(self._writer.header()))

    def add(self, segment: Segment) -> None:
        """Add a segment."""
        self._unsettled[segment.index] = segment
        self._write_settled(segment.end_s - self._params["speaker_delay"] if self._params["speakers"] else inf)

    def correct(self, segment: Segment) -> None:
        """Replace the segment of the same index, whose speakers have changed."""
        self._unsettled[segment.index] = segment

    def holds(self) -> str:
        """Say how much of the text the file holds."""
        return f"the text until {format_time(self._piece_ends_s[self.pieces - 1])}"

    def write_end(self, audio_s: float, *, session_ended: bool) -> None:
        """Write the end of the text, if there was any audio and the session did not fail before its first segment."""
        self._write_settled(inf)
        transcript = self._transcript(audio_s)
        self._has_content = bool(self._segments or (session_ended and transcript.duration_s))
        if self._has_content:
            self._append(self._writer.footer(transcript), self._piece_ends_s[-1])

    def complete(self) -> None:
        """Give the file its name; remove it if it has no content, or had no room for any."""
        if self._has_content and (self.pieces > 1 or not self.error):
            self.keep()
        else:
            self.discard()

    def _write_settled(self, until_s: float) -> None:
        """Write the segments that end before a time, cut where the speaker changes."""
        settled = [index for index, segment in self._unsettled.items() if segment.end_s < until_s]
        for index in settled:
            for segment in cut_at_changes(self._unsettled.pop(index), self.encode):
                numbered = replace(segment, index=len(self._segments))
                self._segments.append(numbered)
                self._append(self._writer.segment(numbered), numbered.end_s)

    def _transcript(self, audio_s: float) -> Transcript:
        segments = tuple(self._segments)
        turns = tuple(
            SpeakerTurn(start_s=segment.start_s, end_s=segment.end_s, speaker=name)
            for segment in segments
            for name in segment.speakers
        )
        languages = [segment.language for segment in segments if segment.language]
        return Transcript(
            segments=segments,
            language=languages[-1] if languages else self._params["language"] or "en",
            duration_s=audio_s,
            model=self._params["model"],
            task=self._params["task"],
            speakers=speakers_of(turns) if self._params["speakers"] else None,
            turns=turns,
        )

    def _append(self, text: str, end_s: float) -> None:
        if text:
            self._piece_ends_s.append(end_s)
            self.append(_encode(text))


class Outputs:
    """The files of a session, which are finished when the block ends, however it ends.

    Nothing here fails while somebody speaks: what cannot be written is reported, and the session goes on for the sake
    of the captions and the other file.

    Parameters
    ----------
    params : mapping
        Parameters of ``harken listen``, which name the files.
    source : str or None
        Path of the recording that is read.

    Attributes
    ----------
    samples : int
        Number of samples that the session has heard, at 16 kHz.

    Raises
    ------
    OutputError
        If a file cannot be written from the start; none is left behind.
    """

    def __init__(self, params: Mapping[str, Any], source: str | None) -> None:
        record = params["record"]
        self.recording = Recording(Path(record)) if record else None
        try:
            self.transcript = TranscriptFile(params, record or source) if params["transcript"] else None
        except BaseException:
            if self.recording:
                self.recording.finish()
                self.recording.complete()
            raise
        self._files = [file for file in (self.recording, self.transcript) if file]
        self._reported = [False] * len(self._files)
        self._finished = False
        self.samples = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._finished:
            self.finish(session_ended=False)
            for problem in self.problems():
                write_stderr(f"harken: {problem}")

    @property
    def audio_s(self) -> float:
        """Duration of the audio that the session has heard."""
        return self.samples / SAMPLE_RATE

    @property
    def writable(self) -> bool:
        """True if there is a file that takes the audio or the text."""
        return any(not file.error for file in self._files)

    def add_samples(self, block: Floats) -> None:
        """Record samples of shape (samples,) in [-1, 1]."""
        if self.recording:
            self.recording.add(block)

    def add_event(self, event: Event) -> None:
        """Add the segment of an event to the transcript, or correct its speakers there."""
        if self.transcript and isinstance(event, FinalSegment):
            self.transcript.add(event.segment)
        elif self.transcript and isinstance(event, SpeakersChanged):
            self.transcript.correct(event.segment)

    def others(self) -> Iterator[str]:
        """Yield a line for each file beside which another session's, running or killed, was found."""
        for file in self._files:
            if file.others:
                names = ", ".join(map(str, file.others))
                verb = "is" if len(file.others) == 1 else "are"
                which = f"{verb} of another session, which runs or did not end"
                yield f"{names} {which}; this one writes {file.location}"

    def news(self) -> Iterator[str]:
        """Yield a line for each file that cannot be written any more, or can be again, since the last call."""
        for i, file in enumerate(self._files):
            error = file.error
            if bool(error) != self._reported[i]:
                self._reported[i] = bool(error)
                yield (
                    f"{_problem(file, error)}; listening goes on"
                    if error
                    else f"{file.path}: can be written again, and nothing is missing"
                )

    def finish(self, *, session_ended: bool) -> None:
        """Complete the files or remove those without content; signals wait meanwhile, as there is no second take."""
        with deferring_stop(_PATIENCE) as begin:
            begin()
            self._finished = True
            if self.transcript:
                self.transcript.write_end(self.audio_s, session_ended=session_ended)
            for file in self._files:
                file.finish()
            if self.recording and self.transcript:  # hours of text need less space than seconds of audio
                self.recording.make_room_for(self.transcript)
            for file in self._files:
                file.complete()

    def save(self, message: str) -> str:
        """Complete the files of a session that was stopped, and add to its message what is where."""
        if not self._finished:
            self.finish(session_ended=False)
        return "; ".join([message, *self.problems()]) + self.what_was_done()

    def what_was_done(self) -> str:
        """Return the end of a message that says where the content of the files is; empty if there is none."""
        locations = ", ".join(str(file.location) for file in self._files if file.location)
        return f"; what was done is in {locations}" if locations else ""

    def problems(self) -> Iterator[str]:
        """Yield a line for each finished file that is not whole, or not under its name."""
        for file in self._files:
            if file.error:
                yield _problem(file, file.error)
            elif file.location not in (None, file.path):
                yield f"{file.path}: another program has written it meanwhile; this session's is {file.location}"


def _problem(file: Recording | TranscriptFile, error: OSError) -> str:
    rest = f"{file.location} holds {file.holds()}" if file.location else "nothing was kept"
    return f"{file.path}: cannot be written: {error.strerror or error}; {rest}"


def _encode(text: str) -> bytes:
    return text.encode(errors="replace")


def _wav_header(data_bytes: int) -> bytes:
    """Return the header of 44 bytes.

    Source: Microsoft and IBM 1991, "Multimedia Programming Interface and Data Specifications 1.0".
    """
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", min(data_bytes + 36, _UNKNOWN_BYTES), b"WAVE"),
        *(b"fmt ", 16, 1, 1, SAMPLE_RATE, SAMPLE_RATE * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES),
        *(b"data", min(data_bytes, _UNKNOWN_BYTES)),
    )
