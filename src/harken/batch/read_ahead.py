"""Reading ahead: the bytes of the next recordings are on this machine before the engine asks for them."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import wave
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock
from types import SimpleNamespace
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from harken.audio import stream_audio
from harken.batch.inputs import BatchRecording
from harken.batch.locations import audio_error, is_url, open_binary
from harken.errors import AudioError
from harken.types import SAMPLE_RATE

AHEAD = 4
"""Recordings that are fetched ahead of the one that is decoded."""
FETCH_TRIES = 3
FIRST_WAIT_S = 1.0
"""Time before a recording is fetched once more; it doubles."""
_IN_MEMORY_BYTES = 16 << 20
_KEPT_SAMPLES = 300 * SAMPLE_RATE
"""Samples of a recording that stay in memory for its next piece."""
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors that another try does not mend."""
_PASSING_REFUSALS = (408, 425, 429)
"""Refusals of a web server that another try may mend."""


class FetchedFile(io.RawIOBase):
    """The file of a recording, by its place among those read ahead; its first use waits until it has been fetched."""

    def __init__(self, recording: BatchRecording, index: int, ahead: ReadAhead) -> None:
        self.name = recording.shown_name
        self._index, self._ahead = index, ahead

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Read bytes; an `AudioError` says why they cannot be fetched."""
        return self._ahead.file(self._index).read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, and return it."""
        return self._ahead.file(self._index).seek(offset, whence)

    def tell(self) -> int:
        """Return the position; nothing has been fetched while it is 0."""
        return self._ahead.file(self._index).tell() if self._ahead.has_begun(self._index) else 0

    def close(self) -> None:
        """Close the file; a copy of it is removed."""
        self._ahead.drop(self._index)
        super().close()


class ReadAhead:
    """Recordings that a thread fetches in the order of `files`, some ahead of those that have been asked for."""

    def __init__(self, recordings: Sequence[BatchRecording]) -> None:
        self.files = [FetchedFile(recording, index, self) for index, recording in enumerate(recordings)]
        self._recordings = recordings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="harken read ahead")
        self._futures: dict[int, Future[BinaryIO]] = {}
        self._n_begun = 0
        self._lock = Lock()
        self._is_closed = Event()
        self._pieces = _PieceCutter()

    def has_begun(self, index: int) -> bool:
        """Return whether a recording is fetched, or has been."""
        return index < self._n_begun

    def file(self, index: int) -> BinaryIO:
        """Return the file of a recording once it is there, and have those behind it fetched."""
        with self._lock:
            while self._n_begun < min(index + 1 + AHEAD, len(self._recordings)):
                recording = self._recordings[self._n_begun]
                self._futures[self._n_begun] = self._thread.submit(self._fetch, recording)
                self._n_begun += 1
        return self._futures[index].result()

    def drop(self, index: int) -> None:
        """Close the file of a recording, as soon as it is there if it is being fetched."""
        future = self._futures.pop(index, None)
        if future and not future.cancel():
            future.add_done_callback(_close)

    def close(self) -> None:
        """Close all files, and fetch nothing more; what a slow server is sending may come for a while."""
        self._is_closed.set()
        for index in [*self._futures]:
            self.drop(index)
        self._thread.submit(self._pieces.close)
        self._thread.shutdown(wait=False)

    def _fetch(self, recording: BatchRecording) -> BinaryIO:
        tries, wait_s = 1, FIRST_WAIT_S
        while True:
            try:
                return self._pieces.cut(recording) if recording.is_piece else _open(recording)
            except AudioError:
                raise
            except Exception as error:  # whatever a file system raises
                if _is_lasting(error) or tries == FETCH_TRIES or self._is_closed.is_set():
                    raise audio_error(recording.shown_name, error) from error
            self._is_closed.wait(wait_s)
            tries, wait_s = tries + 1, 2 * wait_s


def _close(fetched: Future[BinaryIO]) -> None:
    with suppress(Exception):
        fetched.result().close()


def _is_lasting(error: Exception) -> bool:
    status = getattr(error, "status", None)
    is_refused = isinstance(status, int) and 400 <= status < 500 and status not in _PASSING_REFUSALS
    return isinstance(error, _LASTING) or is_refused


def _open(recording: BatchRecording) -> BinaryIO:
    """Open a local file and have its bytes read by the system; copy one from elsewhere."""
    if not (recording.bytes or is_url(recording.location)):
        file = open(recording.location, "rb", buffering=0)  # noqa: SIM115
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        return cast(BinaryIO, file)
    copy = _temporary()
    try:
        with open_binary(recording.location) as source:
            if recording.bytes:
                source.seek(recording.bytes.start)
                _copy_exactly(recording, source, copy, recording.bytes.size)
            else:
                shutil.copyfileobj(source, copy, 1 << 20)
    except BaseException:
        copy.close()
        raise
    copy.seek(0)
    return copy


def _copy_exactly(recording: BatchRecording, source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size > 0:
        chunk = source.read(min(size, 1 << 20))
        if not chunk:
            raise AudioError(f"{recording.shown_name}: the archive ends {size} bytes before the recording does")
        target.write(chunk)
        size -= len(chunk)


class _PieceCutter:
    """Cuts pieces out of recordings, and reads on where the piece before ended in the same one.

    What it has read last stays in memory, for pieces that overlap or are not quite in order.
    """

    def __init__(self) -> None:
        self._key = ""
        self._file: BinaryIO | None = None
        self._blocks: Iterator[NDArray[np.float32]] = iter(())
        self._kept: deque[NDArray[np.int16]] = deque()
        self._start = self._end = 0
        self._failure: AudioError | None = None

    def cut(self, recording: BatchRecording) -> BinaryIO:
        """Return a piece as a file of 16-bit samples at 16 kHz, which are those of the recording."""
        offset_s, length_s = recording.offset_s or 0.0, recording.duration_s
        start = round(offset_s * SAMPLE_RATE)
        end = start + round(length_s * SAMPLE_RATE) if length_s is not None else None
        if end == start:
            raise AudioError(f"{recording.shown_name}: its piece at {offset_s:g} s is empty")
        key = f"{recording.location} {recording.bytes}"
        if key != self._key or start < self._start:
            self._open(recording, key)
        try:
            piece = self._write(start, end)
        except AudioError:  # the pieces behind it fail as it does, and nothing is read again
            raise
        except BaseException:
            self.close()
            raise
        if piece is None:
            raise AudioError(f"{recording.shown_name}: ends before its piece at {offset_s:g} s begins")
        return piece

    def close(self) -> None:
        """Close the recording."""
        if self._file:
            self._file.close()
        self._key, self._file, self._blocks, self._failure = "", None, iter(()), None
        self._kept.clear()

    def _open(self, recording: BatchRecording, key: str) -> None:
        self.close()
        self._file = file = _open(recording)
        named = SimpleNamespace(
            name=recording.shown_name, read=file.read, seek=file.seek, tell=file.tell, seekable=lambda: True
        )
        self._blocks = stream_audio(cast(BinaryIO, named), block_samples=SAMPLE_RATE)
        self._key, self._start, self._end = key, 0, 0

    def _write(self, start: int, end: int | None) -> BinaryIO | None:
        """Write the samples of a piece to a file; None if the recording ends before it begins."""
        target = _temporary()
        n_written = 0
        try:
            with wave.open(target, "wb") as writer:
                writer.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
                for position, block in self._blocks_until(end):
                    samples = block[max(start - position, 0) : None if end is None else max(end - position, 0)]
                    writer.writeframes(samples.astype("<i2").tobytes())
                    n_written += len(samples)
        except BaseException:
            target.close()
            raise
        if not n_written:
            target.close()
            return None
        target.seek(0)
        return target

    def _blocks_until(self, end: int | None) -> Iterator[tuple[int, NDArray[np.int16]]]:
        """Yield blocks with their positions: those in memory, and then those that follow, up to the end of a piece."""
        position = self._start
        for block in [*self._kept]:
            yield position, block
            position += len(block)
        while end is None or self._end < end:
            read = self._next_block()
            if read is None:
                return
            yield self._end - len(read), read

    def _next_block(self) -> NDArray[np.int16] | None:
        """Decode a block, and keep it instead of the oldest; None at the end, of which a failure is remembered."""
        if self._failure:
            raise AudioError(str(self._failure))
        try:
            samples = next(self._blocks, None)
        except AudioError as error:
            self._failure = error
            raise
        if samples is None:
            return None
        block = (samples * 32768).astype(np.int16)
        self._kept.append(block)
        self._end += len(block)
        while self._end - self._start > _KEPT_SAMPLES + len(self._kept[0]):
            self._start += len(self._kept.popleft())
        return block


def _temporary() -> BinaryIO:
    """Return a new file in memory, which moves to the disk when it grows."""
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES))
