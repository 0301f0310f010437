"""Files by path or URL, and patterns of them: ``talks/**/*.mp3``, ``shards/{000..119}.tar``.

Local ones are read with the standard library, those of object stores and of the web with fsspec.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

from harken.errors import AudioError, AudioNotFound, BackendUnavailable, PlanError, install_hint

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]+)://", re.IGNORECASE)  # a drive of Windows has one letter
_BRACES = re.compile(r"\{([^{}]*)\}")
_CONNECT_S, _SILENCE_S = 30.0, 120.0  # of web servers; a long recording may take as long as it wants
_GONE = (404, 410)


def is_url(location: str) -> bool:
    """Return whether a location is a URL such as ``s3://bucket/talk.mp3``, and not a path."""
    return bool(_SCHEME.match(location))


def is_web(location: str) -> bool:
    """Return whether a location is a URL of a web server, which lists no folders."""
    return location.lower().startswith(("http://", "https://"))


def without_file_scheme(location: str) -> str:
    """Return the path of a ``file://`` URL; other locations stay as they are."""
    if location.lower().startswith("file://"):
        return url2pathname(urlsplit(location).path)
    return location


def absolute(location: str) -> str:
    """Return an absolute path, or a URL: workers of a cluster have other current folders."""
    return location if is_url(location) else os.path.abspath(location)


def suffix_of(location: str) -> str:
    """Return the suffix in small letters, without the query of a web server's URL."""
    return PurePosixPath(name_of(location)).suffix.lower()


def name_of(location: str) -> str:
    """Return the last part of a location."""
    return _without_query(location).replace(os.sep, "/").rpartition("/")[2]


def join(folder: str, name: str) -> str:
    """Return the location of a name in a folder; a URL or an absolute path stays as it is."""
    name = without_file_scheme(name)
    if is_url(name) or os.path.isabs(name):
        return name
    if not is_url(folder):
        return os.path.join(folder, name)
    scheme, _, path = folder.partition("://")
    return f"{scheme}://{_without_dots(path.rstrip('/') + '/' + name)}"


def parent_of(location: str) -> str:
    """Return the folder of a location."""
    if is_url(location):
        return _without_query(location).rpartition("/")[0]
    return os.path.dirname(location)


def _without_query(location: str) -> str:
    return re.split("[?#]", location, maxsplit=1)[0] if is_web(location) else location


def _without_dots(path: str) -> str:
    """Return the path in a store, which knows no ``..``."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
    return "/".join(parts)


def file_system(location: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the path in it; raise `BackendUnavailable` without the package for it."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(location, **_web_options(location))
    except (ImportError, ValueError) as error:
        raise BackendUnavailable(
            f"{location}: {one_line(error)}; {install_hint('urls')} installs what s3, gs and http need"
        ) from error
    return system, str(path)


def _web_options(location: str) -> dict[str, Any]:
    if not is_web(location):
        return {}
    from fsspec.implementations import http

    client: Any = http  # which brings aiohttp
    timeout = client.aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    return {"client_kwargs": {"timeout": timeout}}


@contextmanager
def open_binary(location: str) -> Iterator[BinaryIO]:
    """Open a file for reading, by path or URL; it raises OSErrors, and file systems of URLs may raise others, too."""
    if not is_url(location):
        with open(location, "rb") as file:
            yield file
        return
    system, path = file_system(location)
    with _open_remote(system, path) as remote:
        yield remote


def _open_remote(system: AbstractFileSystem, path: str) -> Any:
    try:
        return system.open(path, "rb")
    except FileNotFoundError as error:
        cause = error.__cause__
        if is_web(path) and cause and getattr(cause, "status", None) not in _GONE:
            raise cause from None  # every failure of a web server is called so
        raise


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


def exists(location: str) -> bool:
    """Return whether there is a file or folder."""
    if not is_url(location):
        return os.path.exists(location)
    system, path = file_system(location)
    return bool(system.exists(path))


def find_files(folder: str) -> Iterator[tuple[str, int]]:
    """Yield the files below a folder in order, each with its path relative to it, with slashes, and its size.

    Hidden ones are left out. Errors are those of `open_binary`.
    """
    files = _find_remote(folder) if is_url(folder) else _find_local(folder)
    for name, size in files:
        if not any(part.startswith(".") for part in name.split("/")):
            yield name, size


def _find_remote(folder: str) -> Iterator[tuple[str, int]]:
    system, root = file_system(folder)
    entries: dict[str, dict[str, Any]] = system.find(root, detail=True)
    for path in sorted(entries):
        yield path.removeprefix(root.rstrip("/")).lstrip("/"), int(entries[path].get("size") or 0)


def _find_local(folder: str) -> Iterator[tuple[str, int]]:
    def refuse(error: OSError) -> None:
        raise error

    for current, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        for name in sorted(names):
            file = Path(current, name)
            yield file.relative_to(folder).as_posix(), file.stat().st_size if file.exists() else 0


def expand(source: str) -> list[str] | None:
    """Return the files of a pattern in order, None if it is none; a web server is not asked for its files."""
    if not is_url(source) and os.path.lexists(source):
        return None
    alternatives = [*expand_braces(source)]
    if alternatives == [source] and not _has_magic(source):
        return None
    return [path for alternative in alternatives for path in _matches(alternative)]


def root_of(pattern: str) -> str:
    """Return the folder that all files of a pattern share, by which they are named."""
    head = re.split(r"[*?\[{]", pattern, maxsplit=1)[0].replace(os.sep, "/")
    return head.rpartition("/")[0] or ("/" if head.startswith("/") else "")


def relative_name(path: str, root: str) -> str:
    """Return the path of a file from the root of its pattern, with slashes."""
    return path.replace(os.sep, "/").removeprefix(root).lstrip("/")


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the alternatives of ``{a,b}`` and of ``{000..119}``, as in a shell and in webdataset."""
    for braces in _BRACES.finditer(pattern):
        choices = [*_choices(braces[1])]
        if choices != [braces[0]]:
            for choice in choices:
                yield from expand_braces(pattern[: braces.start()] + choice + pattern[braces.end() :])
            return
    yield pattern


def _choices(part: str) -> Iterator[str]:
    first, dots, last = part.partition("..")
    if dots and first.isdecimal() and last.isdecimal():
        width = len(first) if first.startswith("0") else 0
        yield from (f"{number:0{width}}" for number in range(int(first), int(last) + 1))
    else:
        yield from part.split(",") if "," in part else [f"{{{part}}}"]


def _has_magic(pattern: str) -> bool:
    return has_magic(pattern.partition("?")[0] if is_web(pattern) else pattern)


def _matches(pattern: str) -> Iterable[str]:
    if not _has_magic(pattern):
        return [pattern]
    if is_web(pattern):
        raise PlanError(
            f"{pattern}: a web server does not list files; allowed are braces, such as {{000..119}}.tar"
        )
    if not is_url(pattern):
        return sorted(path for path in glob(pattern, recursive=True) if os.path.isfile(path))
    system, path = file_system(pattern)
    root = root_of(pattern)
    root_path = file_system(root)[1] if "://" in root else ""
    found = system.glob(path, detail=True)
    return sorted(
        join(root, relative_name(name, root_path))
        for name, entry in found.items()
        if entry.get("type") != "directory"
    )


def one_line(error: Exception) -> str:
    """Return the reason of an error in one line."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    reason = getattr(error, "strerror", None)
    if not reason:
        text = str(error)
        reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return " ".join(str(reason).split())


def audio_error(location: str, error: Exception) -> AudioError:
    """Return the error of a recording that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return AudioNotFound(f"{location}: no such file")
    return AudioError(f"{location}: cannot be read: {one_line(error)}")
