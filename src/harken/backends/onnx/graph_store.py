"""The store of built graphs on disk: atomic, safe with several processes, verified before use.

A graph is a directory with ``model.onnx``, its weights beside it in ``model.data``, and ``checksums.json``. The
files are written under other names and renamed into place, the checksums last, so that an incomplete graph is never
used; a damaged one is built again. Processes that build the same graph at the same time replace its files by the same
bytes, so an intact graph can be opened at any time.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from harken.errors import OutputError

if TYPE_CHECKING:
    from onnx import ModelProto

GRAPH_FILES = ("model.onnx", "model.data")
CHECKSUM_FILE = "checksums.json"


def default_graph_directory() -> Path:
    """Return the directory of graphs: under ``HARKEN_CACHE``, or under the user's cache directory."""
    return Path(os.environ.get("HARKEN_CACHE") or platformdirs.user_cache_dir("harken")) / "graphs"


class GraphStore:
    """A directory of graphs, by key.

    Parameters
    ----------
    root : Path
        Created when first needed. Where it cannot be written, graphs go to a temporary directory of this process.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def get_or_build(self, key: str, build: Callable[[], ModelProto]) -> Path:
        """Return the path of the ONNX file under `key`; build it first if it is missing or damaged.

        Raises
        ------
        OutputError
            If it has to be built and cannot be written anywhere.
        """
        directory = self._root / key
        if is_intact(directory):
            return directory / GRAPH_FILES[0]
        model = build()
        try:
            return _publish(model, directory) / GRAPH_FILES[0]
        except OSError as error:
            try:
                return _publish(model, _temporary_root() / key) / GRAPH_FILES[0]
            except OSError:
                reason = error.strerror or error
                message = f"{self._root}: cannot keep the built graphs ({reason}); set HARKEN_CACHE"
                raise OutputError(message) from error


def is_intact(directory: Path) -> bool:
    """Return whether a stored graph has the checksums that it was written with."""
    try:
        return bool(json.loads((directory / CHECKSUM_FILE).read_text()) == _checksums(directory))
    except (OSError, ValueError):
        return False


def _publish(model: ModelProto, directory: Path) -> Path:
    """Write a graph to a temporary directory and rename its files into place."""
    import onnx

    directory.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        onnx.save_model(model, temporary / GRAPH_FILES[0], save_as_external_data=True, location=GRAPH_FILES[1])
        (temporary / CHECKSUM_FILE).write_text(json.dumps(_checksums(temporary)))
        for name in (*GRAPH_FILES, CHECKSUM_FILE):
            (temporary / name).replace(directory / name)
    except PermissionError:
        # Windows cannot replace an open file: another process has written the graph and uses it.
        if not is_intact(directory):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _temporary_root() -> Path:
    """Create a directory that is removed when this process ends."""
    root = Path(tempfile.mkdtemp(prefix="harken-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def _checksums(directory: Path) -> dict[str, int]:
    sums = {}
    for name in GRAPH_FILES:
        total = 0
        with (directory / name).open("rb") as file:
            while block := file.read(1 << 20):
                total = zlib.crc32(block, total)
        sums[name] = total
    return sums
