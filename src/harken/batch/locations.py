"""Files by path or URL: local ones with the standard library, those of object stores and of the web with fsspec."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from harken.errors import AudioError, AudioNotFound, BackendUnavailable

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+)://", re.IGNORECASE)  # a drive of Windows has one letter


def is_url(location: str) -> bool:
    """Return whether a location is a URL such as ``s3://bucket/talk.mp3``, and not a path."""
    return bool(_SCHEME.match(location))


def join(folder: str, name: str) -> str:
    """Return the location of a name in a folder; a URL or an absolute path stays as it is."""
    if is_url(name):
        return name
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def parent_of(location: str) -> str:
    """Return the folder of a location."""
    return location.rpartition("/")[0] if is_url(location) else os.path.dirname(location)


def file_system(location: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the path in it.

    Raises
    ------
    BackendUnavailable
        If the package for URLs of this kind is not installed.
    """
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError) as error:
        raise BackendUnavailable(
            f"{location}: {error}; pip install 'harken[batch]', and for s3:// s3fs, for gs:// gcsfs"
        ) from error
    return system, str(path)


@contextmanager
def open_binary(location: str) -> Iterator[BinaryIO]:
    """Open a file for reading, by path or URL.

    Raises
    ------
    OSError
        If it cannot be read.
    BackendUnavailable
        As `file_system`.
    """
    if not is_url(location):
        with open(location, "rb") as file:
            yield file
        return
    system, path = file_system(location)
    with system.open(path, "rb") as remote:
        yield remote


def read_bytes(location: str) -> bytes:
    """Return the content of a file, by path or URL; raises as `open_binary` does."""
    with open_binary(location) as file:
        return file.read()


def size_bytes(location: str) -> int | None:
    """Return the size of a file; None if it cannot be told without reading it, or is not there."""
    try:
        if not is_url(location):
            return os.stat(location).st_size
        system, path = file_system(location)
        size = system.info(path).get("size")
    except Exception:  # whatever a file system raises; opening it will say what is wrong
        return None
    return int(size) if size is not None else None


def find_files(folder: str) -> Iterator[tuple[str, int]]:
    """Yield the files below a folder in order, each with its path relative to it, with slashes, and its size."""
    if is_url(folder):
        system, root = file_system(folder)
        entries: dict[str, dict[str, Any]] = system.find(root, detail=True)
        for path in sorted(entries):
            yield path.removeprefix(root.rstrip("/")).lstrip("/"), int(entries[path].get("size") or 0)
        return
    for current, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(current, name)
            yield file.relative_to(folder).as_posix(), file.stat().st_size if file.exists() else 0


def audio_error(location: str, error: Exception) -> AudioError:
    """Return the error of a recording that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return AudioNotFound(f"{location}: no such file")
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return AudioError(f"{location}: cannot be read: {' '.join(str(reason).split())}")
