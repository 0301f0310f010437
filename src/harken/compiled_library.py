"""The compiled library, found and loaded; those who call its functions declare them."""

from __future__ import annotations

import sys
from ctypes import CDLL
from functools import cache
from pathlib import Path

from harken.errors import BackendUnavailable

ABI_VERSION = 1
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
        library = CDLL(str(path))
        version = library.harken_abi_version()
    except (OSError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise BackendUnavailable(f"the compiled library cannot be loaded: {reason}") from error
    if version != ABI_VERSION:
        raise BackendUnavailable(
            f"the compiled library cannot be loaded: {path} has version {version} of the interface, "
            f"not {ABI_VERSION}"
        )
    return library


def _build_failure(path: Path) -> str:
    """Return the reason that the installation left in place of the library."""
    try:
        return path.with_name("_not_built.txt").read_text(encoding="utf-8").strip()
    except OSError:
        return f"there is no {path}"
