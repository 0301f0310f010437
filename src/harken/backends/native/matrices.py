"""Linear layers in a packed file: their arrays, how these are written, and what the library is told of them.

The library reads 16 rows side by side. With 4 or 7 bits 32 consecutive columns of a row are a block with a scale of
its own; with 16 bits a row has one scale. The layouts are those of ``kernel/harken.h``, whose vectors hold 16 rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harken.backends.native.library import Matrix
from harken.backends.native.packed_file import ArrayShape, Put
from harken.checkpoints.model_files import from_bfloat16
from harken.contract import Arrays, Floats

GROUP, BLOCK = 16, 32
_SMALLEST_INT4, _LARGEST_INT16 = -8, 32767
_RANGES = {4: (_SMALLEST_INT4, 7), 7: (-63, 63), 8: (-119, 119)}
"""The smallest and the largest integer of a block. Of 8 bits the upper half, rounded, and the rest have 4 bits each."""
_LARGEST_HALF_NORM = 138
"""Of half a block of 7-bit integers, before they are rounded (see `quantise` of ``kernel/linear.h``)."""

_EVEN_AND_ODD_PAIRS = np.tile(np.repeat(np.eye(2), 2, axis=0), (BLOCK // 4, 1))
"""Shape (BLOCK, 2): sums the columns of either half of a block."""

LARGEST_NORM = 46000.0
"""Largest Euclidean norm of a row of 16-bit integers, before they are rounded."""

Int8 = NDArray[np.int8]
Int16 = NDArray[np.int16]
BFloat16 = NDArray[np.uint16]
"""The upper halves of float32."""

ROWS_AT_ONCE = 64 * GROUP
"""Rows that are quantised together, which takes some copies of them."""


@dataclass(frozen=True, slots=True)
class LinearMatrix(ABC):
    """A matrix with the bias that is added to its products, if it has one."""

    name: str
    rows: int
    columns: int
    bits: int
    has_bias: bool = True

    def arrays(self) -> Iterator[ArrayShape]:
        """Yield the arrays of the file."""
        groups = padded_rows(self.rows) // GROUP
        yield from self._of_weights(groups)
        if self.has_bias:
            yield f"{self.name}.bias", np.float32, (groups * GROUP,)

    def write(self, put: Put, weight: Floats, bias: Floats | None) -> None:
        """Write the weights, some rows at a time, and the bias."""
        for first in range(0, len(weight), ROWS_AT_ONCE):
            part = weight[first : first + ROWS_AT_ONCE]
            self._write_rows(put, np.pad(part, ((0, -len(part) % GROUP), (0, 0))), first)
        if self.has_bias:
            assert bias is not None
            put(f"{self.name}.bias", np.pad(bias, (0, -len(bias) % GROUP)))

    def structure(self, arrays: Arrays) -> Matrix:
        """Return what the library takes; it points to the arrays."""
        parts = (arrays.get(f"{self.name}.{part}") for part in ("weights", "scales", "bias"))
        addresses = (None if part is None else part.ctypes.data for part in parts)
        return Matrix(*addresses, self.rows, self.columns, self.bits)

    @abstractmethod
    def _of_weights(self, groups: int) -> Iterator[ArrayShape]:
        """Yield the arrays of the weights, of whole groups of rows."""

    @abstractmethod
    def _write_rows(self, put: Put, rows: Floats, first: int) -> None:
        """Write whole groups of rows, from the row `first` on."""


class BlockMatrix(LinearMatrix):
    """A matrix of integers in blocks with a scale each; `bits` is 4 or 7."""

    def _of_weights(self, groups: int) -> Iterator[ArrayShape]:
        yield f"{self.name}.weights", np.uint8, (groups, self.columns // (8 if self.bits == 4 else 4), GROUP, 4)
        yield f"{self.name}.scales", np.uint16, (groups, self.columns // BLOCK, GROUP)

    def _write_rows(self, put: Put, rows: Floats, first: int) -> None:
        self._put(put, *quantise(rows, self.bits), first)

    def _put(self, put: Put, integers: Int8, scales: BFloat16, first: int) -> None:
        put(f"{self.name}.weights", pack_integers(integers, self.bits), first // GROUP)
        put(f"{self.name}.scales", pack_scales(scales), first // GROUP)


class HalvedMatrix(BlockMatrix):
    """A matrix of 8-bit integers, of which it has the upper halves, 4 bits each; the lower ones are another matrix."""

    @property
    def rest(self) -> BlockMatrix:
        """The lower halves, whose products are added to those of the upper ones."""
        return BlockMatrix(f"{self.name}_rest", self.rows, self.columns, self.bits, has_bias=False)

    def _of_weights(self, groups: int) -> Iterator[ArrayShape]:
        yield from super()._of_weights(groups)
        yield from self.rest._of_weights(groups)

    def _write_rows(self, put: Put, rows: Floats, first: int) -> None:
        integers, scales = quantise(rows, 8)
        upper = integers + np.int8(8) >> np.int8(4)
        self._put(put, upper, to_bfloat16(16 * from_bfloat16(scales)), first)
        self.rest._put(put, integers - 16 * upper, scales, first)


class Int16Matrix(LinearMatrix):
    """A matrix of 16-bit integers with a scale for each row, for many vectors at a time."""

    def _of_weights(self, groups: int) -> Iterator[ArrayShape]:
        yield f"{self.name}.weights", np.int16, (groups, self.columns // 2, GROUP, 2)
        yield f"{self.name}.scales", np.float32, (groups * GROUP,)

    def _write_rows(self, put: Put, rows: Floats, first: int) -> None:
        integers, scales = quantise_rows(rows)
        put(f"{self.name}.weights", pack_pairs(integers), first // GROUP)
        put(f"{self.name}.scales", scales, first)


class FloatMatrix(LinearMatrix):
    """A matrix of float32, for any number of vectors."""

    def _of_weights(self, groups: int) -> Iterator[ArrayShape]:
        yield f"{self.name}.weights", np.float32, (groups, self.columns, GROUP)

    def _write_rows(self, put: Put, rows: Floats, first: int) -> None:
        groups = rows.reshape(len(rows) // GROUP, GROUP, self.columns).transpose(0, 2, 1)
        put(f"{self.name}.weights", groups, first // GROUP)


def make_matrix(bits: int, name: str, rows: int, columns: int, has_bias: bool = True) -> LinearMatrix:
    """Return a matrix whose weights have 4, 7, 16 or 32 bits."""
    kind = {16: Int16Matrix, 32: FloatMatrix}.get(bits, BlockMatrix)
    return kind(name, rows, columns, bits, has_bias)


def quantise(weight: Floats, bits: int) -> tuple[Int8, BFloat16]:
    """Quantise blocks of columns to the nearest integers of 4, 7 or 8 bits.

    The largest magnitude of a block becomes 119 with 8 bits, and at most 63 with 7, where the norm of the even pairs of
    columns, and of the odd ones, is at most 138 too. With 4 bits it becomes -8, by a scale that may be negative: so all
    16 integers are used.

    Returns
    -------
    integers : ndarray of shape (rows, columns), int8
    scales : ndarray of shape (rows, columns / BLOCK), uint16
        bfloat16; a weight is about integer * scale.
    """
    blocks = weight.reshape(len(weight), -1, BLOCK)
    smallest, largest = _RANGES[bits]
    if bits == 4:
        peaks = np.abs(blocks).argmax(axis=2)[..., None]
        exact_scales = np.take_along_axis(blocks, peaks, axis=2)[..., 0] / np.float32(smallest)
    else:
        exact_scales = np.abs(blocks).max(axis=2) / np.float32(largest)
    if bits == 7:
        norms = np.sqrt((np.square(blocks, dtype=np.float64) @ _EVEN_AND_ODD_PAIRS).max(axis=2))
        exact_scales = np.maximum(exact_scales, norms / _LARGEST_HALF_NORM).astype(np.float32)
    scales = to_bfloat16(exact_scales)
    divisors = from_bfloat16(scales)
    divisors[divisors == 0] = 1
    integers = blocks / divisors[..., None]
    np.clip(np.rint(integers, out=integers), smallest, largest, out=integers)
    return integers.astype(np.int8).reshape(weight.shape), scales


def quantise_rows(weight: Floats) -> tuple[Int16, Floats]:
    """Quantise rows to 16-bit integers, each row with one scale.

    But for rounding, the Euclidean norm of a row of integers is at most `LARGEST_NORM`: so no sum of products with
    another such row leaves 32 bits (see ``kernel/int16.h``).

    Returns
    -------
    integers : ndarray of shape (rows, columns), int16
    scales : ndarray of shape (rows,), float32
        A weight is about integer * scale.
    """
    exact = weight.astype(np.float64)
    norms, peaks = np.linalg.norm(exact, axis=1), np.abs(exact).max(axis=1)
    scales = np.maximum(norms / LARGEST_NORM, peaks / _LARGEST_INT16).astype(np.float32)
    divisors = np.where(scales == 0, 1, scales)[:, None].astype(np.float64)
    return np.clip(np.rint(exact / divisors), -_LARGEST_INT16, _LARGEST_INT16).astype(np.int16), scales


def pack_pairs(integers: Int16) -> Int16:
    """Put integers of whole groups into the order of the kernels, shape (groups, columns / 2, GROUP, 2)."""
    rows, columns = integers.shape
    return np.ascontiguousarray(integers.reshape(rows // GROUP, GROUP, columns // 2, 2).transpose(0, 2, 1, 3))


def to_bfloat16(values: Floats) -> BFloat16:
    """Round away from zero, so that no weight of a block is more than its largest integer times the scale."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16)


def pack_integers(integers: Int8, bits: int) -> NDArray[np.uint8]:
    """Put integers of whole groups into the order of the kernels.

    Returns
    -------
    ndarray of shape (groups, columns / 4, GROUP, 4), uint8
        With 7 bits: 64 more than the integers.
    ndarray of shape (groups, columns / 8, GROUP, 4), uint8
        With 4 bits: 8 more than the integers; column j is the lower half of byte j, column j + 4 its upper half.
    """
    rows, columns = integers.shape
    if bits == 7:
        groups = integers.reshape(rows // GROUP, GROUP, columns // 4, 4).transpose(0, 2, 1, 3)
        return (groups + np.int8(64)).astype(np.uint8)
    halves = (integers - np.int8(_SMALLEST_INT4)).astype(np.uint8)
    halves = halves.reshape(rows // GROUP, GROUP, columns // 8, 2, 4).transpose(0, 2, 1, 3, 4)
    return halves[..., 0, :] | halves[..., 1, :] << np.uint8(4)


def pack_scales(scales: BFloat16) -> BFloat16:
    """Put scales of whole groups into the order of the kernels, shape (groups, blocks, GROUP)."""
    rows, blocks = scales.shape
    return np.ascontiguousarray(scales.reshape(rows // GROUP, GROUP, blocks).transpose(0, 2, 1))


def padded_rows(rows: int) -> int:
    """Return the number of rows rounded up to whole groups."""
    return -(-rows // GROUP) * GROUP
