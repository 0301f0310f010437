"""The store of built graphs and packed weights on disk: atomic, safe with several processes, verified before use.

A key has a directory with its files and ``checksums.json``; the files of a graph are ``model.onnx`` and, beside it, its
weights in ``model.data``. All are written under other names and renamed into place, the checksums last, so that an
incomplete graph is never used; a damaged one is built again. Processes that build the same graph at the same time
replace its files by the same bytes, so an intact graph can be opened at any time.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import platformdirs

from harken.backends.onnx.graph_files import DATA_FILE, MODEL_FILE, BuiltGraph, write_graph
from harken.errors import HarkenError, OutputError
from harken.files import remove_abandoned, temporary_folder

GRAPH_FILES = (MODEL_FILE, DATA_FILE)
CHECKSUM_FILE = "checksums.json"
_EARLIER_TEMPORARY = re.compile(r"\.(probe|[0-9a-f]{32}-.+)-v\d+-\w{8}")
"""Names of temporary directories of harken 0.1, which did not say whether their process lived."""
_EARLIER_MAX_AGE_S = 24 * 60 * 60

Write = Callable[[Path], None]
"""A function that writes the files of a key into a folder; it raises an OSError if it cannot."""


def default_graph_directory() -> Path:
    """Return the directory of graphs: under ``HARKEN_CACHE``, or under the user's cache directory."""
    return Path(os.environ.get("HARKEN_CACHE") or platformdirs.user_cache_dir("harken")) / "graphs"


class GraphStore:
    """A directory of graphs and other large files, by key.

    Parameters
    ----------
    root : Path
        Created when first needed. Where it cannot be written, graphs go to a temporary directory of this process.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def get_or_build(self, key: str, build: Callable[[], BuiltGraph]) -> Path:
        """Return the path of the ONNX file under `key`; build it first if it is missing or damaged.

        Raises
        ------
        OutputError
            If it has to be built and cannot be written anywhere.
        """
        return self.get_or_write(key, GRAPH_FILES, lambda: partial(write_graph, build())) / MODEL_FILE

    def get_or_write(self, key: str, names: Sequence[str], prepare: Callable[[], Write]) -> Path:
        """Return the directory of the files under `key`; write them first if one is missing or damaged.

        Parameters
        ----------
        key : str
        names : sequence of str
            Names of the files.
        prepare : callable
            Called at most once; returns the function that writes the files. Where a disk has no room for them, that is
            called again for a temporary directory.

        Raises
        ------
        OutputError
            If they have to be written and cannot be written anywhere.
        """
        directory = self._root / key
        if is_intact(directory, names):
            return directory
        _remove_leftovers(self._root)
        write = prepare()
        reasons = []
        for make_root in (self._make_root, _make_temporary_root):
            try:
                return _publish(write, names, make_root() / key)
            except HarkenError:
                raise
            except OSError as error:
                reasons.append(error.strerror or str(error))
        raise OutputError(
            f"{self._root}: cannot keep the built graphs ({reasons[0]}), nor can the folder of temporary files "
            f"({reasons[1]}); set HARKEN_CACHE to a folder with room"
        )

    def _make_root(self) -> Path:
        self._root.mkdir(parents=True, exist_ok=True)
        return self._root


def is_intact(directory: Path, names: Sequence[str] = GRAPH_FILES) -> bool:
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


def _remove_leftovers(root: Path) -> None:
    """Remove the temporary directories of processes that were killed while they wrote a graph."""
    remove_abandoned(root)
    for path in _earlier_temporary_directories(root):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _EARLIER_MAX_AGE_S:
                shutil.rmtree(path)


def _earlier_temporary_directories(root: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from (path for path in root.iterdir() if _EARLIER_TEMPORARY.fullmatch(path.name))


def _checksums(directory: Path, names: Sequence[str]) -> dict[str, int]:
    sums = {}
    for name in names:
        total = 0
        with (directory / name).open("rb") as file:
            while block := file.read(1 << 20):
                total = zlib.crc32(block, total)
        sums[name] = total
    return sums
