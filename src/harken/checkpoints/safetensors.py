"""The safetensors container: an 8-byte length, a JSON header of that length, then the tensors end to end.

See "Format" in the README of github.com/huggingface/safetensors. Its own package is not used because, for numpy, it
supports neither bfloat16 nor lazy reading.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harken.checkpoints.model_files import (
    DTYPES,
    Array,
    LazyTensor,
    StorageDtype,
    lazy_tensor,
    open_cursor,
    parse_object,
)
from harken.errors import CheckpointError

MAX_HEADER_BYTES = 1 << 24
"""Parsing takes some 30 times the memory; the header of a Whisper model has less than 1 MB."""
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
INTEGERS = {"U32": "uint32", "I32": "int32", "I64": "int64"}


def read_tensors(path: Path, allowed: Mapping[str, str] = FLOATS) -> dict[str, LazyTensor]:
    """Return the tensors of a safetensors file, not read yet, of types by their names there and in `DTYPES`.

    A `CheckpointError` says that the header is damaged, or that its tensors do not fill the file exactly.
    """
    header, start, data_bytes = _read_header(path)
    header.pop("__metadata__", None)
    entries = {name: _parse_entry(path, allowed, name, entry) for name, entry in header.items()}
    end = 0
    for name, (_, _, first, size) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if first != end:
            raise CheckpointError(f"{path}: {name[:80]!r} begins at byte {first} of the data, allowed is {end}")
        end += size
    if end != data_bytes:
        raise CheckpointError(f"{path}: {data_bytes} bytes of data, its tensors have {end}")
    return {
        name: lazy_tensor(path, start + first, dtype, shape)
        for name, (dtype, shape, first, _) in entries.items()
    }


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a safetensors file; empty if it has none."""
    metadata = _read_header(path)[0].get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}


def serialize_tensors(
    tensors: Mapping[str, Array | LazyTensor], metadata: Mapping[str, str]
) -> Iterator[bytes]:
    """Yield the content of a safetensors file, float16: length of the header, header, tensors end to end.

    The header is padded with spaces to align the data.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in sorted(tensors):
        start, end = end, end + 2 * math.prod(tensors[name].shape)
        header[name] = {"dtype": "F16", "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    header_bytes = json.dumps(header).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    yield len(header_bytes).to_bytes(8, "little")
    yield header_bytes
    for name in sorted(tensors):
        tensor = tensors[name]
        values = tensor.read() if isinstance(tensor, LazyTensor) else tensor
        yield np.ascontiguousarray(values, "<f2").tobytes()


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return the header, the first byte of the data, and the number of bytes of the data."""
    with open_cursor(path) as cursor:
        size = cursor.read_number("Q")
        if size > MAX_HEADER_BYTES:
            raise CheckpointError(f"{path}: a header of {size} bytes, allowed are {MAX_HEADER_BYTES}")
        header = parse_object(path, cursor.read(size))
        return header, cursor.position, cursor.remaining


def _parse_entry(
    path: Path, dtypes: Mapping[str, str], name: str, entry: Any
) -> tuple[StorageDtype, tuple[int, ...], int, int]:
    """Return data type, shape, first byte and number of bytes of one header entry."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(first), int(last)]} if (
            dtype in dtypes and all(type(axis) is int and axis > 0 for axis in shape)
        ):
            stored_dtype = DTYPES[dtypes[dtype]]
            if last - first == math.prod(shape) * stored_dtype.block_bytes:
                return stored_dtype, tuple(shape), first, last - first
    found = json.dumps(entry.get("dtype") if isinstance(entry, dict) else None)[:80]
    raise CheckpointError(
        f"{path}: the entry of {name[:80]!r} is damaged, or its type {found} is none of {', '.join(dtypes)}"
    )
