"""Reader of MLX models: a directory with ``config.json`` and ``weights.npz`` or safetensors, quantised or not.

Written by convert.py of mlx-examples/whisper. The names are OpenAI's but for the layers of an MLP, convolutions have
their channels last, and the encoder's positions are computed. Quantised layers are those of ``mlx.core.quantize``: a
row is packed into 32-bit words, lowest bits first, and each group of columns has a scale and, unless the codes are
floating-point numbers, a bias.
"""

from __future__ import annotations

import io
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import ZipInfo

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, assemble, find_vocabulary
from harken.checkpoints.model_files import (
    Array,
    LazyTensor,
    read_member,
    read_object,
    unpacked,
    watch,
    zip_members,
)
from harken.checkpoints.safetensors import FLOATS, INTEGERS, read_tensors
from harken.checkpoints.weight_names import declared_dims, openai_tensors
from harken.errors import CheckpointError

_HEADER_BYTES = 1 << 12
_NPY_DTYPES = {np.dtype(code) for code in ("<f4", "<f2", "<u4", "<i4", "<i8", "|u1")}
_POSITIONS = "encoder.positional_embedding"


def _small_floats(exponent_bits: int, mantissa_bits: int) -> Array:
    """Return the numbers that the codes of a small floating-point type stand for, in the order of the codes."""
    exponents, mantissas = np.divmod(np.arange(1 << exponent_bits + mantissa_bits), 1 << mantissa_bits)
    bias, fractions = (1 << exponent_bits - 1) - 1, mantissas / (1 << mantissa_bits)
    positive = np.ldexp((exponents > 0) + fractions, np.maximum(exponents, 1) - bias)
    return np.concatenate([positive, -positive]).astype(np.float32)


class _Mode(NamedTuple):
    """A mode of ``mlx.core.quantize`` with floating-point codes: the numbers that codes and scales stand for."""

    bits: int
    group: int
    numbers: Array
    scales: Array


_E2M1, _E4M3 = _small_floats(2, 1), _small_floats(4, 3)
_E8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))
_MODES = {
    "mxfp4": _Mode(4, 32, _E2M1, _E8M0),
    "mxfp8": _Mode(8, 32, _E4M3, _E8M0),
    "nvfp4": _Mode(4, 16, _E2M1, _E4M3),
}


def read(path: Path) -> Checkpoint:
    """Open a weights file with the configuration beside it."""
    config_path = path.with_name("config.json")
    files = [watch(path), watch(config_path)]
    config = read_object(config_path)
    stored = (
        _npz_tensors(path) if path.suffix == ".npz" else read_tensors(path, FLOATS | INTEGERS | {"U8": "uint8"})
    )
    heads = stored.pop("alignment_heads", None)
    found: list[tuple[str, LazyTensor]] = []
    for name, tensor in stored.items():
        module, _, leaf = name.rpartition(".")
        if leaf in ("scales", "biases"):
            continue
        if f"{module}.scales" in stored and leaf == "weight":
            tensor = _dequantised(path, module, stored, config)
        elif len(tensor.shape) == 3:
            rows, frames, columns = tensor.shape
            tensor = tensor.combined(
                lambda kernel: np.ascontiguousarray(kernel.swapaxes(1, 2)), shape=(rows, columns, frames)
            )
        found.append((name, tensor))
    tensors = openai_tensors(path, found)
    norm = tensors.get("encoder.ln_post.weight")
    length = config.get("n_audio_ctx")
    if _POSITIONS not in tensors and norm and norm.shape and type(length) is int and 0 < length < 1 << 20:
        shape = (length, *norm.shape[:1])
        tensors[_POSITIONS] = LazyTensor(shape, "float32", partial(_sinusoids, *shape))
    declared = declared_dims(config_path, config)
    return assemble(
        path,
        "mlx",
        tensors,
        declared,
        find_vocabulary(path.parent),
        files=files,
        alignment_heads=heads.read().tolist() if heads and math.prod(heads.shape) < 1 << 12 else None,
    )


def _sinusoids(length: int, channels: int) -> Array:
    """Return the positions of an encoder (openai-whisper model.py, `sinusoids`)."""
    steps = np.exp(-np.log(10000) / (channels // 2 - 1) * np.arange(channels // 2, dtype=np.float32))
    times = np.arange(length, dtype=np.float32)[:, None] * steps.astype(np.float32)
    return np.concatenate([np.sin(times), np.cos(times)], axis=1).astype(np.float32)


def _dequantised(
    path: Path, module: str, stored: dict[str, LazyTensor], config: dict[str, object]
) -> LazyTensor:
    """Return a quantised matrix, not read yet."""
    words, scales, biases = (stored.get(f"{module}.{leaf}") for leaf in ("weight", "scales", "biases"))
    mode = None
    quantization = config.get("quantization")
    if isinstance(quantization, dict) and isinstance(own := quantization.get(module), dict):
        quantization = own
    match quantization:
        case {"mode": str(name)} if name in _MODES:
            mode = _MODES[name]
            bits, group = mode.bits, mode.group
        case {"mode": name} if name != "affine":
            allowed = ", ".join(("affine", *_MODES))
            raise CheckpointError(f"{path}: weights are quantised as {name!r:.80}; allowed is {allowed}")
        case {"group_size": int(group), "bits": int(bits)} if 1 <= bits <= 8 and 1 <= group <= 1024:
            pass
        case _:
            raise CheckpointError(f"{path}: {module[:80]!r} is quantised, config.json says not how")
    if words and scales and len(words.shape) == len(scales.shape) == 2 and words.stored_dtype == "uint32":
        shape = words.shape[0], scales.shape[1] * group
        whole = 32 * words.shape[1] == shape[1] * bits and scales.shape[0] == shape[0]
        if whole and mode and scales.stored_dtype == "uint8":
            matrix = words.combined(partial(_decode_floats, mode), scales, shape=shape)
            return replace(matrix, stored_dtype=f"float{bits}")
        if whole and not mode and biases and scales.shape == biases.shape:
            matrix = words.combined(partial(_decode, bits, group), scales, biases, shape=shape)
            return replace(matrix, stored_dtype=f"int{bits}")
    raise CheckpointError(f"{path}: words, scales and biases of {module[:80]!r} do not fit together")


def _decode(bits: int, group: int, words: Array, scales: Array, biases: Array) -> Array:
    groups = unpacked(words.view(np.uint8), bits).reshape(len(words), -1, group).astype(np.float32)
    values: Array = groups * scales[:, :, None].astype(np.float32) + biases[:, :, None].astype(np.float32)
    return values.reshape(len(words), -1)


def _decode_floats(mode: _Mode, words: Array, scales: Array) -> Array:
    groups = mode.numbers[unpacked(words.view(np.uint8), mode.bits)].reshape(len(words), -1, mode.group)
    with np.errstate(over="ignore", invalid="ignore"):  # in damaged files, which are found later
        values: Array = groups * mode.scales[scales][:, :, None]
    return values.reshape(len(words), -1)


def _npz_tensors(path: Path) -> dict[str, LazyTensor]:
    """Return the arrays of an .npz file, not read yet."""
    tensors: dict[str, LazyTensor] = {}
    for name, member in zip_members(path).items():
        head = io.BytesIO(read_member(path, member, _HEADER_BYTES).tobytes())
        try:
            version = np.lib.format.read_magic(head)
            reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, fortran, dtype = reader[version](head, max_header_size=_HEADER_BYTES)
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{path}: {name[:80]!r} is no array") from error
        start, size = head.tell(), int(np.prod([int(axis) for axis in shape], dtype=object)) * dtype.itemsize
        if dtype not in _NPY_DTYPES or 0 in shape or member.file_size != start + size:
            allowed = ", ".join(sorted(known.name for known in _NPY_DTYPES))
            raise CheckpointError(f"{path}: {name[:80]!r} is damaged, or none of {allowed}")
        read = partial(_read_array, path, member, start, dtype, shape, "F" if fortran else "C")
        tensors[name.removesuffix(".npy")] = LazyTensor(shape, dtype.name, read)
    return tensors


def _read_array(
    path: Path,
    member: ZipInfo,
    start: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    order: Literal["C", "F"],
) -> Array:
    values: Array = read_member(path, member)[start:].view(dtype).reshape(shape, order=order)
    return np.ascontiguousarray(values)
