"""Bounds-checked sequential reading of binary files."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harken.checkpoints.storage import read_error
from harken.errors import CheckpointError

_MAX_NAME_BYTES = 256


class Cursor:
    """A position in a file's bytes; every step is checked against the remaining bytes."""

    def __init__(self, path: Path, data: bytes | mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 0

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end of the file."""
        return len(self.data) - self.position

    def skip(self, size: int) -> int:
        """Skip `size` bytes and return the position of the first."""
        start = self.position
        if not 0 <= size <= self.remaining:
            raise self.error(f"truncated: {size} bytes expected, {self.remaining} are left")
        self.position = start + size
        return start

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        start = self.skip(size)
        return self.data[start : start + size]

    def read_numbers(self, layout: str) -> tuple[int, ...]:
        """Return the next little-endian numbers in a `struct` layout."""
        return struct.unpack("<" + layout, self.read(struct.calcsize("<" + layout)))

    def read_number(self, layout: str) -> int:
        """Return the next number."""
        return self.read_numbers(layout)[0]

    def read_name(self, size: int) -> str:
        """Return the next `size` bytes as a printable name, without a final zero byte."""
        name = self.read(size).removesuffix(b"\0")
        if len(name) > _MAX_NAME_BYTES or not name.isascii() or not name.decode().isprintable():
            raise self.error(f"a name is not printable ASCII of at most {_MAX_NAME_BYTES} bytes")
        return name.decode()

    def error(self, reason: str) -> CheckpointError:
        """Return an error with the file's name and the current position."""
        return CheckpointError(f"{self.path}: {reason} (at byte {self.position} of {len(self.data)})")


@contextmanager
def open_cursor(path: Path) -> Iterator[Cursor]:
    """Memory-map a file while its headers are parsed; skipped bytes are never read."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield Cursor(path, data)
    except OSError as error:
        raise read_error(path, error) from error
