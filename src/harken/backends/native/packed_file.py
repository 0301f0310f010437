"""Packed weights in one file, which is written once and mapped by every process.

Where an array lies follows from the dimensions alone, so the file needs no index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from harken.backends.store import FileStore

PACKED_FORMAT_VERSION = 7
"""Part of the name of every packed file; raise it with every change of what is in it."""
PACKED_FILE = "weights.packed"
ALIGNMENT_BYTES = 64

Weights = Mapping[str, NDArray[Any]]
Arrays = dict[str, NDArray[Any]]
ArrayShape = tuple[str, Any, tuple[int, ...]]
"""Name, dtype and shape of an array of the file."""


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

    def write(self, weights: Weights, put: Put) -> None:
        """Pack the weights of a model, one matrix after the other."""
        ...


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


def places(contents: PackedContents) -> dict[str, Place]:
    """Return the place of every array by its name, in the order of the file."""
    found: dict[str, Place] = {}
    offset = 0
    for name, dtype, shape in contents.arrays():
        found[name] = Place(dtype, shape, offset)
        offset = -(-found[name].end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return found


def load_packed(
    weights: Weights,
    *,
    contents: PackedContents,
    digest: str,
    store: FileStore,
    check_unchanged: Callable[[], None],
) -> Arrays:
    """Map packed weights; pack them first if they are not in the store.

    Parameters
    ----------
    weights : mapping of str to ndarray
        By the names of the original state dict; read only to be packed.
    contents : PackedContents
    digest : str
        Digest of the weights.
    store : FileStore
    check_unchanged : callable
        Raises an error if the weights may not be those of `digest` any more.

    Returns
    -------
    dict of str to ndarray
        By the names of `PackedContents.arrays`; read-only.

    Raises
    ------
    OutputError
        If they have to be packed and cannot be stored anywhere.
    """

    def write(folder: Path) -> None:
        write_packed(folder / PACKED_FILE, weights, contents)
        check_unchanged()

    key = f"{digest[:32]}-packed-{contents.key}-v{PACKED_FORMAT_VERSION}"
    directory = store.get_or_write(key, (PACKED_FILE,), lambda: write)
    return map_packed(directory / PACKED_FILE, contents)


def map_packed(path: Path, contents: PackedContents) -> Arrays:
    """Map the arrays of a packed file."""
    file = np.asarray(np.memmap(path, np.uint8, mode="r"))
    assert len(file) == max(place.end for place in places(contents).values()), "the key names other contents"
    return {
        name: file[place.offset : place.end].view(place.dtype).reshape(place.shape)
        for name, place in places(contents).items()
    }


def write_packed(path: Path, weights: Weights, contents: PackedContents) -> None:
    """Pack weights into a file.

    Raises
    ------
    OSError
        If the file cannot be written, or does not hold what was written.
    """
    array_places = places(contents)
    with path.open("wb") as file:
        contents.write(weights, partial(_put, file, array_places))
    if path.stat().st_size != max(place.end for place in array_places.values()):
        raise OSError(f"{path.name} was not written whole")


def _put(file: BinaryIO, places: Mapping[str, Place], name: str, array: NDArray[Any], first: int = 0) -> None:
    place = places[name]
    part = np.ascontiguousarray(array, place.dtype)
    assert part.shape[1:] == place.shape[1:], f"{name} has the shape {array.shape}"
    assert first + len(part) <= place.shape[0], f"{name} has the shape {array.shape}"
    file.seek(place.offset + first * (part.nbytes // len(part)))
    file.write(part.data)
