"""The packed weights of a decoder in one file, which is written once and mapped by every process.

Where an array lies follows from the dimensions alone, so the file needs no index.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from harken.backends.native.packing import (
    BLOCK,
    GROUP,
    pack_integers,
    pack_scales,
    padded_rows,
    quantise,
)
from harken.backends.onnx.graph_store import GraphStore
from harken.backends.onnx.rotation import LM_HEAD, RotatedWeights
from harken.contract import Floats, Ints
from harken.types import Dims

PACKED_FORMAT_VERSION = 2
"""Part of the name of every packed file; raise it with every change of what is in it."""
PACKED_FILE = "decoder.packed"
ALIGNMENT_BYTES = 64
ROWS_AT_ONCE = 256 * GROUP
"""Rows that are quantised together: the largest matrix is held in memory once, in float32."""

LAYER_SOURCES = {
    "query": "attn.query",
    "key": "attn.key",
    "value": "attn.value",
    "out": "attn.out",
    "cross_query": "cross_attn.query",
    "cross_out": "cross_attn.out",
    "mlp_in": "mlp.0",
    "mlp_out": "mlp.2",
}
"""The linear layers of a block, by the names of ``struct harken_layer``."""
SCALED_QUERIES = ("query", "cross_query")
WITHOUT_BIAS = ("key",)
"""A bias of the keys adds the same to all scores of a query, and the softmax cancels it."""

Weights = Mapping[str, NDArray[Any]]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an array in the file."""

    dtype: Any
    shape: tuple[int, ...]
    offset: int

    @property
    def end(self) -> int:
        """Offset of the first byte behind the array."""
        return self.offset + prod(self.shape) * int(np.dtype(self.dtype).itemsize)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """The contents of a packed file.

    Parameters
    ----------
    dims : Dims
    bits : {8, 4}
        Bits of a weight.
    vocab_subset : ndarray of int64, or None
        Ids of the tokens that get logits; None is all.
    """

    dims: Dims
    bits: int
    vocab_subset: Ints | None = None

    @property
    def n_logits(self) -> int:
        """Number of tokens that get logits."""
        return self.dims.n_vocab if self.vocab_subset is None else len(self.vocab_subset)

    @property
    def key(self) -> str:
        """The name of these contents among all those of the same weights."""
        dims = self.dims
        text_dims = (dims.n_vocab, dims.n_text_ctx, dims.n_text_state, dims.n_text_head, dims.n_text_layer)
        checksum = zlib.crc32(repr(text_dims).encode())
        if self.vocab_subset is not None:
            checksum = zlib.crc32(self.vocab_subset.tobytes(), checksum)
        return f"packed-int{self.bits}-{checksum:08x}-v{PACKED_FORMAT_VERSION}"

    def matrix_shapes(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name, the rows and the columns of every matrix."""
        state = self.dims.n_text_state
        for layer in range(self.dims.n_text_layer):
            for name in LAYER_SOURCES:
                rows, columns = {"mlp_in": (4 * state, state), "mlp_out": (state, 4 * state)}.get(
                    name, (state, state)
                )
                yield f"layers.{layer}.{name}", rows, columns
        yield "head", self.n_logits, state

    def places(self) -> dict[str, Place]:
        """Return the place of every array by its name, in the order of the file."""
        dims, offset = self.dims, 0
        places: dict[str, Place] = {}
        for name, dtype, shape in (
            ("embedding", np.float16, (dims.n_vocab, dims.n_text_state)),
            ("positions", np.float32, (dims.n_text_ctx, dims.n_text_state)),
            *self._matrix_arrays(),
        ):
            places[name] = Place(dtype, shape, offset)
            offset = -(-places[name].end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return places

    def _matrix_arrays(self) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
        for name, rows, columns in self.matrix_shapes():
            groups = padded_rows(rows) // GROUP
            yield (
                f"{name}.weights",
                np.int8 if self.bits == 8 else np.uint8,
                (groups, columns * self.bits // 32, GROUP, 4),
            )
            yield f"{name}.scales", np.uint16, (groups, columns // BLOCK, GROUP)
            if not name.endswith(WITHOUT_BIAS):
                yield f"{name}.bias", np.float32, (groups * GROUP,)


def load_packed(
    weights: Weights,
    *,
    packed: PackedFormat,
    digest: str,
    store: GraphStore,
    check_unchanged: Callable[[], None],
) -> Arrays:
    """Map the packed weights of a decoder; pack them first if they are not in the store.

    Parameters
    ----------
    weights : mapping of str to ndarray
        By the names of the original state dict; read only to be packed.
    packed : PackedFormat
    digest : str
        Digest of the weights.
    store : GraphStore
    check_unchanged : callable
        Raises an error if the weights may not be those of `digest` any more.

    Returns
    -------
    dict of str to ndarray
        By the names of `PackedFormat.places`; read-only.

    Raises
    ------
    OutputError
        If they have to be packed and cannot be stored anywhere.
    """

    def write(folder: Path) -> None:
        write_packed(folder / PACKED_FILE, weights, packed)
        check_unchanged()

    directory = store.get_or_write(f"{digest[:32]}-{packed.key}", (PACKED_FILE,), lambda: write)
    return map_packed(directory / PACKED_FILE, packed)


def map_packed(path: Path, packed: PackedFormat) -> Arrays:
    """Map the arrays of a packed file."""
    file = np.asarray(np.memmap(path, np.uint8, mode="r"))
    return {
        name: file[place.offset : place.end].view(place.dtype).reshape(place.shape)
        for name, place in packed.places().items()
    }


def write_packed(path: Path, weights: Weights, packed: PackedFormat) -> None:
    """Pack the weights of a decoder into a file, one matrix after the other.

    Raises
    ------
    OSError
        If the file cannot be written, or does not hold what was written.
    """
    rotated, places = RotatedWeights(weights, packed.dims), packed.places()
    with path.open("wb") as file:
        put = partial(_put, file, places)
        put("embedding", rotated["decoder.token_embedding.weight"])
        put("positions", rotated["decoder.positional_embedding"])
        for name, _, _ in packed.matrix_shapes():
            weight, bias = _read_matrix(rotated, name, packed)
            _put_matrix(put, name, weight, packed.bits)
            if f"{name}.bias" in places:
                put(f"{name}.bias", np.pad(bias, (0, -len(bias) % GROUP)))
    if path.stat().st_size != max(place.end for place in places.values()):
        raise OSError(f"{path.name} was not written whole")


def _read_matrix(rotated: RotatedWeights, name: str, packed: PackedFormat) -> tuple[Floats, Floats]:
    """Return the weight and the bias of a matrix by the name that it has in the packed file."""
    if name == "head":
        weight, bias = rotated[f"{LM_HEAD}.weight"], rotated[f"{LM_HEAD}.bias"]
        return (
            (weight, bias)
            if packed.vocab_subset is None
            else (weight[packed.vocab_subset], bias[packed.vocab_subset])
        )
    _, layer, matrix = name.split(".")
    source = f"decoder.blocks.{layer}.{LAYER_SOURCES[matrix]}"
    scale = np.float32(1)
    if matrix in SCALED_QUERIES:
        scale = np.float32((packed.dims.n_text_state // packed.dims.n_text_head) ** -0.5)
    return rotated[f"{source}.weight"] * scale, rotated[f"{source}.bias"] * scale


def _put_matrix(put: Callable[..., None], name: str, weight: Floats, bits: int) -> None:
    """Write the integers and scales of a matrix, some rows at a time."""
    for start in range(0, len(weight), ROWS_AT_ONCE):
        part = weight[start : start + ROWS_AT_ONCE]
        integers, scales = quantise(np.pad(part, ((0, -len(part) % GROUP), (0, 0))), bits)
        put(f"{name}.weights", pack_integers(integers, bits), first=start // GROUP)
        put(f"{name}.scales", pack_scales(scales), first=start // GROUP)


def _put(file: BinaryIO, places: Mapping[str, Place], name: str, array: NDArray[Any], first: int = 0) -> None:
    """Write an array, or a part of one that begins at index `first`, to its place."""
    place = places[name]
    part = np.ascontiguousarray(array, place.dtype)
    assert part.shape[1:] == place.shape[1:], f"{name} has the shape {array.shape}"
    assert first + len(part) <= place.shape[0], f"{name} has the shape {array.shape}"
    file.seek(place.offset + first * (part.nbytes // len(part)))
    file.write(part.data)
