"""A disk that is soon full, for files of `harken.cli.kept_files`."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from harken.cli import kept_files


class SmallDisk:
    """A disk with room for a number of bytes in all files together; a test may change it.

    `is_full` says whether a file was cut because a write failed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self.is_full = False
        self._files: list[_File] = []
        create_part = kept_files._create_part

        def create(target: Path) -> Any:
            others, part, file = create_part(target)
            self._files.append(_File(self, file))
            return others, part, self._files[-1]

        monkeypatch.setattr(kept_files, "_create_part", create)
        monkeypatch.setattr(kept_files, "_SYNC_S", 0.02)

    @property
    def free(self) -> int:
        return self.room - sum(file.size for file in self._files)


class _File:
    """A file on a small disk; a write that does not fit is cut, and the next one fails, as on a real disk."""

    def __init__(self, disk: SmallDisk, file: BinaryIO) -> None:
        self._disk, self._file = disk, file
        self.size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        at = self._file.tell()
        fits = data[: self.size - at + max(0, self._disk.free)]
        if data and not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(fits)
        self.size = max(self.size, at + written)
        return written

    def truncate(self) -> None:
        self._disk.is_full = True  # here, since now the error is known
        self.size = self._file.tell()
        self._file.truncate()
