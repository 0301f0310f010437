"""Reader of the weights in ONNX models, as optimum, transformers.js and sherpa-onnx use them: an encoder and a decoder.

Quantised weights are those of ``onnxruntime.quantization``: ``NAME_quantized`` with ``NAME_scale`` and
``NAME_zero_point``, `DequantizeLinear`, and `MatMulNBits`, whose rows are cut into blocks of 2 to 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, assemble, find_vocabulary
from harken.checkpoints.graph_weights import Constant, Node, weights_of_graph
from harken.checkpoints.model_files import (
    DTYPES,
    Array,
    LazyTensor,
    WatchedFile,
    is_file_name,
    lazy_tensor,
    unpacked,
    watch,
)
from harken.checkpoints.weight_names import declared_dims, dims_beside
from harken.checkpoints.weight_shapes import Declared, usual_heads
from harken.errors import CheckpointError, importing

_DTYPE_NAMES = {1: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 10: "float16", 16: "bfloat16"}
"""By number in ``TensorProto.DataType``."""
_DECODER_NAMES = (("encoder", "decoder"), ("encoder_model", "decoder_model_merged"))
_QUANTISED = "_quantized"
_MAX_DEPTH = 8
"""Of graphs in the branches of others."""


def read(path: Path) -> Checkpoint:
    """Open an encoder with the decoder beside it, by the package onnx."""
    encoder, decoder = _both(path)
    folder = encoder.parent.parent if encoder.parent.name == "onnx" else encoder.parent
    config, config_files = dims_beside(folder)
    files = [watch(encoder), watch(decoder), *config_files]
    tensors: dict[str, LazyTensor] = {}
    declared: dict[str, Declared] = {}
    for file, side in ((encoder, "encoder"), (decoder, "decoder")):
        model = _load(file)
        constants: dict[str, Constant] = {}
        nodes = [*_nodes(file, model.graph, constants, files)]
        if any(node.type == "Attention" and constants.keys() & {*node.inputs} for node in nodes):
            raise CheckpointError(
                f"{file}: the attention of its layers is fused, as by -O2 of optimum; allowed are the files of the "
                "export itself, and those of -O1"
            )
        tensors |= weights_of_graph(nodes, constants, side)
        metadata = {_text(entry.key): _text(entry.value) for entry in model.metadata_props}
        numbers = {name: int(value) for name, value in metadata.items() if _is_number(value)}
        declared |= declared_dims(file, numbers)
    dims = usual_heads(encoder, tensors) | declared | config
    return assemble(encoder, "onnx", tensors, dims, find_vocabulary(folder), files=files)


def _both(path: Path) -> tuple[Path, Path]:
    """Return the files of the encoder and of the decoder, of which `path` is one."""
    if "encoder" not in path.name:
        for theirs, ours in _DECODER_NAMES[::-1]:
            if ours in path.name and (encoder := path.with_name(path.name.replace(ours, theirs, 1))).is_file():
                return encoder, path
        raise CheckpointError(f"{path}: is no encoder of Whisper, and beside it is none")
    decoders = [path.with_name(path.name.replace(*names, 1)) for names in _DECODER_NAMES]
    for decoder in decoders:
        if decoder != path and decoder.is_file():
            return path, decoder
    raise CheckpointError(f"{path}: its decoder {decoders[0].name} is not beside it")


def _load(path: Path) -> Any:
    with importing("onnx", "a model in ONNX"):
        import onnx
    try:
        return onnx.load_model(path, load_external_data=False)
    except Exception as error:  # protobuf's, which is not of onnx
        raise CheckpointError(f"{path}: not an ONNX model, or damaged") from error


def _text(text: str | bytes) -> str:
    """Return a text of the file, which protobuf gives as bytes if it is not valid UTF-8."""
    return text if isinstance(text, str) else text.decode(errors="replace")


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 20


def _stored_constants(path: Path, graph: Any, files: list[WatchedFile]) -> dict[str, Constant]:
    """Return the constants of a graph; those that are quantised by convention are dequantised."""
    tensors = {_text(tensor.name): _tensor(path, tensor, files) for tensor in graph.initializer}
    constants = {name: Constant(name, tensor) for name, tensor in tensors.items() if tensor}
    for name in [name for name in constants if _QUANTISED in name]:
        original, scale, zero = (name.replace(_QUANTISED, end) for end in ("", "_scale", "_zero_point"))
        if scale in constants and zero in constants:
            factors = constants[scale].tensor, constants[zero].tensor
            constants[name] = Constant(original, _dequantised(path, constants[name].tensor, *factors, axis=-1))
    return constants


def _tensor(path: Path, stored: Any, files: list[WatchedFile]) -> LazyTensor | None:
    """Return a constant, not read yet; None if it is of a type that no weight has."""
    shape, dtype = tuple(stored.dims), DTYPES.get(_DTYPE_NAMES.get(stored.data_type, ""))
    if dtype is None or any(axis < 0 for axis in shape):
        return None
    size = math.prod(shape) * dtype.block_bytes
    if stored.external_data:
        entries = {_text(entry.key): _text(entry.value) for entry in stored.external_data}
        name, offset = entries.get("location", ""), entries.get("offset", "0")
        if not is_file_name(name) or not _is_number(offset):
            raise CheckpointError(
                f"{path}: {stored.name[:80]!r} is in {name[:80]!r}, allowed are files of its own directory"
            )
        file = path.with_name(name)
        if file not in [watched.path for watched in files]:
            files.append(watch(file))
        if not file.is_file() or file.stat().st_size < int(offset) + size:
            raise CheckpointError(f"{file}: is missing, or too short for {stored.name[:80]!r}")
        return lazy_tensor(file, int(offset), dtype, shape)
    if stored.raw_data and len(stored.raw_data) != size:
        raise CheckpointError(f"{path}: {stored.name[:80]!r} is damaged: not {dtype.name} of shape {shape}")

    def read() -> Array:
        from onnx import numpy_helper

        if stored.raw_data:
            blocks = np.frombuffer(stored.raw_data, np.uint8).reshape(-1, dtype.block_bytes)
            return dtype.decode(blocks).reshape(shape)
        try:
            values: Array = numpy_helper.to_array(stored)
        except ValueError as error:
            raise CheckpointError(f"{path}: {stored.name[:80]!r} is damaged") from error
        return values.astype(np.float32) if dtype.name == "bfloat16" else values

    return LazyTensor(shape, dtype.name, read)


def _nodes(
    path: Path, graph: Any, constants: dict[str, Constant], files: list[WatchedFile], depth: int = 0
) -> Iterator[Node]:
    """Yield the operations in order, those in branches too, and collect the constants.

    What only renames or dequantises a constant is one.
    """
    constants |= _stored_constants(path, graph, files)
    if depth > _MAX_DEPTH:
        raise CheckpointError(f"{path}: more than {_MAX_DEPTH} graphs in one another")
    for node in graph.node:
        names = tuple(map(_text, node.input))
        inputs = [constants.get(name) for name in names]
        output = _text(node.output[0]) if node.output else ""
        match node.op_type, inputs:
            case (("Identity" | "Cast"), [Constant() as same, *_]):
                constants[output] = same
            case "DequantizeLinear", [Constant() as values, Constant() as scale, *rest]:
                axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
                zero = [constant.tensor for constant in rest[:1] if constant]
                tensor = _dequantised(path, values.tensor, scale.tensor, *zero, axis=axis)
                constants[output] = Constant(values.label.replace(_QUANTISED, ""), tensor)
            case "MatMulNBits", [_, Constant() as values, Constant() as scales, *rest]:
                attributes = {a.name: a.i for a in node.attribute}
                zeros = [constant.tensor for constant in rest[:1] if constant]
                tensor = _of_blocks(path, attributes, values.tensor, scales.tensor, *zeros)
                constants[names[1]] = Constant(values.label, tensor)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(path, attribute.g, constants, files, depth + 1)
        yield Node(".".join(_text(node.name).strip("/").split("/")[:-1]), _text(node.op_type), names)


def _dequantised(path: Path, values: LazyTensor, scale: LazyTensor, *zero: LazyTensor, axis: int) -> LazyTensor:
    """Return (values - zero) scale, with one scale for all or for each index of an axis."""
    rank = len(values.shape)
    sizes = {math.prod(factor.shape) for factor in (scale, *zero)}
    if sizes != {1} and not (-rank <= axis < rank and sizes <= {1, values.shape[axis]}):
        raise CheckpointError(
            f"{path}: scales of shape {scale.shape} do not fit weights of shape {values.shape}"
        )
    return values.combined(partial(_scaled, axis), scale, *zero)


def _scaled(axis: int, values: Array, scale: Array, zero: Array | None = None) -> Array:
    along = [1] * values.ndim
    if values.ndim:
        along[axis] = -1
    centred = values.astype(np.float32) - (0 if zero is None else zero.astype(np.float32).reshape(along))
    scaled: Array = centred * scale.astype(np.float32).reshape(along)
    return scaled


def _of_blocks(
    path: Path, attributes: Mapping[str, int], values: LazyTensor, scales: LazyTensor, *zeros: LazyTensor
) -> LazyTensor:
    """Return the matrix of a `MatMulNBits` (onnxruntime, contrib operators): rows in blocks of columns."""
    rows, columns = attributes.get("N", 0), attributes.get("K", 0)
    bits, size = attributes.get("bits", 4), attributes.get("block_size", 0)
    n_blocks = -(-columns // size) if size > 0 else 0
    zero_bytes = -(-n_blocks * bits // 8)
    if (
        bits not in (2, 4, 8)
        or min(rows, columns, n_blocks) < 1
        or math.prod(values.shape) * 8 != rows * n_blocks * size * bits
        or math.prod(scales.shape) != rows * n_blocks
        or any(packed.stored_dtype != "uint8" for packed in (values, *zeros))
        or any(math.prod(zero.shape) != rows * zero_bytes for zero in zeros)
    ):
        raise CheckpointError(f"{path}: a matrix of {rows} rows of {columns} in blocks is damaged")

    def decode(values: Array, scales: Array, zeros: Array | None = None) -> Array:
        codes = unpacked(values.reshape(rows, -1), bits).reshape(rows, n_blocks, size).astype(np.float32)
        middles: Any = 1 << (bits - 1)
        if zeros is not None:
            middles = unpacked(zeros.reshape(rows, -1), bits)[:, :n_blocks, None].astype(np.float32)
        matrix: Array = (codes - middles) * scales.astype(np.float32).reshape(rows, n_blocks, 1)
        return np.ascontiguousarray(matrix.reshape(rows, -1)[:, :columns])

    return values.combined(decode, scales, *zeros, shape=(rows, columns))
