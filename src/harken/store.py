"""The store of what is made of weights, on disk: atomic, safe with several processes, verified before use.

A key has a directory with its files and ``checksums.json``. All are written under other names and renamed into place,
the checksums last, so that incomplete files are never used; damaged ones are written again. Processes that write the
same key at the same time replace its files by the same bytes, so intact files can be opened at any time. What nobody
has used for 90 days, such as the files of an older harken, is removed when others are written.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from glob import glob
from pathlib import Path

import platformdirs

from harken.errors import HarkenError, OutputError
from harken.files import remove_abandoned, temporary_folder

CHECKSUM_FILE, TEXT_FILE = "checksums.json", "text"
UNUSED_AFTER_S = 90 * 24 * 3600

Write = Callable[[Path], None]
"""A function that writes the files of a key into a folder; it raises an OSError if it cannot."""


def default_store_directory() -> Path:
    """Return the directory of weights and graphs: under ``HARKEN_CACHE``, or under the user's cache directory."""
    return Path(os.environ.get("HARKEN_CACHE") or platformdirs.user_cache_dir("harken")) / "graphs"


def stored_files(key: str, names: Sequence[str], write: Write, root: Path | None = None) -> Path:
    """Return the directory of the files of these names under `key`; write them first if one is missing or damaged.

    Parameters
    ----------
    key : str
    names : sequence of str
    write : callable
        Called once, and once more where a disk has no room.
    root : Path, optional
        The directory of all keys, created when first needed; by default `default_store_directory`. Where it cannot be
        written, files go to a temporary directory of this process.

    Raises
    ------
    OutputError
        If they have to be written and cannot be written anywhere.
    """
    root = root or default_store_directory()
    directory = root / key
    with suppress(OSError):  # there are none, or they cannot be written
        os.utime(directory / CHECKSUM_FILE)  # before they are read: nobody shall remove them meanwhile
    if is_intact(directory, names):
        return directory
    remove_abandoned(root)
    _remove_unused(root)
    reasons = []
    for make_root in (partial(_make_root, root), _make_temporary_root):
        try:
            return _publish(write, names, make_root() / key)
        except HarkenError:
            raise
        except OSError as error:
            reasons.append(error.strerror or str(error))
    raise OutputError(
        f"{root}: cannot keep the built graphs ({reasons[0]}), nor can the folder of temporary files "
        f"({reasons[1]}); set HARKEN_CACHE to a folder with room"
    )


def stored_text(key: str, compute: Callable[[], str], root: Path | None = None) -> str:
    """Return a text that was computed once; where nothing can be stored, once in each call."""
    text = cache(compute)

    def write(folder: Path) -> None:
        (folder / TEXT_FILE).write_text(text())

    try:
        return (stored_files(key, (TEXT_FILE,), write, root) / TEXT_FILE).read_text()
    except OutputError:
        return text()


def _make_root(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    return root


def _remove_unused(root: Path) -> None:
    """Remove the keys that nobody has used for long; whatever cannot be removed, as it is open on Windows, stays."""
    # Path.glob would raise where a folder cannot be searched.
    for name in glob(f"*/{CHECKSUM_FILE}", root_dir=root):
        with suppress(OSError):
            if time.time() - (root / name).stat().st_mtime > UNUSED_AFTER_S:
                shutil.rmtree((root / name).parent, ignore_errors=True)


def is_intact(directory: Path, names: Sequence[str]) -> bool:
    """Return whether stored files have the checksums that they were written with."""
    try:
        return bool(json.loads((directory / CHECKSUM_FILE).read_text()) == _checksums(directory, names))
    except (OSError, ValueError):
        return False


def _publish(write: Write, names: Sequence[str], directory: Path) -> Path:
    """Write files to a temporary directory and rename them into place."""
    with temporary_folder(directory.parent) as temporary:
        write(temporary)
        (temporary / CHECKSUM_FILE).write_text(json.dumps(_checksums(temporary, names)))
        directory.mkdir(exist_ok=True)
        try:
            for name in (*names, CHECKSUM_FILE):
                (temporary / name).replace(directory / name)
        except PermissionError:
            # Windows cannot replace an open file: another process has written the same and uses it.
            if not is_intact(directory, names):
                raise
    return directory


def _make_temporary_root() -> Path:
    """Create a directory that is removed when this process ends; if it is killed, by the next that needs one."""
    parent = Path(tempfile.gettempdir())
    remove_abandoned(parent)
    folder = temporary_folder(parent, mode=0o700)
    root = folder.__enter__()
    atexit.register(folder.__exit__, None, None, None)
    return root


def _checksums(directory: Path, names: Sequence[str]) -> dict[str, int]:
    sums = {}
    for name in names:
        total = 0
        with (directory / name).open("rb") as file:
            while block := file.read(1 << 20):
                total = zlib.crc32(block, total)
        sums[name] = total
    return sums
