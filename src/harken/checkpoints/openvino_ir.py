"""Reader of the weights in OpenVINO's IR as optimum-intel writes it: an XML and its data for encoder and decoder.

Constants are bytes of the ``.bin`` file. What is computed of constants alone, as the weights of quantised layers
``(codes - zero_point) * scale``, is computed here; the layout is that of `ov::pass::Serialize`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, assemble, find_vocabulary
from harken.checkpoints.graph_weights import Constant, Node, weights_of_graph
from harken.checkpoints.model_files import (
    DTYPES,
    Array,
    ByteArray,
    LazyTensor,
    StorageDtype,
    lazy_tensor,
    reading,
    watch,
)
from harken.checkpoints.weight_names import dims_beside
from harken.checkpoints.weight_shapes import usual_heads
from harken.errors import CheckpointError

ENCODER, DECODER = "openvino_encoder_model.xml", "openvino_decoder_model.xml"
_MAX_XML_BYTES = 1 << 26  # large-v3 has 5 MB


def _decode_nibbles(offset: int, blocks: ByteArray) -> Array:
    """Decode bytes of two codes, the low nibble first; with an offset of 8 they are signed."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).astype(np.int8)
    signed: Array = (codes ^ offset) - offset
    return signed


_DTYPES = {
    **{"f32": DTYPES["float32"], "f16": DTYPES["float16"], "bf16": DTYPES["bfloat16"]},
    **{"i8": DTYPES["int8"], "u8": DTYPES["uint8"], "i32": DTYPES["int32"], "i64": DTYPES["int64"]},
    "u4": StorageDtype("uint4", 2, 1, partial(_decode_nibbles, 0)),
    "i4": StorageDtype("int4", 2, 1, partial(_decode_nibbles, 8)),
}
_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {"Subtract": np.subtract, "Multiply": np.multiply}


def read(path: Path) -> Checkpoint:
    """Open an encoder with the decoder beside it."""
    graphs = {"encoder": path.with_name(ENCODER), "decoder": path.with_name(DECODER)}
    if path not in graphs.values() or not all(map(Path.is_file, graphs.values())):
        raise CheckpointError(f"{path}: allowed are {ENCODER} and {DECODER} in one directory")
    config, config_files = dims_beside(path.parent)
    files = [watch(file) for graph in graphs.values() for file in (graph, graph.with_suffix(".bin"))]
    files += config_files
    tensors: dict[str, LazyTensor] = {}
    for side, graph in graphs.items():
        nodes, constants = _read_graph(graph)
        tensors |= weights_of_graph(nodes, constants, side)
    dims = usual_heads(path, tensors) | config
    return assemble(path, "openvino", tensors, dims, find_vocabulary(path.parent), files=files)


def _read_graph(path: Path) -> tuple[list[Node], dict[str, Constant]]:
    """Return the operations of a graph and its constants, by the number of the layer that computes them."""
    root = _parse(path)
    inputs: dict[str, list[tuple[int, str]]] = {}
    for edge in root.iter("edge"):
        port = edge.get("to-port", "")
        order = int(port) if port.isdecimal() and len(port) < 6 else 0
        inputs.setdefault(edge.get("to-layer", ""), []).append((order, edge.get("from-layer", "")))
    constants: dict[str, Constant] = {}
    scaled: dict[str, tuple[str, Constant]] = {}  # layers whose product is multiplied before the bias is added
    modules: dict[str, str] = {}
    nodes: list[Node] = []
    for layer in root.iter("layer"):
        number, kind, name = (layer.get(key, "") for key in ("id", "type", "name"))
        sources = tuple(source for _, source in sorted(inputs.get(number, [])))
        found = _constant(path, layer, kind, name, [constants.get(source) for source in sources])
        if found:
            constants[number] = found
        module, _, operation = name.removeprefix("__module.").partition("/")
        modules[number] = module = "" if not operation or module.startswith("aten::") else module
        match kind, sources, [constants.get(source) for source in sources]:
            case "Multiply", [product, _], [None, Constant() as factor] if math.prod(factor.tensor.shape) == 1:
                scaled[number] = modules.get(product, ""), factor
            case "Add", [product, bias], [None, Constant() as found] if product in scaled:
                module, factor = scaled[product]
                constants[bias] = replace(found, tensor=found.tensor.combined(_divided, factor.tensor))
        nodes.append(Node(module, kind, sources))
    return nodes, constants


def _parse(path: Path) -> ElementTree.Element:
    with reading(path):
        data = path.read_bytes() if path.stat().st_size <= _MAX_XML_BYTES else b""
    if not data or b"<!" in data:
        raise CheckpointError(
            f"{path}: more than {_MAX_XML_BYTES} bytes, or declarations, which OpenVINO has not"
        )
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError) as error:
        raise CheckpointError(f"{path}: not XML: {error}") from error


def _constant(
    path: Path, layer: ElementTree.Element, kind: str, name: str, sources: list[Constant | None]
) -> Constant | None:
    """Return what a layer computes, if that is a constant; it has the name of the first that it is made of."""
    if kind == "Const":
        tensor = _stored(path.with_suffix(".bin"), layer.find("data"))
        return Constant(name, tensor) if tensor else None
    match kind, sources:
        case "Convert", [Constant() as same]:
            return same
        case (("Subtract" | "Multiply"), [Constant() as first, Constant() as second]):
            try:
                shape = np.broadcast_shapes(first.tensor.shape, second.tensor.shape)
            except ValueError:
                return None
            if shape != first.tensor.shape:  # larger than what the file stores, maybe by far
                return None
            operation = _ARITHMETIC[kind]
            result = first.tensor.combined(
                lambda a, b: operation(a.astype(np.float32), b.astype(np.float32)), second.tensor
            )
            return replace(first, tensor=result)
        case "Reshape", [Constant() as first, Constant()]:
            shape = tuple(
                int(axis.text) if axis.text and axis.text.isdecimal() and len(axis.text) < 8 else 0
                for axis in layer.findall("output/port/dim")
            )
            if math.prod(shape) == math.prod(first.tensor.shape):
                return replace(first, tensor=first.tensor.reshaped(shape))
    return None


def _divided(bias: Array, factor: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):  # whoever reads it checks that all values are finite
        quotient: Array = bias / factor.ravel()
    return quotient


def _stored(path: Path, data: Any) -> LazyTensor | None:
    """Return a constant of the file of data, not read yet; None if it is of a type that no weight has."""
    if data is None:
        return None
    dtype = _DTYPES.get(data.get("element_type", ""))
    fields = [text.strip() for text in (data.get("shape") or "").split(",") if text.strip()]
    numbers = [*fields, data.get("offset", ""), data.get("size", "")]
    if dtype is None or not all(text.isdecimal() and len(text) < 16 for text in numbers):
        return None
    *axes, offset, size = map(int, numbers)
    shape = tuple(axes)
    n_values = math.prod(shape)
    n_stored = n_values + -n_values % dtype.block_items
    if dtype.nbytes_of((n_stored,)) != size or not path.is_file() or path.stat().st_size < offset + size:
        raise CheckpointError(f"{path}: is missing or too short, or the graph says wrong what it holds")
    if dtype.block_items == 1:
        return lazy_tensor(path, offset, dtype, shape)
    packed = lazy_tensor(path, offset, dtype, (n_stored,))
    return packed.combined(lambda values: values[:n_values].reshape(shape), shape=shape)
