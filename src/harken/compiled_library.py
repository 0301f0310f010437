"""The compiled library, found and loaded, and the processors for it; those who call its functions declare them."""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from ctypes import CDLL
from functools import cache
from pathlib import Path
from struct import Struct

from harken.errors import BackendUnavailable

ABI_VERSION = 17
REBUILD = "pip install . in a clone of harken builds it again"
CONTAINER_SHARE = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of processor time that a container gets in a period, and the period (Linux control groups 2)."""
_ELF_HEADER = Struct("<40x Q 10x H H 2x")  # of 64 bits: offset, size and number of the sections
_SUFFIXES = {"win32": "dll", "darwin": "dylib"}


def library_path() -> Path:
    """Return the path at which the library is expected."""
    folder = Path(__file__).parent / "backends" / "native"
    return folder / f"_harken.{_SUFFIXES.get(sys.platform, 'so')}"


@cache
def load_library() -> CDLL:
    """Load the library; calls of its functions release the interpreter's lock.

    Raises
    ------
    BackendUnavailable
        If it was not built, or cannot be loaded.
    """
    path = library_path()
    if not path.exists():
        raise BackendUnavailable(f"the compiled library was not built: {_build_failure(path)}")
    try:
        _check_whole(path)
        library = CDLL(str(path))
        version = library.harken_abi_version()
    except (OSError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise BackendUnavailable(f"the compiled library cannot be loaded: {reason}; {REBUILD}") from error
    if version != ABI_VERSION:
        raise BackendUnavailable(
            f"the compiled library is of another version of harken: {path} has interface {version}, not {ABI_VERSION}; "
            f"{REBUILD}"
        )
    return library


def _check_whole(path: Path) -> None:
    """Raise an OSError for a file in ELF that was cut short: loading one ends the process by a signal.

    The table of sections, whose place is in the header, ends the file.
    """
    with path.open("rb") as file:
        header = file.read(_ELF_HEADER.size)
    if header.startswith(b"\x7fELF"):
        if len(header) < _ELF_HEADER.size:
            raise OSError(f"{path} is cut short")
        sections_at, section_bytes, n_sections = _ELF_HEADER.unpack(header)
        if sections_at + section_bytes * n_sections > path.stat().st_size:
            raise OSError(f"{path} is cut short")


def _build_failure(path: Path) -> str:
    """Return the reason that the installation left in place of the library."""
    try:
        return path.with_name("_not_built.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return f"there is no {path}"


def usable_processors() -> int:
    """Return the number of processors that this process may use, in a container as many as its share of time fills."""
    usable = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):  # a sandbox may refuse the call
            usable = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no container, or "max", which is no limit
        quota, period = map(int, CONTAINER_SHARE.read_text("utf-8").split())
        usable = min(usable, max(1, math.ceil(quota / period)))
    return usable
