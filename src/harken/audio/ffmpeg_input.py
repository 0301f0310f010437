"""The file that FFmpeg reads: any Python file object, which may be a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

_HEAD_BYTES = 1 << 16  # of a pipe; a header with a larger picture in front is not searched for a length
_TAIL_BYTES = (1 << 16) + (1 << 15)  # of a pipe; more than the largest page of Ogg (65,307 bytes)


class FFmpegInput:
    """A file object for FFmpeg that holds back exceptions until FFmpeg's C code has returned.

    Parameters
    ----------
    name : str
        FFmpeg guesses the format from its extension.
    file : IO[bytes]
        Read from its current position, which is position 0 for FFmpeg.

    Attributes
    ----------
    origin : int
        Position of the file at which its content begins for FFmpeg.
    error : BaseException or None
        The error of `read` that is held back.
    """

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self.name = name
        self._file = file
        self.error: BaseException | None = None
        self._seekable = hasattr(file, "tell") and bool(getattr(file, "seekable", lambda: False)())
        self.origin = file.tell() if self._seekable else 0
        self._head, self._tail = bytearray(), bytearray()
        self._n_read, self._at_end = 0, False

    def read(self, size: int) -> bytes:
        # FFmpeg asks again after a failure, and would wait again for a pipe that sends nothing.
        if self.error:
            return b""
        try:
            data = bytes(self._file.read(size))
            if len(data) > size:  # FFmpeg would write them behind the end of its buffer
                raise ValueError(f"read({size}) returned {len(data)} bytes")
        except BaseException as error:  # KeyboardInterrupt too: the callback would lose it
            self.error = error
            return b""
        self._remember(data)
        return data

    def seekable(self) -> bool:
        return self._seekable

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self._file.seek(offset + self.origin if whence == 0 else offset, whence) - self.origin
        except (OSError, ValueError):
            return -1
        except BaseException as error:
            self.error = error
            return -1

    def tell(self) -> int:
        return self._file.tell() - self.origin

    @contextmanager
    def reraise_read_errors(self) -> Iterator[None]:
        """Raise the error of `read` in place of the FFmpeg error that it caused."""
        try:
            yield
        finally:
            if self.error:
                raise self.error

    @property
    def signature(self) -> bytes:
        """The first 8 bytes, or as many as could be read."""
        return bytes(self._head[:8])

    def size_bytes(self) -> int | None:
        """Return the size; None if it cannot be known, as of a pipe that was not read to its end."""
        if not self._seekable:
            return self._n_read if self._at_end else None
        try:
            return self._file.seek(0, os.SEEK_END) - self.origin
        except (OSError, ValueError):
            return None

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at an offset; of a pipe only what is near its beginning or its end.

        FFmpeg must have finished reading, as the position changes.
        """
        if not self._seekable:
            tail_offset = self._n_read - len(self._tail)
            if offset >= tail_offset:
                return bytes(self._tail[offset - tail_offset :][:size])
            return bytes(self._head[offset : offset + size])
        if offset >= (self.size_bytes() or 0):
            return b""
        try:
            self._file.seek(self.origin + offset)
            return bytes(self._file.read(size))
        except (OSError, ValueError):
            return b""

    def _remember(self, data: bytes) -> None:
        self._at_end = not data
        if len(self._head) < _HEAD_BYTES and (not self._seekable or not self._head):
            self._head += data[: _HEAD_BYTES - len(self._head)]
        if not self._seekable:
            self._n_read += len(data)
            self._tail += data
            del self._tail[:-_TAIL_BYTES]
