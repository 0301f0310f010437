"""Adapters: a change of low rank to the matrices of an encoder's attention, in a file of its own.

The file is in the safetensors format. For each changed matrix W, under the name of its weight, it holds the factors
``A`` (rank, columns) and ``B`` (rows, rank); the matrix becomes W + B A. Its metadata name what it belongs to::

    {"format": "harken-adapter-1", "encoder_sha256": "...", "hears": "live"}

`encoder_sha256` is `harken.checkpoints.encoder_digest` of the model that it was made for.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, encoder_digest
from harken.checkpoints.model_files import Array, LazyTensor, watch
from harken.checkpoints.safetensors import read_metadata, read_tensors, serialize_tensors
from harken.errors import CheckpointError, CheckpointNotFound

ADAPTER_FILE = "adapter.safetensors"
FORMAT = "harken-adapter-1"
_ADAPTED = re.compile(r"encoder\.blocks\.\d+\.attn\.(query|key|value|out)\.weight")


def adapted_names(names: Iterable[str]) -> list[str]:
    """Return the names of the weights that an adapter may change, in alphabetical order."""
    return sorted(filter(_ADAPTED.fullmatch, names))


def serialize_adapter(factors: Mapping[str, Array], encoder_sha256: str, *, hears: str) -> Iterator[bytes]:
    """Yield the content of the file of an adapter.

    Parameters
    ----------
    factors : mapping of str to ndarray
        By the name of the matrix with ``.A`` or ``.B`` behind it; written as float16.
    encoder_sha256 : str
        Digest of the encoder that it belongs to.
    hears : str
        Windows that it was trained for.
    """
    yield from serialize_tensors(factors, {"format": FORMAT, "encoder_sha256": encoder_sha256, "hears": hears})


def with_adapter(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> Checkpoint:
    """Return a checkpoint whose weights an adapter has changed; the digest of its weights tells the two apart.

    Parameters
    ----------
    checkpoint : Checkpoint
    path : str or path-like
        The file, or the folder that `harken adapt` wrote it to.

    Raises
    ------
    CheckpointNotFound
        If `path` does not exist.
    CheckpointError
        If it is damaged, no adapter, or one for another model.
    """
    file = _adapter_file(Path(path))
    watched = watch(file)
    metadata = read_metadata(file)
    if metadata.get("format") != FORMAT:
        found = json.dumps(metadata.get("format"))[:80]
        raise CheckpointError(f"{file}: no adapter: its format is {found}, allowed is {json.dumps(FORMAT)}")
    factors = read_tensors(file)
    changes = {
        name: _checked_change(file, name, factors, checkpoint)
        for name in sorted({factor.rpartition(".")[0] for factor in factors})
    }
    if (digest := encoder_digest(checkpoint)) != metadata.get("encoder_sha256"):
        raise CheckpointError(
            f"{file}: made for the encoder {str(metadata.get('encoder_sha256'))[:8]}, "
            f"{checkpoint.path} has {digest[:8]}"
        )
    return replace(checkpoint, weights=checkpoint.weights.changed(changes, watched))


def _adapter_file(path: Path) -> Path:
    file = path / ADAPTER_FILE if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise CheckpointNotFound(f"{file}: no such adapter")
    return file


def _checked_change(
    file: Path, name: str, factors: Mapping[str, LazyTensor], checkpoint: Checkpoint
) -> Callable[[Array], Array]:
    """Return a function that applies the change to a matrix.

    Raises
    ------
    CheckpointError
        If it is no matrix that an adapter may change, or a factor is missing or has another shape.
    """
    if not _ADAPTED.fullmatch(name) or name not in checkpoint.weights:
        raise CheckpointError(
            f"{file}: changes {name[:80]!r}, allowed are the matrices of the attention of the model's encoder"
        )
    a, b = factors.get(f"{name}.A"), factors.get(f"{name}.B")
    rows, columns = checkpoint.weights.shape(name)
    rank = a.shape[0] if a and a.shape else 0
    if a is None or b is None or (b.shape, a.shape) != ((rows, rank), (rank, columns)):
        found = [factor.shape if factor else None for factor in (b, a)]
        raise CheckpointError(
            f"{file}: {name}: factors B and A have the shapes {found[0]} and {found[1]}, "
            f"allowed are ({rows}, rank) and (rank, {columns})"
        )
    return partial(_apply, file, b, a)


def _apply(file: Path, b: LazyTensor, a: LazyTensor, matrix: Array) -> Array:
    factors = [factor.read().astype(np.float32) for factor in (b, a)]
    if not all(np.isfinite(factor).all() for factor in factors):
        raise CheckpointError(f"{file}: holds values that are not finite")
    changed: Array = matrix.astype(np.float32) + factors[0] @ factors[1]
    return changed
