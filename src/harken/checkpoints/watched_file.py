"""Files of a checkpoint, watched: a file that changes while it is read gives an error instead of mixed weights."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from harken.checkpoints.storage import read_error
from harken.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class WatchedFile:
    """A file, and what the file system said of it before it was read.

    Attributes
    ----------
    path : Path
        The file.
    identity : tuple of int
        Device, inode, size, and times of the last change in nanoseconds; empty if there was no such file.
    """

    path: Path
    identity: tuple[int, ...]

    def check_unchanged(self) -> None:
        """Check that the file is still the one that was there when `watch` was called.

        Raises
        ------
        CheckpointError
            If it was replaced, written to or removed.
        """
        if _identity(self.path) != self.identity:
            raise CheckpointError(f"{self.path}: changed while it was read; load the model again")

    def sha256(self) -> str:
        """Return the SHA-256 of the file's bytes, in hex; an unchanged file is hashed once per process.

        Raises
        ------
        CheckpointError
            If the file cannot be read, or changed since `watch` was called.
        """
        self.check_unchanged()
        try:
            return _sha256(self)
        except OSError as error:
            raise read_error(self.path, error) from error


def watch(path: Path) -> WatchedFile:
    """Watch a file from now on; call this before it is read."""
    return WatchedFile(path, _identity(path))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex; an unchanged file is hashed once per process.

    Raises
    ------
    CheckpointError
        If the file cannot be read.
    """
    return watch(path).sha256()


@functools.lru_cache(maxsize=64)
def _sha256(file: WatchedFile) -> str:
    with open(file.path, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    file.check_unchanged()
    return digest


def _identity(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
