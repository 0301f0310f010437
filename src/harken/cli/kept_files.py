"""A file that is kept whatever ends its session: of a live recording there is no second take."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import BinaryIO

from harken.cli.exits import Stop
from harken.cli.signals import deferring_stop
from harken.files import copy_mode, own, sync, wrap_os_errors

_SYNC_S = 1.0  # at most this is lost if the power fails; a failed write is tried again as often
_MAX_WAITING_BYTES = 64 << 20  # half an hour of audio, while a disk is full
_ROOM_BYTES = 32 << 10  # at least the blocks in which disks give space back; whole samples


class KeptFile:
    """A file that grows under a visible name, NAME.part, and takes its own name at the end.

    A thread writes, so that a slow disk delays neither the audio nor the captions. Every piece goes to the operating
    system as soon as it is appended, so it survives a killed process, and to the disk once a second. If the disk is
    full the file ends with a whole piece, and what waits is written when there is space again.

    A process that is stopped before the second piece leaves no file behind (`harken.files.remove_own`).

    An existing NAME.part is another session's and is left alone: this one is NAME.2.part then. A symbolic link is
    followed, and a device or pipe is written directly.

    Parameters
    ----------
    path : Path
    beginning : bytes
        The first piece, written at once, so that a file that cannot be written is known before anybody speaks.

    Attributes
    ----------
    location : Path or None
        Where the content is; None if it was discarded.
    others : tuple of Path
        The ``.part`` files of other sessions, which run or were killed.
    pieces, size : int
        Number of pieces written, and of their bytes.
    waiting_bytes : int
        Number of bytes that could not be written yet.

    Raises
    ------
    OutputError
        If it cannot be written.
    """

    def __init__(self, path: Path, beginning: bytes) -> None:
        self.path = path
        self.location: Path | None = path
        self.others: tuple[Path, ...] = ()
        self.pieces = self.size = 0
        self._write_error: OSError | None = None
        self._loss: OSError | None = None  # why something is missing that cannot be written again
        with wrap_os_errors(path):
            self._in_place = path.exists() and not path.is_file()
            self._target = Path(os.path.realpath(path)) if path.is_symlink() and not self._in_place else path
            self._there_before = _identity(self._target)
            if self._in_place:
                self._file: BinaryIO = path.open("wb", buffering=0)
            else:
                self._open_part()
        self._waiting, self.waiting_bytes = deque([beginning]), len(beginning)
        self._beginning_bytes = len(beginning)
        self._overflowed = False
        self.write_waiting()
        if self._write_error:
            self.discard()
            with wrap_os_errors(path):
                raise self._write_error
        self._appended: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = Thread(target=self._write_appended, name=f"harken writes {path}", daemon=True)
        self._thread.start()

    @property
    def error(self) -> OSError | None:
        """The error because of which a part of the content is not in the file now."""
        return self._loss or self._write_error

    def append(self, piece: bytes) -> None:
        """Append a piece, which is written as a whole or not at all; never wait and never raise an error."""
        if self.location:
            own.discard(self.location)
        self._appended.put(piece)

    def finish(self) -> None:
        """Write what waits, and take no more pieces."""
        self._appended.put(None)
        self._thread.join()

    def make_room_for(self, other: KeptFile) -> None:
        """Cut this finished file so that another one on its disk can be written, if the disk is too full for both."""
        if self.error and other.error and self.location and other.location:
            with suppress(OSError):
                if self.location.stat().st_dev == other.location.stat().st_dev:
                    blocks = 2 + other.waiting_bytes // _ROOM_BYTES
                    self.size = max(self._beginning_bytes, self.size - blocks * _ROOM_BYTES)
                    self._cut()
                    other.write_waiting()

    def write_waiting(self) -> None:
        """Write the pieces that wait; after an error the file ends with a whole piece, and the others wait on.

        For the thread, and when it has finished.
        """
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self.size += len(self._waiting[0])
                self.pieces += 1
                self.waiting_bytes -= len(self._waiting.popleft())
        except OSError as error:
            self._write_error = error
            with suppress(OSError):  # a device or pipe cannot take back what was written
                self._cut()
        else:
            self._write_error = None

    def discard(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._file.close()
        if not self._in_place and self.location:
            with suppress(OSError):
                self.location.unlink()
            own.discard(self.location)
        self.location = None

    def keep(self, beginning: bytes | None = None, *, usable_if_cut: bool = False) -> None:
        """Give the file its name, unless that would destroy more than what had this name at the start.

        It stays NAME.part if another program has written NAME since, or if there is a NAME and this file is cut short.

        Parameters
        ----------
        beginning : bytes, optional
            Replaces the first piece, of the same length. A device or pipe keeps its own.
        usable_if_cut : bool
            True if a file that is cut short deserves the name, where there is none.
        """
        try:
            if beginning and self._file.seekable():
                self._file.seek(0)
                self._write(beginning)
        except OSError as error:
            self._loss = error
        self._sync()
        try:
            self._file.close()
            if not self._in_place and self.location and self._may_take_name(usable_if_cut):
                os.replace(self.location, self._target)
                self.location = self.path
        except OSError as error:
            self._loss = error

    def _open_part(self) -> None:
        """Create NAME.part; a signal meanwhile leaves none behind."""
        try:
            with deferring_stop() as begin:
                begin()
                self.others, self.location, self._file = _create_part(self._target)
                own.add(self.location)
                copy_mode(self._target, self.location)
        except Stop:
            self.discard()
            raise

    def _may_take_name(self, usable_if_cut: bool) -> bool:
        there = _identity(self._target)
        if self.error:
            return usable_if_cut and there is None
        return there in (None, self._there_before)

    def _write_appended(self) -> None:
        """Write what is appended, in the thread."""
        due_s = monotonic() + _SYNC_S
        piece: bytes | None = b""
        while piece is not None:
            try:
                piece = self._appended.get(timeout=max(0.0, due_s - monotonic()))
            except Empty:
                piece = b""
            if piece and not self._overflowed:
                self._keep_waiting(piece)
            due = piece is None or monotonic() >= due_s
            if due or not self._write_error:
                self.write_waiting()
            if due:
                self._sync()
                due_s = monotonic() + _SYNC_S

    def _keep_waiting(self, piece: bytes) -> None:
        """Let a piece wait, or end the file before it if too much waits for a disk that is full."""
        if self._write_error and self.waiting_bytes >= _MAX_WAITING_BYTES:
            self._overflowed, self._loss = True, self._write_error
            return
        self._waiting.append(piece)
        self.waiting_bytes += len(piece)

    def _cut(self) -> None:
        """End the file behind the pieces that count."""
        self._file.seek(self.size)
        self._file.truncate()

    def _write(self, piece: bytes) -> None:
        while piece:
            piece = piece[self._file.write(piece) :]

    def _sync(self) -> None:
        if self._in_place:
            return
        try:
            sync(self._file)
        except OSError as error:
            self._loss = error


def _create_part(target: Path) -> tuple[tuple[Path, ...], Path, BinaryIO]:
    """Create the first of NAME.part, NAME.2.part ... that does not exist; return those that do, too."""
    others: list[Path] = []
    while True:
        number = f".{len(others) + 1}" if others else ""
        part = target.with_name(f"{target.name}{number}.part")
        try:
            return tuple(others), part, part.open("xb", buffering=0)
        except FileExistsError:
            others.append(part)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what changes when a file is replaced or written; None if there is none."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return None
