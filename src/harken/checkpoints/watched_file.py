"""Files of a checkpoint, watched: a file that changes while it is read gives an error instead of mixed weights."""

from __future__ import annotations

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
        Device, inode, size, and times of the last change of content and of attributes in nanoseconds; empty if there
        was no such file.
    """

    path: Path
    identity: tuple[int, ...]

    def check_unchanged(self) -> None:
        """Check that the file is still the one that was there when `watch` was called.

        A hard link or other permissions change only the last time, as does a writer that sets the time of content
        back: if the hash is known, it decides.

        Raises
        ------
        CheckpointError
            If it was replaced, written to or removed.
        """
        now = watch(self.path)
        if now.identity != self.identity and not self._has_content_of(now):
            raise CheckpointError(f"{self.path}: changed while it was read; load the model again")

    def sha256(self) -> str:
        """Return the SHA-256 of the file's bytes, in hex; an unchanged file is hashed once per process.

        Raises
        ------
        CheckpointError
            If the file cannot be read, or changed since `watch` was called.
        """
        self.check_unchanged()
        if self not in _digests:
            try:
                with open(self.path, "rb") as file:
                    _digests[self] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise read_error(self.path, error) from error
            self.check_unchanged()
        return _digests[self]

    def _has_content_of(self, now: WatchedFile) -> bool:
        """Return whether the same file, with other attributes, has the hash that it had before."""
        is_same_file = bool(now.identity) and now.identity[:-1] == self.identity[:-1]
        return is_same_file and self in _digests and now.sha256() == _digests[self]


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


_digests: dict[WatchedFile, str] = {}


def _identity(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
