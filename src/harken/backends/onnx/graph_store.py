"""Built graphs on disk: atomic, safe with several processes, checked before use and rebuilt when broken.

A graph is a directory with ``model.onnx``, its weights beside it in ``model.data``, and ``checksums.json``. The
files are made under other names and renamed into place, the checksums last, so that half a graph is never taken
for a whole one. Processes that build the same graph at once replace its files by the same bytes: whoever has
found it intact can open it at any time.
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
    """Where graphs are kept: ``HARKEN_CACHE``, or the cache directory that the platform has for users."""
    return Path(os.environ.get("HARKEN_CACHE") or platformdirs.user_cache_dir("harken")) / "graphs"


class GraphStore:
    """Graphs under one directory, by key.

    Parameters
    ----------
    root : Path
        Made when first needed; where it cannot be written, one that lasts as long as the process is used.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def get_or_build(self, key: str, build: Callable[[], ModelProto]) -> Path:
        """Path of the ONNX file under `key`, built first if it is not there or not intact.

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
    """Whether a kept graph has the checksums that it was written with."""
    try:
        return bool(json.loads((directory / CHECKSUM_FILE).read_text()) == _checksums(directory))
    except (OSError, ValueError):
        return False


def _publish(model: ModelProto, directory: Path) -> Path:
    """Write a graph beside its final place and rename its files into it."""
    import onnx

    directory.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        onnx.save_model(model, temporary / GRAPH_FILES[0], save_as_external_data=True, location=GRAPH_FILES[1])
        (temporary / CHECKSUM_FILE).write_text(json.dumps(_checksums(temporary)))
        for name in (*GRAPH_FILES, CHECKSUM_FILE):
            (temporary / name).replace(directory / name)
    except PermissionError:
        # Windows replaces no file that is open: another process was faster and uses it.
        if not is_intact(directory):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _temporary_root() -> Path:
    """Make a directory that is removed when this process ends."""
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
