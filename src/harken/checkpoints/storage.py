"""Lazily read tensors of a file, and their data types."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harken.checkpoints.model_files import ByteArray, read_bytes

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class StorageDtype:
    """A data type of stored values: blocks of `block_items` values in `block_bytes` bytes.

    `decode` takes blocks, uint8 of shape (blocks, block_bytes), and returns blocks * block_items values.
    """

    name: str
    block_items: int
    block_bytes: int
    decode: Callable[[ByteArray], Array]

    def nbytes_of(self, shape: tuple[int, ...]) -> int:
        """Return the number of bytes of an array of this shape, whose last axis has whole blocks."""
        return math.prod(shape[:-1]) * (shape[-1] // self.block_items if shape else 1) * self.block_bytes


def _numpy_dtype(name: str, dtype: str) -> StorageDtype:
    return StorageDtype(name, 1, np.dtype(dtype).itemsize, lambda blocks: blocks.view(dtype))


def _decode_bfloat16(blocks: ByteArray) -> Array:
    """Decode bfloat16, which is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


FLOAT32 = _numpy_dtype("float32", "<f4")
FLOAT16 = _numpy_dtype("float16", "<f2")
BFLOAT16 = StorageDtype("bfloat16", 1, 2, _decode_bfloat16)
INT8 = _numpy_dtype("int8", "i1")
INT16 = _numpy_dtype("int16", "<i2")
INT32 = _numpy_dtype("int32", "<i4")


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """One weight of a checkpoint: its shape, stored data type, and a function that reads it."""

    shape: tuple[int, ...]
    stored_dtype: str
    read: Callable[[], Array]


def lazy_tensor(path: Path, offset: int, dtype: StorageDtype, shape: tuple[int, ...]) -> LazyTensor:
    """Return the array at a byte offset of a file, not read yet.

    The caller has checked that the file is long enough. The bytes are read, not memory-mapped: arrays are aligned, and
    stay valid if the file is replaced or truncated while they are in use.
    """

    def read() -> Array:
        blocks = read_bytes(path, offset, dtype.nbytes_of(shape)).reshape(-1, dtype.block_bytes)
        return dtype.decode(blocks).reshape(shape)

    return LazyTensor(shape, dtype.name, read)
