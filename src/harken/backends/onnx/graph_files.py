"""A built graph, and its files: ``model.onnx``, and the large weights beside it in ``model.data``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from harken.backends.store import FileStore

if TYPE_CHECKING:
    from onnx import ModelProto

MODEL_FILE, DATA_FILE = "model.onnx", "model.data"


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """A graph whose large weights are not in its model.

    Copying them into it would take several times the memory, and would keep a signal waiting for seconds.

    Attributes
    ----------
    model : ModelProto
        The model; its large weights say where in `DATA_FILE` they are.
    weights : sequence of ndarray
        These weights, C-contiguous, in the order of the file.
    """

    model: ModelProto
    weights: Sequence[NDArray[Any]]


def stored_graph(store: FileStore, key: str, build: Callable[[], BuiltGraph]) -> Path:
    """Return the path of the ONNX file under `key`; build it first if it is missing or damaged.

    Raises
    ------
    OutputError
        If it has to be built and cannot be written anywhere.
    """
    folder = store.get_or_write(key, (MODEL_FILE, DATA_FILE), lambda: partial(write_graph, build()))
    return folder / MODEL_FILE


def write_graph(graph: BuiltGraph, folder: Path) -> None:
    """Write the files of a graph to a folder, and check that all of it is there.

    Raises
    ------
    OSError
        If a file cannot be written, or does not hold what was written.
    """
    with (folder / DATA_FILE).open("wb") as file:
        for weight in graph.weights:
            file.write(weight.data)
    (folder / MODEL_FILE).write_bytes(graph.model.SerializeToString())
    _check_whole(folder)


def _check_whole(folder: Path) -> None:
    """Check that every weight of a written graph is in its files."""
    import onnx

    data_bytes = (folder / DATA_FILE).stat().st_size
    for tensor in onnx.load(folder / MODEL_FILE, load_external_data=False).graph.initializer:
        place = {entry.key: int(entry.value) for entry in tensor.external_data if entry.key != "location"}
        if (
            place["offset"] + place["length"] > data_bytes
            if place
            else not tensor.raw_data and 0 not in tensor.dims
        ):
            raise OSError(f"{tensor.name} was not written whole")
