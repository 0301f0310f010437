"""The files that a live session writes: its audio as WAV, its text in any format; both survive an interruption."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from harken.atomic import open_atomic, open_atomic_file, wrap_os_errors
from harken.contract import Floats
from harken.formats import RecordingLink, Writer
from harken.results import Segment, Transcript
from harken.types import SAMPLE_RATE

_UNKNOWN_BYTES = (
    0xFFFFFFFF  # length unknown so far, or too large for the field: readers go on to the end of the file
)
_SAMPLE_BYTES = 2


@contextmanager
def open_wav(path: Path) -> Iterator[Callable[[Floats], None]]:
    """Write a WAV file (16 bits, 16 kHz, mono), which gets its name when it is complete.

    Yields
    ------
    callable
        Appends samples of shape (samples,) in [-1, 1].

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    failure: BaseException | None = None
    samples = 0
    with open_atomic_file(path) as file:

        def add(block: Floats) -> None:
            nonlocal samples
            pcm = np.rint(np.clip(block * 32768, -32768, 32767)).astype("<i2")
            with wrap_os_errors(path):
                file.write(pcm.tobytes())
            samples += len(pcm)

        with wrap_os_errors(path):
            file.write(_wav_header(_UNKNOWN_BYTES))
        try:
            yield add
        except BaseException as error:
            if not samples:
                raise
            failure = error  # live audio cannot be recorded again
        if file.seekable():
            with wrap_os_errors(path):
                file.seek(0)
                file.write(_wav_header(samples * _SAMPLE_BYTES))
    if failure:
        raise failure


@contextmanager
def open_transcript(
    path: Path,
    format_name: str,
    recording_path: Path | None,
    make_transcript: Callable[[tuple[Segment, ...]], Transcript],
) -> Iterator[Callable[[Segment], None]]:
    """Write a transcript, which gets its name when it is complete.

    Parameters
    ----------
    path : Path
    format_name : str
        A key of `harken.formats.FORMATS`.
    recording_path : Path or None
        Path of the recording that the transcript links to.
    make_transcript : callable
        Makes the transcript of all segments at the end.

    Yields
    ------
    callable
        Appends a segment.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    failure: BaseException | None = None
    segments: list[Segment] = []
    writer = Writer(
        format_name,
        recording=RecordingLink(path=recording_path, transcript_folder=path.parent) if recording_path else None,
    )
    with open_atomic(path) as write:

        def add(segment: Segment) -> None:
            segments.append(segment)
            write(writer.segment(segment))

        write(writer.header())
        try:
            yield add
        except BaseException as error:
            if not segments:
                raise
            failure = error
        write(writer.footer(make_transcript(tuple(segments))))
    if failure:
        raise failure


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
