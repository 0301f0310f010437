"""Packed matrices read again, by the layouts that the library describes."""

from __future__ import annotations

import numpy as np

from harken.backends.native.matrices import GROUP
from harken.backends.native.packed_file import Arrays
from harken.contract import Floats


def unpack_rows(arrays: Arrays, name: str, columns: int) -> tuple[Floats, Floats]:
    """Return the weights that a matrix of 16-bit integers stands for, and the step of each row, shape (rows, 1)."""
    stored, scales = arrays[f"{name}.weights"], arrays[f"{name}.scales"]
    integers = np.empty((len(stored) * GROUP, columns), np.float32)
    for row in range(len(integers)):
        for column in range(columns):
            integers[row, column] = stored[row // GROUP, column // 2, row % GROUP, column % 2]
    return integers * scales[:, None], scales[:, None]
