"""Linear layers in a packed file: their arrays, how these are written, and what the library is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.backends.native.library import Matrix
from harken.backends.native.packed_file import ArrayShape, Put
from harken.backends.native.packing import (
    BLOCK,
    GROUP,
    pack_integers,
    pack_pairs,
    pack_scales,
    padded_rows,
    quantise,
    quantise_rows,
)
from harken.contract import Floats

ROWS_AT_ONCE = 64 * GROUP
"""Rows that are quantised together, which takes some copies of them."""


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix of integers in blocks with a scale each, for few vectors at a time; `bits` is 8 or 4."""

    name: str
    rows: int
    columns: int
    bits: int
    has_bias: bool = True

    def arrays(self) -> Iterator[ArrayShape]:
        """Yield the arrays of the file."""
        groups = padded_rows(self.rows) // GROUP
        integer = np.int8 if self.bits == 8 else np.uint8
        yield f"{self.name}.weights", integer, (groups, self.columns * self.bits // 32, GROUP, 4)
        yield f"{self.name}.scales", np.uint16, (groups, self.columns // BLOCK, GROUP)
        if self.has_bias:
            yield f"{self.name}.bias", np.float32, (groups * GROUP,)

    def write(self, put: Put, weight: Floats, bias: Floats | None) -> None:
        """Write integers and scales, some rows at a time, and the bias."""
        for first, part in _whole_groups(weight):
            integers, scales = quantise(part, self.bits)
            put(f"{self.name}.weights", pack_integers(integers, self.bits), first // GROUP)
            put(f"{self.name}.scales", pack_scales(scales), first // GROUP)
        _write_bias(self, put, bias)

    def structure(self, arrays: Mapping[str, NDArray[Any]]) -> Matrix:
        """Return what the library takes; it points to the arrays."""
        return Matrix(*_addresses(self, arrays), self.rows, self.columns, self.bits)


@dataclass(frozen=True, slots=True)
class Int16Matrix:
    """A matrix of 16-bit integers with a scale for each row, for many vectors at a time."""

    name: str
    rows: int
    columns: int
    has_bias: bool = True

    def arrays(self) -> Iterator[ArrayShape]:
        """Yield the arrays of the file."""
        groups = padded_rows(self.rows) // GROUP
        yield f"{self.name}.weights", np.int16, (groups, self.columns // 2, GROUP, 2)
        yield f"{self.name}.scales", np.float32, (groups * GROUP,)
        if self.has_bias:
            yield f"{self.name}.bias", np.float32, (groups * GROUP,)

    def write(self, put: Put, weight: Floats, bias: Floats | None) -> None:
        """Write integers and scales, some rows at a time, and the bias."""
        for first, part in _whole_groups(weight):
            integers, scales = quantise_rows(part)
            put(f"{self.name}.weights", pack_pairs(integers), first // GROUP)
            put(f"{self.name}.scales", scales, first)
        _write_bias(self, put, bias)

    def structure(self, arrays: Mapping[str, NDArray[Any]]) -> Matrix:
        """Return what the library takes; it points to the arrays."""
        return Matrix(*_addresses(self, arrays), self.rows, self.columns, 16)


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """A matrix of float32, for any number of vectors."""

    name: str
    rows: int
    columns: int
    has_bias: bool = True

    def arrays(self) -> Iterator[ArrayShape]:
        """Yield the arrays of the file."""
        groups = padded_rows(self.rows) // GROUP
        yield f"{self.name}.weights", np.float32, (groups, self.columns, GROUP)
        if self.has_bias:
            yield f"{self.name}.bias", np.float32, (groups * GROUP,)

    def write(self, put: Put, weight: Floats, bias: Floats | None) -> None:
        """Write the weights, some rows at a time, and the bias."""
        for first, part in _whole_groups(weight):
            groups = part.reshape(len(part) // GROUP, GROUP, self.columns).transpose(0, 2, 1)
            put(f"{self.name}.weights", groups, first // GROUP)
        _write_bias(self, put, bias)

    def structure(self, arrays: Mapping[str, NDArray[Any]]) -> Matrix:
        """Return what the library takes; it points to the arrays."""
        return Matrix(*_addresses(self, arrays), self.rows, self.columns, 32)


LinearMatrix = BlockMatrix | Int16Matrix | FloatMatrix


def make_matrix(bits: int, name: str, rows: int, columns: int, has_bias: bool = True) -> LinearMatrix:
    """Return a matrix whose weights have 4, 8, 16 or 32 bits."""
    if bits < 16:
        return BlockMatrix(name, rows, columns, bits, has_bias)
    return (Int16Matrix if bits == 16 else FloatMatrix)(name, rows, columns, has_bias)


def _whole_groups(weight: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield parts of a matrix with the number of their first row, the last padded to whole groups."""
    for first in range(0, len(weight), ROWS_AT_ONCE):
        part = weight[first : first + ROWS_AT_ONCE]
        yield first, np.pad(part, ((0, -len(part) % GROUP), (0, 0)))


def _write_bias(matrix: LinearMatrix, put: Put, bias: Floats | None) -> None:
    if matrix.has_bias:
        assert bias is not None
        put(f"{matrix.name}.bias", np.pad(bias, (0, -len(bias) % GROUP)))


def _addresses(matrix: LinearMatrix, arrays: Mapping[str, NDArray[Any]]) -> Iterator[int | None]:
    """Yield the addresses of weights, scales and bias; None for what there is not."""
    for part in ("weights", "scales", "bias"):
        array = arrays.get(f"{matrix.name}.{part}")
        yield None if array is None else array.ctypes.data
