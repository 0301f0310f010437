"""Packed weights in one file, which is written once and mapped by every process.

Where an array lies follows from the dimensions alone, so the file needs no index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harken.contract import Arrays
from harken.store import stored_files

PACKED_FORMAT_VERSION = 8
"""Part of the name of every packed file; raise it with every change of what is in it."""
PACKED_FILE = "weights.packed"
ALIGNMENT_BYTES = 64

ArrayShape = tuple[str, Any, tuple[int, ...]]
"""Name, dtype and shape of an array of the file."""


class PackedArrays(dict[str, NDArray[Any]]):
    """Read-only arrays of a packed file, by their names, and its path."""

    path: Path


class Put(Protocol):
    """A function that writes an array, or the part of one that begins at index `first`, to its place."""

    def __call__(self, name: str, array: NDArray[Any], first: int = 0) -> None: ...


class PackedContents(Protocol):
    """The contents of a packed file."""

    @property
    def key(self) -> str:
        """The name of these contents among all those of the same weights."""
        ...

    def arrays(self) -> Iterator[ArrayShape]:
        """Yield every array, in the order of the file."""
        ...

    def write(self, weights: Arrays, put: Put) -> None:
        """Pack the weights of a model, one matrix after the other."""
        ...


def load_packed(
    weights: Arrays,
    *,
    contents: PackedContents,
    digest: str,
    root: Path | None,
    check_unchanged: Callable[[], None],
) -> PackedArrays:
    """Map packed weights; pack them first if they are not in the store.

    Parameters
    ----------
    weights : mapping of str to ndarray
        By the names of the original state dict; read only to be packed.
    contents : PackedContents
    digest : str
        Digest of the weights.
    root : Path, optional
        The directory of packed files (see `harken.store.stored_files`).
    check_unchanged : callable
        Raises an error if the weights may not be those of `digest` any more.

    Returns
    -------
    PackedArrays
        By the names of `PackedContents.arrays`.

    Raises
    ------
    OutputError
        If they have to be packed and cannot be stored anywhere.
    """
    places: dict[str, tuple[int, Any, tuple[int, ...]]] = {}  # offset, dtype and shape
    n_bytes = 0
    for name, dtype, shape in contents.arrays():
        offset = -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        n_bytes = offset + prod(shape) * int(np.dtype(dtype).itemsize)
        places[name] = offset, dtype, shape

    def write(folder: Path) -> None:
        path = folder / PACKED_FILE
        with path.open("wb") as file:

            def put(name: str, array: NDArray[Any], first: int = 0) -> None:
                offset, dtype, shape = places[name]
                part = np.ascontiguousarray(array, dtype)
                fits = part.shape[1:] == shape[1:] and first + len(part) <= shape[0]
                assert fits, f"{name} has the shape {array.shape}"
                file.seek(offset + first * (part.nbytes // len(part)))
                file.write(part.data)

            contents.write(weights, put)
        if path.stat().st_size != n_bytes:
            raise OSError(f"{path.name} was not written whole")
        check_unchanged()

    key = f"{digest[:32]}-packed-{contents.key}-v{PACKED_FORMAT_VERSION}"
    path = stored_files(key, (PACKED_FILE,), write, root) / PACKED_FILE
    packed = np.asarray(np.memmap(path, np.uint8, mode="r"))
    assert len(packed) == n_bytes, "the key names other contents"
    loaded = PackedArrays(
        {name: np.ndarray(shape, dtype, packed, offset) for name, (offset, dtype, shape) in places.items()}
    )
    loaded.path = path
    return loaded
