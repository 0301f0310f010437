"""The arrays of a linear layer as the compiled library reads them: integers, 16 rows side by side.

With 8 or 4 bits 32 consecutive columns of a row are a block with a scale of its own; with 16 bits a row has one scale.
The layouts are those of ``kernel/harken.h``, whose vectors hold 16 rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats

GROUP, BLOCK = 16, 32
_LARGEST_INT8, _SMALLEST_INT4, _LARGEST_INT4, _LARGEST_INT16 = 127, -8, 7, 32767

LARGEST_NORM = 46000.0
"""Largest Euclidean norm of a row of 16-bit integers, before they are rounded."""

Int8 = NDArray[np.int8]
Int16 = NDArray[np.int16]
BFloat16 = NDArray[np.uint16]
"""The upper halves of float32."""


def quantise(weight: Floats, bits: int) -> tuple[Int8, BFloat16]:
    """Quantise blocks of columns to the nearest integers.

    With 8 bits the largest magnitude of a block becomes 127 or -127. With 4 bits it becomes -8, by a scale that may be
    negative: so all 16 integers are used.

    Returns
    -------
    integers : ndarray of shape (rows, columns), int8
    scales : ndarray of shape (rows, columns / BLOCK), uint16
        bfloat16; a weight is about integer * scale.
    """
    blocks = weight.reshape(len(weight), -1, BLOCK)
    if bits == 8:
        exact_scales = np.abs(blocks).max(axis=2) / np.float32(_LARGEST_INT8)
        smallest, largest = -_LARGEST_INT8, _LARGEST_INT8
    else:
        peaks = np.abs(blocks).argmax(axis=2)[..., None]
        exact_scales = np.take_along_axis(blocks, peaks, axis=2)[..., 0] / np.float32(_SMALLEST_INT4)
        smallest, largest = _SMALLEST_INT4, _LARGEST_INT4
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


def from_bfloat16(values: BFloat16) -> Floats:
    """Return the values in float32."""
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


def pack_integers(integers: Int8, bits: int) -> NDArray[np.int8] | NDArray[np.uint8]:
    """Put integers of whole groups into the order of the kernels.

    Returns
    -------
    ndarray of shape (groups, columns / 4, GROUP, 4), int8
        With 8 bits.
    ndarray of shape (groups, columns / 8, GROUP, 4), uint8
        With 4 bits: 8 more than the integers; column j is the lower half of byte j, column j + 4 its upper half.
    """
    rows, columns = integers.shape
    if bits == 8:
        return np.ascontiguousarray(
            integers.reshape(rows // GROUP, GROUP, columns // 4, 4).transpose(0, 2, 1, 3)
        )
    halves = (integers - np.int8(_SMALLEST_INT4)).astype(np.uint8)
    halves = halves.reshape(rows // GROUP, GROUP, columns // 8, 2, 4).transpose(0, 2, 1, 3, 4)
    return halves[..., 0, :] | halves[..., 1, :] << 4


def pack_scales(scales: BFloat16) -> BFloat16:
    """Put scales of whole groups into the order of the kernels, shape (groups, blocks, GROUP)."""
    rows, blocks = scales.shape
    return np.ascontiguousarray(scales.reshape(rows // GROUP, GROUP, blocks).transpose(0, 2, 1))


def padded_rows(rows: int) -> int:
    """Return the number of rows rounded up to whole groups."""
    return -(-rows // GROUP) * GROUP
