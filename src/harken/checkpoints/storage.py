"""Numbers that lie in a file, read only when somebody asks for them."""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harken.errors import CheckpointError

Array = npt.NDArray[Any]
ByteArray = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class StorageDtype:
    """How values lie in a file: blocks of `items` values in `nbytes` bytes.

    `decode` takes the blocks, uint8 of shape (blocks, nbytes), and returns blocks * items values.
    """

    name: str
    block_items: int
    block_bytes: int
    decode: Callable[[ByteArray], Array]

    def nbytes_of(self, shape: tuple[int, ...]) -> int:
        """Bytes that an array of this shape takes; its last axis holds whole blocks."""
        return math.prod(shape[:-1]) * (shape[-1] // self.block_items if shape else 1) * self.block_bytes


def _numpy_dtype(name: str, dtype: str) -> StorageDtype:
    return StorageDtype(name, 1, np.dtype(dtype).itemsize, lambda blocks: blocks.view(dtype))


def _decode_bfloat16(blocks: ByteArray) -> Array:
    """A bfloat16 is the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


FLOAT32 = _numpy_dtype("float32", "<f4")
FLOAT16 = _numpy_dtype("float16", "<f2")
BFLOAT16 = StorageDtype("bfloat16", 1, 2, _decode_bfloat16)
INT8 = _numpy_dtype("int8", "i1")
INT16 = _numpy_dtype("int16", "<i2")
INT32 = _numpy_dtype("int32", "<i4")


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """One weight of a checkpoint: its shape, how the file stores it, and a way to read it."""

    shape: tuple[int, ...]
    stored_dtype: str
    read: Callable[[], Array]


def lazy_tensor(path: Path, offset: int, dtype: StorageDtype, shape: tuple[int, ...]) -> LazyTensor:
    """Describe the array that lies at a byte offset of a file.

    The caller has checked that the file is long enough. The bytes are read, not mapped: arrays are aligned
    and stay whole when the file is replaced or cut while they are in use.
    """

    def read() -> Array:
        blocks = read_bytes(path, offset, dtype.nbytes_of(shape)).reshape(-1, dtype.block_bytes)
        return dtype.decode(blocks).reshape(shape)

    return LazyTensor(shape, dtype.name, read)


def read_error(path: Path, error: OSError) -> CheckpointError:
    """Say that the system does not let a file be read."""
    return CheckpointError(f"{path}: cannot be read: {error.strerror or error}")


def read_bytes(path: Path, offset: int, size: int) -> ByteArray:
    """Read exactly `size` bytes at `offset`.

    Raises
    ------
    CheckpointError
        The file cannot be read, or has become shorter than it was when it was opened.
    """
    try:
        data = np.fromfile(path, np.uint8, size, offset=offset)
    except OSError as error:
        raise read_error(path, error) from error
    if data.size != size:
        raise CheckpointError(f"{path}: has {data.size} of the {size} bytes expected at byte {offset}")
    return data


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex; an unchanged file is hashed once a process."""
    try:
        status = os.stat(path)
        return _file_sha256(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise read_error(path, error) from error


@functools.lru_cache(maxsize=64)
def _file_sha256(path: Path, inode: int, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
