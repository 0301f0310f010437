"""Reading of the files of a model: within bounds, of JSON and of zip archives too, lazily, and watched for changes.

What is wrong with a file is a `CheckpointError` of one line that names it.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harken.errors import CheckpointError
from harken.store import stored_text

ByteArray = npt.NDArray[np.uint8]

_MAX_NAME_BYTES = 256
_MAX_TEXT_BYTES = 1 << 26
"""Of a JSON file or header: parsing takes some 30 times the memory, and those of the largest models have 4 MB."""
_LEAST_STORED_BYTES = 1 << 26
"""Of a file whose hash is kept: a smaller one is hashed in a twentieth of a second."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Of a member of a zip archive: its signature, and the lengths of its name and of the extra field."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error of the operating system in a block that reads a file into a `CheckpointError` that names it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_bytes(path: Path, offset: int, size: int) -> ByteArray:
    """Read exactly `size` bytes at `offset`; a file that is shorter now than when it was opened is refused."""
    with reading(path):
        data = np.fromfile(path, np.uint8, size, offset=offset)
    if data.size != size:
        raise CheckpointError(f"{path}: has {data.size} of the {size} bytes expected at byte {offset}")
    return data


def check_text_size(path: Path) -> None:
    """Refuse what is no file, or larger than the JSON of a model; raise an `OSError` if it cannot be read."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: is a device, a pipe or a folder, allowed is a file")
    if status.st_size > _MAX_TEXT_BYTES:
        raise CheckpointError(f"{path}: has {status.st_size} bytes, allowed are {_MAX_TEXT_BYTES}")


def is_file_name(name: str) -> bool:
    """Return whether a name, written in a file, is that of a file of the same directory."""
    return name not in ("", ".", "..") and not set(name) & set("/\\:\0")


def parse_object(path: Path, text: str | bytes) -> dict[str, object]:
    """Parse a JSON object; raise a `CheckpointError` that names `path` for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a JSON {type(value).__name__}, allowed is an object")
    return value


def read_object(path: Path, *, optional: bool = False) -> dict[str, object]:
    """Read a file that contains a JSON object; return an empty one if an `optional` file does not exist."""
    with reading(path):
        try:
            check_text_size(path)
            return parse_object(path, path.read_bytes())
        except FileNotFoundError:
            if optional:
                return {}
            raise CheckpointError(f"{path}: is missing") from None


class Cursor:
    """A position in a file's bytes; every step is checked against the remaining bytes."""

    def __init__(self, path: Path, data: bytes | mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 0

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end of the file."""
        return len(self.data) - self.position

    def skip(self, size: int) -> int:
        """Skip `size` bytes and return the position of the first."""
        start = self.position
        if not 0 <= size <= self.remaining:
            raise self.error(f"truncated: {size} bytes expected, {self.remaining} are left")
        self.position = start + size
        return start

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        start = self.skip(size)
        return self.data[start : start + size]

    def at(self, position: int) -> Cursor:
        """Return another position in the same bytes."""
        moved = Cursor(self.path, self.data)
        moved.skip(position)
        return moved

    def read_numbers(self, layout: str) -> tuple[int, ...]:
        """Return the next little-endian numbers in a `struct` layout."""
        return struct.unpack("<" + layout, self.read(struct.calcsize("<" + layout)))

    def read_number(self, layout: str) -> int:
        """Return the next number."""
        return self.read_numbers(layout)[0]

    def read_name(self, size: int) -> str:
        """Return the next `size` bytes as a printable name, without a final zero byte."""
        name = self.read(size).removesuffix(b"\0")
        if len(name) > _MAX_NAME_BYTES or not name.isascii() or not name.decode().isprintable():
            raise self.error(f"a name is not printable ASCII of at most {_MAX_NAME_BYTES} bytes")
        return name.decode()

    def error(self, reason: str) -> CheckpointError:
        """Return an error with the file's name and the current position."""
        return CheckpointError(f"{self.path}: {reason} (at byte {self.position} of {len(self.data)})")


@contextmanager
def open_cursor(path: Path) -> Iterator[Cursor]:
    """Memory-map a file while its headers are parsed; skipped bytes are never read."""
    with reading(path):
        if not path.stat().st_size:
            raise CheckpointError(f"{path}: is empty, or no regular file")
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield Cursor(path, data)


def zip_members(path: Path) -> dict[str, zipfile.ZipInfo]:
    """List a zip archive, whose members must all be uncompressed."""
    with reading(path):
        try:
            with zipfile.ZipFile(path) as archive:
                members = {info.filename: info for info in archive.infolist()}
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise CheckpointError(f"{path}: not a zip archive of weights: {error}") from error
    size = path.stat().st_size
    for name, info in members.items():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise CheckpointError(f"{path}: {name!r} is compressed, weights never are")
        if info.header_offset < 0 or info.header_offset + _LOCAL_HEADER.size + info.file_size > size:
            raise CheckpointError(f"{path}: truncated: {name!r} reaches past the end of the file")
    return members


def read_member(path: Path, member: zipfile.ZipInfo, most_bytes: int | None = None) -> ByteArray:
    """Read a stored member and check its CRC-32, or read the first bytes of it."""
    header = read_bytes(path, member.header_offset, _LOCAL_HEADER.size).tobytes()
    signature, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    start = member.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    size = member.file_size if most_bytes is None else min(member.file_size, most_bytes)
    data = read_bytes(path, start, size)
    whole = size == member.file_size
    if signature != b"PK\3\4" or (whole and zlib.crc32(data.data) != member.CRC):
        raise CheckpointError(f"{path}: {member.filename[:80]!r} is damaged: its checksum differs")
    return data


@dataclass(frozen=True, slots=True)
class WatchedFile:
    """A file, and what the file system said of it before it was read.

    If it changes while it is read, there is an error instead of mixed weights.
    """

    path: Path
    # Device, inode, size, times of the last change of content and of attributes in ns; empty if there was no such file.
    identity: tuple[int, ...]

    def check_unchanged(self) -> None:
        """Check that the file is still the one that was there when `watch` was called.

        A hard link or other permissions change only the last time, as does a writer that sets the time of content
        back: if the hash is known, it decides. A file that was replaced, written to or removed is refused.
        """
        now = watch(self.path)
        if now.identity == self.identity:
            return
        if self in _digests and now.identity[:-1] == self.identity[:-1]:
            if now not in _digests:
                _digests[now] = _file_digest(self.path)
            if _digests[now] == _digests[self]:
                return
        raise CheckpointError(f"{self.path}: changed while it was read; load the model again")

    def sha256(self) -> str:
        """Return the SHA-256 of the file's bytes, in hex, computed once while it is unchanged.

        That of a large file is in the store too: of a model of gigabytes that saves seconds at every start.
        """
        self.check_unchanged()
        if self not in _digests:
            is_large = bool(self.identity) and self.identity[2] >= _LEAST_STORED_BYTES
            key = f"{hashlib.sha256(repr(self.identity).encode()).hexdigest()[:32]}-file"
            _digests[self] = stored_text(key, self._digest) if is_large else self._digest()
        return _digests[self]

    def _digest(self) -> str:
        digest = _file_digest(self.path)
        self.check_unchanged()
        return digest


def watch(path: Path) -> WatchedFile:
    """Watch a file from now on; call this before it is read."""
    try:
        status = os.stat(path)
    except OSError:
        return WatchedFile(path, ())
    times = status.st_mtime_ns, status.st_ctime_ns
    return WatchedFile(path, (status.st_dev, status.st_ino, status.st_size, *times))


_digests: dict[WatchedFile, str] = {}


def _file_digest(path: Path) -> str:
    with reading(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _numpy_dtype(name: str) -> StorageDtype:
    dtype = np.dtype(name).newbyteorder("<")
    return StorageDtype(name, 1, dtype.itemsize, lambda blocks: blocks.view(dtype))


def from_bfloat16(values: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return numbers in float32, given their upper halves."""
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


def unpacked(packed: ByteArray, bits: int) -> ByteArray:
    """Return the codes of so many bits in rows of bytes, lowest bits first."""
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return (packed[:, :, None] >> shifts & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)
    flat = np.unpackbits(packed, axis=1, bitorder="little")
    return np.packbits(flat.reshape(len(packed), -1, bits), axis=2, bitorder="little")[:, :, 0]


def half(name: str, values: Array) -> Array:
    """Return the values of a weight as little-endian float16; those that are too large for that are refused."""
    with np.errstate(over="ignore"):
        halves = np.ascontiguousarray(values, "<f2")
    if not np.isfinite(halves).all():
        raise CheckpointError(f"{name} has values above 65504, which do not fit into float16")
    return halves


DTYPES = {
    dtype.name: dtype
    for dtype in (
        *(
            _numpy_dtype(name)
            for name in ("float32", "float16", "int8", "uint8", "int16", "int32", "int64", "uint32")
        ),
        StorageDtype("float64", 1, 8, lambda blocks: blocks.view("<f8").astype(np.float32)),
        StorageDtype("bfloat16", 1, 2, lambda blocks: from_bfloat16(blocks.view("<u2"))),
    )
}
"""The plain data types by their names."""


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """One weight of a checkpoint: its shape, stored data type, and a function that reads it.

    One that is stored as the product B A has the factors A and B.
    """

    shape: tuple[int, ...]
    stored_dtype: str
    read: Callable[[], Array]
    factors: tuple[LazyTensor, ...] = ()

    def combined(
        self, change: Callable[..., Array], *others: LazyTensor, shape: tuple[int, ...] | None = None
    ) -> LazyTensor:
        """Return what a function makes of this tensor and others, read when that is; by default of this one's shape."""
        tensors = (self, *others)
        return LazyTensor(
            self.shape if shape is None else shape,
            self.stored_dtype,
            lambda: change(*(tensor.read() for tensor in tensors)),
        )

    def reshaped(self, shape: tuple[int, ...]) -> LazyTensor:
        """Return it with another shape."""
        return self if shape == self.shape else self.combined(lambda values: values.reshape(shape), shape=shape)

    def transposed(self) -> LazyTensor:
        """Return it with its axes in reverse order."""
        return self.combined(lambda values: np.ascontiguousarray(values.T), shape=self.shape[::-1])

    def times(self, other: LazyTensor) -> LazyTensor:
        """Return the product of two matrices, computed in float32."""
        return self.combined(
            lambda a, b: a.astype(np.float32) @ b.astype(np.float32),
            other,
            shape=(self.shape[0], other.shape[1]),
        )


class DerivedWeights(Mapping[str, Array]):
    """Weights of some names, which a function reads or computes at each access."""

    def __init__(self, names: Collection[str], read: Callable[[str], Array]) -> None:
        self._names, self._read = names, read

    def __getitem__(self, name: str) -> Array:
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def lazy_tensor(path: Path, offset: int, dtype: StorageDtype, shape: tuple[int, ...]) -> LazyTensor:
    """Return the array at a byte offset of a file, not read yet.

    The caller has checked that the file is long enough. The bytes are read, not memory-mapped: arrays are aligned, and
    stay valid if the file is replaced or truncated while they are in use.
    """

    def read() -> Array:
        blocks = read_bytes(path, offset, dtype.nbytes_of(shape)).reshape(-1, dtype.block_bytes)
        with np.errstate(invalid="ignore", over="ignore"):  # whoever reads it checks that all values are finite
            return dtype.decode(blocks).reshape(shape)

    return LazyTensor(shape, dtype.name, read)
