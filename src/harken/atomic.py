"""Atomic writing of files: a path has either the complete new content or its previous content, never a part."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from harken.errors import OutputError
from harken.temporary import create_temporary_file, remove_abandoned, remove_temporary_file


def write_atomic(path: Path | str, chunks: Iterable[str | bytes], *, durable: bool = False) -> None:
    """Write a file atomically, as `open_atomic` does.

    Parameters
    ----------
    path : Path or str
        The file; an existing one is replaced.
    chunks : iterable of str or bytes
        The content; text is written as UTF-8. If the iterable raises an exception, nothing is written.
    durable : bool
        True to wait until the content is on the disk.

    Raises
    ------
    OutputError
        If the file cannot be written; the message names the file and the reason.
    """
    with open_atomic(path, durable=durable) as write:
        for chunk in chunks:
            write(chunk)


@contextmanager
def open_atomic(path: Path | str, *, durable: bool = False) -> Iterator[Callable[[str | bytes], None]]:
    """Open a file for atomic writing: it appears when the block ends, and not at all if the block fails.

    Until then the content is in a hidden file beside it. Several writers of one path do not disturb one another; the
    last one to finish wins. A symbolic link is followed, and a device or pipe is written directly.

    Parameters
    ----------
    path : Path or str
        The file; an existing one is replaced.
    durable : bool
        True to wait until the content is on the disk.

    Yields
    ------
    callable
        Writes text (as UTF-8) or bytes.

    Raises
    ------
    OutputError
        If the file cannot be written; the message names the file and the reason.
    """
    path_given = Path(path)
    with wrap_os_errors(path_given):
        in_place = path_given.exists() and not path_given.is_file()
        target = path_given if in_place else Path(os.path.realpath(path_given))
        temporary, file = (
            (path_given, path_given.open("wb")) if in_place else _create_temporary_file(target.parent)
        )

    def write(chunk: str | bytes) -> None:
        with wrap_os_errors(path_given):
            file.write(chunk.encode(errors="replace") if isinstance(chunk, str) else chunk)

    try:
        yield write
        with wrap_os_errors(path_given):
            file.flush()
            if durable and not in_place:
                sync(file)
            if in_place:
                file.close()
            else:
                _close_and_rename(file, temporary, target)
    finally:
        with suppress(OSError):
            file.close()
        if not in_place:
            remove_temporary_file(temporary)


def _create_temporary_file(folder: Path) -> tuple[Path, BinaryIO]:
    """Create a temporary file in a folder; the first one removes those that killed processes left there."""
    _clean_once(folder)
    return create_temporary_file(folder)


@cache
def _clean_once(folder: Path) -> None:
    remove_abandoned(folder)


def _close_and_rename(file: BinaryIO, temporary: Path, target: Path) -> None:
    """Close a file and rename it; until then it stays locked."""
    if sys.platform == "win32":  # renames only closed files
        file.close()
        os.replace(temporary, target)
        return
    lock = os.dup(file.fileno())
    try:
        file.close()
        os.replace(temporary, target)
    finally:
        os.close(lock)


def sync(file: BinaryIO) -> None:
    """Wait until a file is on the disk, if its disk can be told to.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    try:
        os.fsync(file.fileno())
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise


@contextmanager
def wrap_os_errors(path: Path | str) -> Iterator[None]:
    """Convert an OSError to an `OutputError` that names the file."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f"there is no folder {Path(path).parent}" if missing else error.strerror or str(error)
        raise OutputError(f"{path}: cannot be written: {reason}") from error
