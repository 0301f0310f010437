"""Reader of CTranslate2 models: ``model.bin`` and the JSON files beside it.

The layout is that of ``ModelSpec._serialize`` (ctranslate2/specs/model_spec.py), the names are those of
``WhisperSpec`` (ctranslate2/specs/whisper_spec.py and transformer_spec.py).
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, assemble, find_vocabulary
from harken.checkpoints.model_files import (
    DTYPES,
    Array,
    Cursor,
    LazyTensor,
    StorageDtype,
    half,
    lazy_tensor,
    open_cursor,
    read_object,
    watch,
)
from harken.checkpoints.weight_shapes import declared_by
from harken.errors import CheckpointError
from harken.types import Dims

_VERSION, _SPEC, _REVISION = 6, "WhisperSpec", 3
_DTYPE_NAMES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
"""By their number in the file."""
_FLOATS = ("float32", "float16", "bfloat16")

# Scalars that change the computation, and the value that Whisper requires.
_REQUIRED_SCALARS = {
    "decoder/activation": 3,  # exact GELU
    "decoder/alibi": 0,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
}

# A CTranslate2 module contains one or more of OpenAI's, stacked along the rows.
_MODULES = {
    "encoder/conv1": ("encoder.conv1",),
    "encoder/conv2": ("encoder.conv2",),
    "encoder/layer_norm": ("encoder.ln_post",),
    "decoder/layer_norm": ("decoder.ln",),
}
_BLOCK_MODULES = {
    "self_attention/layer_norm": ("attn_ln",),
    "self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),
    "self_attention/linear_1": ("attn.out",),
    "attention/layer_norm": ("cross_attn_ln",),
    "attention/linear_0": ("cross_attn.query",),
    "attention/linear_1": ("cross_attn.key", "cross_attn.value"),
    "attention/linear_2": ("cross_attn.out",),
    "ffn/layer_norm": ("mlp_ln",),
    "ffn/linear_0": ("mlp.0",),
    "ffn/linear_1": ("mlp.2",),
}
_EMBEDDINGS = {
    "decoder/embeddings/weight": ("decoder.token_embedding.weight",),
    "encoder/position_encodings/encodings": ("encoder.positional_embedding",),
    "decoder/position_encodings/encodings": ("decoder.positional_embedding",),
}
_LAYER = re.compile(r"(encoder|decoder)/layer_\d+(?=/)")


@dataclass(frozen=True, slots=True)
class _Variable:
    """An array of the file: byte offset, data type and shape."""

    offset: int
    dtype: StorageDtype
    shape: tuple[int, ...]

    def rows(self, part: int, parts: int) -> _Variable:
        """Return part number `part` of `parts` equal parts along the first axis."""
        shape = (self.shape[0] // parts, *self.shape[1:])
        return _Variable(self.offset + part * self.dtype.nbytes_of(shape), self.dtype, shape)

    def tensor(self, path: Path) -> LazyTensor:
        return lazy_tensor(path, self.offset, self.dtype, self.shape)


def read(path: Path) -> Checkpoint:
    """Open a ``model.bin`` with the files beside it."""
    file = watch(path)
    with open_cursor(path) as cursor:
        variables, scalars = _read_variables(cursor)
    for name, value in _REQUIRED_SCALARS.items():
        if scalars.get(name, value) != value:
            raise CheckpointError(f"{path}: {name}={scalars[name]}, allowed for Whisper is {value}")
    declared = {
        f"n_{ours}_head": scalars[f"{theirs}/num_heads"]
        for ours, theirs in (("audio", "encoder"), ("text", "decoder"))
        if f"{theirs}/num_heads" in scalars
    }
    config = read_object(path.with_name("config.json"), optional=True)
    return assemble(
        path,
        "ctranslate2",
        dict(_tensors(path, variables)),
        declared_by(path, declared),
        find_vocabulary(path.parent),
        files=[file],
        alignment_heads=config.get("alignment_heads"),
    )


def serialize(dims: Dims, weights: Mapping[str, Array]) -> Iterator[bytes]:
    """Yield the content of a ``model.bin`` in float16."""
    scalars = {
        **{"encoder/num_heads": np.int16(dims.n_audio_head), "decoder/num_heads": np.int16(dims.n_text_head)},
        **{name: np.int8(value) for name, value in _REQUIRED_SCALARS.items()},
        **{"decoder/alignment_layer": np.int16(-1), "decoder/alignment_heads": np.int16(1)},
    }
    sources = _sources(dims.n_audio_layer, dims.n_text_layer)
    n_variables = len(sources) + len(scalars)
    yield struct.pack("<I", _VERSION) + _name(_SPEC) + struct.pack("<2I", _REVISION, n_variables)
    for name in sorted((*sources, *scalars)):
        values = np.asarray(scalars[name]) if name in scalars else _stacked(weights, sources[name])
        code = _DTYPE_NAMES.index(values.dtype.name)
        yield _name(name) + struct.pack(f"<B{values.ndim}IBI", values.ndim, *values.shape, code, values.nbytes)
        yield values.tobytes()
    yield struct.pack("<I", 1) + _name("decoder/projection/weight") + _name("decoder/embeddings/weight")


def _sources(n_audio_layer: int, n_text_layer: int) -> dict[str, tuple[str, ...]]:
    """Return the names of OpenAI's weights of which each array is made, by the name of the array."""
    modules: dict[str, tuple[str, ...]] = {**_MODULES}
    for side, layers in (("encoder", n_audio_layer), ("decoder", n_text_layer)):
        for layer in range(layers):
            for theirs, parts in _BLOCK_MODULES.items():
                if side == "decoder" or not theirs.startswith("attention/"):
                    modules[f"{side}/layer_{layer}/{theirs}"] = tuple(
                        f"{side}.blocks.{layer}.{p}" for p in parts
                    )
    sources: dict[str, tuple[str, ...]] = {**_EMBEDDINGS}
    for theirs, parts in modules.items():
        leaves = ("gamma", "beta") if theirs.endswith("layer_norm") else ("weight", "bias")
        for leaf, ours in zip(leaves, ("weight", "bias"), strict=True):
            sources[f"{theirs}/{leaf}"] = tuple(f"{part}.{ours}" for part in parts)
    return sources


def _stacked(weights: Mapping[str, Array], names: Sequence[str]) -> Array:
    """Return weights stacked along the rows; keys, which have no bias, get one of zeros."""
    rows = len(next(weights[name] for name in names if name in weights))
    return np.concatenate(
        [half(name, weights[name]) if name in weights else np.zeros(rows, "<f2") for name in names]
    )


def _name(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def _read_variables(cursor: Cursor) -> tuple[dict[str, _Variable], dict[str, int]]:
    """Parse the file into its arrays and its integer scalars."""
    version, spec, revision = cursor.read_number("I"), _read_name(cursor), cursor.read_number("I")
    if (version, spec, revision) != (_VERSION, _SPEC, _REVISION):
        raise cursor.error(
            f"CTranslate2 binary version {version}, {spec} revision {revision}: "
            f"allowed is version {_VERSION}, {_SPEC} revision {_REVISION}"
        )
    variables: dict[str, _Variable] = {}
    scalars: dict[str, int] = {}
    for _ in range(cursor.read_number("I")):
        name, rank = _read_name(cursor), cursor.read_number("B")
        shape = cursor.read_numbers(f"{rank}I")
        code, size = cursor.read_number("B"), cursor.read_number("I")
        if code >= len(_DTYPE_NAMES):
            raise cursor.error(f"{name} has data type {code}, allowed is 0 to {len(_DTYPE_NAMES) - 1}")
        if name in variables or name in scalars:
            raise cursor.error(f"{name} is there twice, allowed is once")
        dtype = DTYPES[_DTYPE_NAMES[code]]
        if math.prod(shape) * dtype.block_bytes != size:
            raise cursor.error(f"{name} has {size} bytes, which is not {dtype.name} of shape {shape}")
        if rank or dtype.name in _FLOATS:
            variables[name] = _Variable(cursor.skip(size), dtype, shape)
        else:
            scalars[name] = cursor.read_number({"int8": "b", "int16": "h", "int32": "i"}[dtype.name])
    for _ in range(cursor.read_number("I")):
        alias, name = _read_name(cursor), _read_name(cursor)
        if name not in variables:
            raise cursor.error(f"{alias} stands for {name}, which is not in the file")
        for leaf in ("", "_scale"):
            if name + leaf in variables:
                variables[alias + leaf] = variables[name + leaf]
    if cursor.remaining:
        raise cursor.error(f"{cursor.remaining} bytes after the end of the model")
    return variables, scalars


def _read_name(cursor: Cursor) -> str:
    return cursor.read_name(cursor.read_number("H"))


def _tensors(path: Path, variables: dict[str, _Variable]) -> Iterator[tuple[str, LazyTensor]]:
    """Yield OpenAI's weights from the arrays; `assemble` rejects unknown arrays, which keep their names."""
    layers = {match[0] for name in variables if (match := _LAYER.match(name))}
    sources = _sources(*(sum(layer.startswith(side) for layer in layers) for side in ("encoder", "decoder")))
    embedding = variables.get("decoder/embeddings/weight")
    for name, variable in variables.items():
        if name.endswith("_scale") or (name == "decoder/projection/weight" and variable == embedding):
            continue
        scale = variables.get(name + "_scale")
        names = sources.get(name, (name,))
        _check_rows(path, name, variable, scale, len(names))
        for part, openai_name in enumerate(names):
            if openai_name.endswith(".key.bias"):
                continue  # zeros; a key bias never changes the softmax
            rows = variable.rows(part, len(names))
            if scale is None:
                yield openai_name, rows.tensor(path)
            else:
                own_scale = scale.rows(part, len(names)) if scale.shape else scale
                yield openai_name, _dequantised_tensor(path, rows, own_scale)


def _check_rows(path: Path, name: str, variable: _Variable, scale: _Variable | None, parts: int) -> None:
    if not variable.shape or variable.shape[0] % parts:
        raise CheckpointError(f"{path}: {name} has shape {variable.shape}, allowed are {parts} equal parts")
    if variable.dtype.name not in (_FLOATS if scale is None else ("int8", "int16")):
        kind = "without" if scale is None else "with"
        raise CheckpointError(f"{path}: {name} is {variable.dtype.name} {kind} a scale, which has no meaning")
    if scale is not None and (scale.shape not in ((), variable.shape[:1]) or scale.dtype.name not in _FLOATS):
        raise CheckpointError(f"{path}: {name} of shape {variable.shape} has a scale of shape {scale.shape}")


def _dequantised_tensor(path: Path, rows: _Variable, scale: _Variable) -> LazyTensor:
    """Return a dequantised tensor: values are round(value * scale), one scale per row (int8) or in all (int16)."""

    def read() -> Array:
        scales = scale.tensor(path).read().astype(np.float32)
        if not np.all((scales > 1e-30) & (scales < np.inf)):
            raise CheckpointError(f"{path}: the scale at byte {scale.offset} is not finite and positive")
        return rows.tensor(path).read() / scales.reshape(-1, *[1] * (len(rows.shape) - 1))

    return LazyTensor(rows.shape, rows.dtype.name, read)
