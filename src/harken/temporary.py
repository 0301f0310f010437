"""Temporary files and folders that say whether their process still lives, so that those of killed ones are removed.

Each is locked as long as its process uses it, and the operating system releases the lock however the process ends. So
an unlocked one was left behind, on this machine or, on a shared disk that knows locks, on another. Windows needs no
lock: it does not delete an open file.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

_PREFIX, _SUFFIX = ".harken-", ".part"
_LOCK_FILE = "lock"  # of a folder
_own: set[Path] = set()


def create_temporary_file(folder: Path) -> tuple[Path, BinaryIO]:
    """Create a hidden file in a folder, open for writing and locked until it is closed.

    Returns
    -------
    path : Path
    file : binary file

    Raises
    ------
    OSError
        If it cannot be created.
    """
    while True:
        path = _new_path(folder)
        file = path.open("xb")
        if lock(file, where_unsupported=True) and path.exists():  # else another process just removed it
            _own.add(path)
            return path, file
        file.close()


@contextmanager
def temporary_folder(parent: Path, *, mode: int = 0o777) -> Iterator[Path]:
    """Create a hidden folder, which is removed at the end of the block.

    Its permissions are `mode` less those that the user's umask takes: a cache may be shared by a group.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    while True:
        path = _new_path(parent)
        path.mkdir(mode)
        with suppress(FileNotFoundError):  # `remove_abandoned` of another process came between
            lock_file = (path / _LOCK_FILE).open("xb")
            if lock(lock_file, where_unsupported=True) and path.exists():
                break
            lock_file.close()
    _own.add(path)
    try:
        yield path
    finally:
        with suppress(OSError):
            _empty_folder(path)
        lock_file.close()  # before it is removed, which Windows does not do with an open file
        with suppress(OSError):
            _remove_folder(path)
        _own.discard(path)


def remove_temporary_file(path: Path) -> None:
    """Remove a temporary file of this process, if it still has its first name."""
    with suppress(OSError):
        path.unlink()
    _own.discard(path)


def register_own(path: Path) -> None:
    """Have a file removed by `remove_own` until `release_own`: nothing in it would be missed."""
    _own.add(path)


def release_own(path: Path) -> None:
    """Keep a file from `remove_own` from now on."""
    _own.discard(path)


def remove_own() -> None:
    """Remove all temporary files and folders of this process, which is about to end in the middle of its work."""
    for path in [*_own]:
        with suppress(OSError):
            _remove_folder(path) if path.is_dir() else path.unlink()


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes of this user left in a folder; whatever cannot be examined or removed stays."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                with suppress(OSError):
                    if _is_own(entry):
                        _remove_if_abandoned(Path(entry))


def _is_own(entry: os.DirEntry[str]) -> bool:
    """Return whether it may be removed: in a shared folder, somebody else can put a link or a file of that name."""
    if entry.is_symlink():
        return False
    return sys.platform == "win32" or entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def _remove_if_abandoned(path: Path) -> None:
    """Remove a temporary file or folder unless its process lives."""
    if not path.is_dir():
        with _locked(path):
            path.unlink()
        return
    has_content = bool(os.listdir(path))
    if (path / _LOCK_FILE).exists():
        with _locked(path / _LOCK_FILE):
            _check_closed(path / _LOCK_FILE)
            _remove_folder(path)
    elif has_content:
        _remove_folder(path)  # the lock was there before the content, so the folder was being removed
    else:
        path.rmdir()  # killed before there was a lock; not so if it has content by now


def _remove_folder(path: Path) -> None:
    """Remove a temporary folder, its lock last: of one that is removed in part, this says that nobody uses it.

    Raises
    ------
    OSError
        If something in it cannot be removed; then the lock stays.
    """
    _empty_folder(path)
    if os.listdir(path) == [_LOCK_FILE]:
        (path / _LOCK_FILE).unlink()
    path.rmdir()


def _empty_folder(path: Path) -> None:
    """Remove everything in a temporary folder but the lock, as far as possible."""
    for entry in path.iterdir():
        if entry.name != _LOCK_FILE:
            with suppress(OSError):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _check_closed(path: Path) -> None:
    """Raise an OSError if a process of Windows has a file open: it can be renamed as little as removed."""
    if sys.platform == "win32":
        aside = path.with_name(f"{path.name}2")
        path.rename(aside)
        aside.rename(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file during the block.

    Raises
    ------
    BlockingIOError
        If another process holds it, or the disk knows no locks.
    """
    if sys.platform == "win32":
        yield
        return
    with open(path, "rb") as file:
        if not lock(file, where_unsupported=False):
            raise BlockingIOError
        yield


def lock(file: BinaryIO, *, where_unsupported: bool) -> bool:
    """Lock a file until it is closed; return False if another process holds the lock."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return where_unsupported
    return True


def _new_path(folder: Path) -> Path:
    return folder / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
