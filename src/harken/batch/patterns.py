"""Patterns of files: ``talks/**/*.mp3``, ``shards/{000..119}.tar``, by path or URL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from glob import glob, has_magic

from harken.batch.locations import file_system, is_url, is_web, join
from harken.errors import PlanError

_BRACES = re.compile(r"\{([^{}]*)\}")


def expand(source: str) -> list[str] | None:
    """Return the files of a pattern in order; None if it is none.

    Raises
    ------
    PlanError
        If a web server would have to list its files.
    """
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
