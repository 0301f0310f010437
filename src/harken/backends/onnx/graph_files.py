"""The files of a stored graph: ``model.onnx``, and its weights beside it in ``model.data``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

MODEL_FILE, DATA_FILE = "model.onnx", "model.data"
LARGEST_INLINE_BYTES = 1024
"""Size up to which a tensor stays in the model's file."""


def write_graph(model: ModelProto, folder: Path) -> None:
    """Write a graph to a folder, and check that all of it is there.

    The model is used up: each tensor loses its data when that is written, so after an error it must be built anew.

    Raises
    ------
    OSError
        If a file cannot be written, or does not hold what was written.
    """
    from onnx.external_data_helper import set_external_data

    # Not `onnx.save_model`, which asks the network interfaces for an id, and is disturbed by the user's current folder.
    with (folder / DATA_FILE).open("xb") as file:
        for tensor in model.graph.initializer:
            if len(data := tensor.raw_data) > LARGEST_INLINE_BYTES:
                offset = file.tell()
                file.write(data)
                set_external_data(tensor, DATA_FILE, offset, len(data))
                tensor.ClearField("raw_data")
    (folder / MODEL_FILE).write_bytes(model.SerializeToString())
    _check_whole(folder)


def _check_whole(folder: Path) -> None:
    """Check that every tensor of a written graph has as many bytes as its shape and type take."""
    import onnx

    data_bytes = (folder / DATA_FILE).stat().st_size
    for tensor in onnx.load(folder / MODEL_FILE, load_external_data=False).graph.initializer:
        item_bytes = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if _stored_bytes(tensor, data_bytes) != math.prod(tensor.dims) * item_bytes:
            raise OSError(f"{tensor.name} was not written whole")


def _stored_bytes(tensor: TensorProto, data_bytes: int) -> int:
    """Return the number of bytes that are stored of a tensor; `data_bytes` is the size of the file of weights."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    if not place:
        return len(tensor.raw_data)
    return min(int(place["length"]), data_bytes - int(place["offset"]))
