"""Files that are whole or absent, the removal of what killed processes left of them, and lists that are read.

A file is written under a hidden temporary name in the folder of its own, and renamed at the end. As long as its process
uses it, a temporary file is locked, and the operating system releases the lock however the process ends; so an unlocked
one was left behind, on this machine or, on a shared disk that knows locks, on another. Windows needs no lock: it does
not delete an open file.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO
from unicodedata import normalize

from harken.errors import ManifestError, OutputError

if sys.platform != "win32":
    import fcntl

_PREFIX, _SUFFIX, _FOLDER_SUFFIX = ".harken-", ".part", ".files"
own: set[Path] = set()
"""The temporary files and folders of this process, which `remove_own` removes."""


def write_atomic(path: Path | str, chunks: Iterable[str | bytes], *, durable: bool = False) -> None:
    """Write a file as `open_atomic` does; if the iterable raises an exception, nothing is written."""
    with open_atomic(path, durable=durable) as write:
        for chunk in chunks:
            write(chunk)


@contextmanager
def open_atomic(path: Path | str, *, durable: bool = False) -> Iterator[Callable[[str | bytes], None]]:
    """Open a file for atomic writing: it appears when the block ends, and not at all if the block fails.

    An existing file is replaced, by one with its permissions. Several writers of one path do not disturb one another;
    the last one to finish wins. A symbolic link is followed, and a device or pipe is written directly. If it is
    `durable`, the end of the block waits until the content is on the disk.

    Yields
    ------
    callable
        Writes text (as UTF-8) or bytes.

    Raises
    ------
    OutputError
        If the file cannot be written; the message names the file and the reason.
    """
    with wrap_os_errors(path):
        in_place = os.path.exists(path) and not os.path.isfile(path)
        target = Path(path if in_place else os.path.realpath(path))
        if not in_place:
            _clean_once(target.parent)
        temporary, file = (target, target.open("wb")) if in_place else _create_locked(target.parent)
        if not in_place:
            copy_mode(target, temporary)

    def write(chunk: str | bytes) -> None:
        with wrap_os_errors(path):
            file.write(chunk.encode(errors="replace") if isinstance(chunk, str) else chunk)

    try:
        yield write
        with wrap_os_errors(path):
            file.flush()
            if durable and not in_place:
                sync(file)
            if sys.platform == "win32" or in_place:  # Windows renames only closed files
                file.close()
            if not in_place:
                os.replace(temporary, target)
            file.close()
    finally:
        with suppress(OSError):
            file.close()
        if not in_place:
            _remove(temporary)


@contextmanager
def temporary_folder(parent: Path, *, mode: int = 0o777) -> Iterator[Path]:
    """Create a hidden folder, which is removed at the end of the block; a locked file beside it says that it is used.

    Its permissions are `mode` less those that the user's umask takes: a cache may be shared by a group.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    lock_path, lock_file = _create_locked(parent)
    folder = lock_path.with_suffix(_FOLDER_SUFFIX)
    try:
        own.add(folder)
        folder.mkdir(mode)
        yield folder
    finally:
        _remove(folder)
        lock_file.close()  # before it is removed, which Windows does not do with an open file
        _remove(lock_path)


def read_file(path: Path, allowed: str) -> bytes:
    """Return the content of a file; a `ManifestError` says why it cannot be read, and ends with what is allowed."""
    try:
        if path.is_char_device():
            raise ManifestError(f"{path}: is a device; {allowed}")
        return path.read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise ManifestError(f"{path}: {reason}; {allowed}") from error


def decode(content: bytes, where: str) -> str:
    """Return the text of UTF-8; a `ManifestError` names the place of what is none."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{where}: is not UTF-8 text, at byte {error.start}") from error


def make_folder(folder: Path) -> None:
    """Create a folder and its parents if they do not exist; an `OutputError` says why they cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made a folder: {error.strerror or error}") from error


def copy_mode(target: Path, new: Path) -> None:
    """Give a new file the permissions of the one that it is to replace, if there is one."""
    with suppress(OSError):
        shutil.copymode(target, new)


def folded_name(name: str) -> str:
    """Return a name as disks that ignore case compare it; they also ignore how accents are encoded."""
    return normalize("NFC", normalize("NFC", name).casefold())


def remove_own() -> None:
    """Remove all temporary files and folders of this process, which is about to end in the middle of its work."""
    for path in [*own]:
        _remove(path)


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes of this user left in a folder; whatever cannot be examined or removed stays."""
    with suppress(OSError), os.scandir(folder) as scanned:
        entries = [Path(entry) for entry in scanned if _is_ours(entry)]
        for path in entries:
            with suppress(OSError):
                if path.suffix == _SUFFIX and not path.is_dir():
                    _unlink_unlocked(path)
        for path in entries:  # the lock is made before the folder
            if path.suffix == _FOLDER_SUFFIX and not path.with_suffix(_SUFFIX).exists():
                shutil.rmtree(path, ignore_errors=True)


def sync(file: BinaryIO) -> None:
    """Wait until a file is on the disk, if its disk can be told to; raise the OSError if it cannot be written."""
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise


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


@contextmanager
def wrap_os_errors(path: Path | str) -> Iterator[None]:
    """Convert an OSError to an `OutputError` that names the file."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not os.path.isdir(Path(path).parent)
        reason = f"there is no folder {Path(path).parent}" if missing else error.strerror or str(error)
        raise OutputError(f"{path}: cannot be written: {reason}") from error


@cache
def _clean_once(folder: Path) -> None:
    remove_abandoned(folder)


def _create_locked(folder: Path) -> tuple[Path, BinaryIO]:
    """Create a hidden file in a folder, open for writing and locked until it is closed."""
    while True:
        path = folder / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
        file = path.open("xb")
        if lock(file, where_unsupported=True) and path.exists():  # else another process just removed it
            own.add(path)
            return path, file
        file.close()


def _remove(path: Path) -> None:
    """Remove a temporary file or folder of this process, if it still has its first name."""
    with suppress(OSError):
        shutil.rmtree(path, ignore_errors=True) if path.suffix == _FOLDER_SUFFIX else path.unlink()
    own.discard(path)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether it may be removed: in a shared folder, somebody else can put a link or a file of that name."""
    if not entry.name.startswith(_PREFIX) or entry.is_symlink():
        return False
    return sys.platform == "win32" or entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def _unlink_unlocked(path: Path) -> None:
    """Remove a file unless a living process holds its lock, or the disk knows no locks."""
    if sys.platform == "win32":
        path.unlink()
        return
    with path.open("rb") as file:
        if lock(file, where_unsupported=False):
            path.unlink()
