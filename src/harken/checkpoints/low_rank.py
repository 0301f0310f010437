"""Changes of low rank to the weights of a model, and the metadata of harken's own files of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint
from harken.checkpoints.model_files import Array, LazyTensor
from harken.checkpoints.safetensors import read_metadata
from harken.errors import CheckpointError

Change = tuple[str, Callable[[Array], Array]]
"""The name of a weight, and a function of it."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """The change of a matrix W to W + scale B A, or to rows of that direction with magnitudes of their own.

    With convolutions, A and W have further axes, which count as columns. An embedding's change is transposed.
    """

    file: Path
    a: LazyTensor
    b: LazyTensor
    scale: float = 1.0
    magnitudes: LazyTensor | None = None
    is_embedding: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether it changes matrices of this shape."""
        if len(self.a.shape) < 2 or len(self.b.shape) < 2:
            return False
        rank, columns = self.a.shape[0], self.a.shape[1:]
        rows = self.b.shape[0]
        changed = (*columns, rows) if self.is_embedding else (rows, *columns)
        return changed == shape and self.b.shape[1:] == (rank, *(1 for _ in columns[1:]))

    def __call__(self, matrix: Array) -> Array:
        a, b = (finite_values(self.file, factor).reshape(factor.shape[0], -1) for factor in (self.a, self.b))
        product = (b @ a).T if self.is_embedding else b @ a
        changed: Array = matrix.astype(np.float32) + np.float32(self.scale) * product.reshape(matrix.shape)
        if self.magnitudes is not None:
            norms = np.linalg.norm(changed.reshape(len(changed), -1), axis=1)
            ratios = finite_values(self.file, self.magnitudes).ravel() / norms
            changed *= ratios.reshape(-1, *[1] * (changed.ndim - 1))
        return changed


def finite_values(file: Path, factor: LazyTensor) -> Array:
    """Read a tensor of a file in float32; refuse values that are not finite."""
    values: Array = factor.read().astype(np.float32)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{file}: holds values that are not finite")
    return values


def low_rank(
    file: Path,
    checkpoint: Checkpoint,
    name: str,
    a: LazyTensor | None,
    b: LazyTensor | None,
    is_embedding: bool = False,
) -> LowRank:
    """Return the change of a weight; refuse one of no weight, or whose factors are missing or of other shapes."""
    if name not in checkpoint.weights:
        raise no_such_weight(file, checkpoint, name)
    shape = checkpoint.weights.shape(name)
    if a and b and (change := LowRank(file, a, b, is_embedding=is_embedding)).fits(shape):
        return change
    raise bad_factors(file, name, a, b, shape[:2][::-1] if is_embedding else shape[:2])


def bad_factors(
    file: Path, name: str, a: LazyTensor | None, b: LazyTensor | None, shape: tuple[object, ...]
) -> CheckpointError:
    """Return the error for factors of a matrix of this shape that are missing or of other shapes."""
    found = [factor.shape if factor else None for factor in (b, a)]
    rows, columns = shape
    return CheckpointError(
        f"{file}: {name}: factors B and A have the shapes {found[0]} and {found[1]}, "
        f"allowed are ({rows}, rank) and (rank, {columns})"
    )


def no_such_weight(
    file: Path, checkpoint: Checkpoint, name: str, shape: tuple[int, ...] | None = None
) -> CheckpointError:
    """Return the error for a change of a weight that the model has not, or not of this shape."""
    what = f"{name[:80]!r}" + (f" of shape {shape}" if shape else "")
    return CheckpointError(f"{file}: changes {what}, which {checkpoint.path} has not")


def metadata_of(file: Path, kind: str, format: str, others: str = "") -> dict[str, Any]:
    """Return the metadata of a file of harken; refuse one of another format."""
    metadata = read_metadata(file)
    if metadata.get("format") != format:
        found = json.dumps(metadata.get("format"))[:80]
        raise CheckpointError(
            f"{file}: no {kind}: its format is {found}, allowed is {json.dumps(format)}{others}"
        )
    return metadata
