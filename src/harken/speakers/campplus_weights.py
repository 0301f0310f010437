"""The weights of CAM++, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harken.checkpoints.storage import LazyTensor
from harken.checkpoints.torch_file import TorchFile
from harken.contract import Floats
from harken.errors import CheckpointError

_EPSILON = 1e-5


def open_campplus(path: Path) -> CampplusWeights:
    """Open a state dict of CAM++, as 3D-Speaker publishes it.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is damaged, or holds something else than weights.
    """
    file = TorchFile(path)
    if not isinstance(file.content, Mapping):
        raise CheckpointError(f"{path}: holds no dict of weights")
    # How many batches a normalisation has seen is an integer, and nothing depends on it.
    state = {
        name: value for name, value in file.content.items() if not str(name).endswith(".num_batches_tracked")
    }
    return CampplusWeights(path, file.tensors(state))


class CampplusWeights:
    """Weights by name, checked as they are read.

    Parameters
    ----------
    path : Path
        The file, for messages.
    tensors : mapping of str to LazyTensor
        A state dict of CAM++.
    """

    def __init__(self, path: Path, tensors: Mapping[str, LazyTensor]) -> None:
        self._path, self._tensors = path, tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str, *allowed: int | None) -> tuple[int, ...]:
        """Return the shape of a weight, checked against the allowed one, in which None allows any size.

        Raises
        ------
        CheckpointError
            If the weight is missing or has another shape.
        """
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self._path}: not a CAM++ model: weight {name} is missing")
        sizes = tensor.shape
        if len(sizes) != len(allowed) or any(
            wanted not in (None, size) for size, wanted in zip(sizes, allowed, strict=True)
        ):
            wanted = str(allowed).replace("None", "any")
            raise CheckpointError(f"{self._path}: weight {name} has shape {sizes}, allowed is {wanted}")
        return sizes

    def read(self, name: str, *allowed: int | None) -> Floats:
        """Read a weight of an allowed shape.

        Raises
        ------
        CheckpointError
            If it is missing, has another shape, or has values that are not finite.
        """
        self.shape(name, *allowed)
        values = np.asarray(self._tensors[name].read(), np.float32)
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self._path}: weight {name} has values that are not finite")
        return values

    def normalisation(self, name: str, channels: int, *, affine: bool = True) -> tuple[Floats, Floats]:
        """Read a batch normalisation, and return the scale and the shift that it amounts to."""
        variance, mean = (
            self.read(f"{name}.running_{part}", channels).astype(np.float64) for part in ("var", "mean")
        )
        if variance.min() < 0:
            raise CheckpointError(f"{self._path}: weight {name}.running_var has negative values")
        scale = 1 / np.sqrt(variance + _EPSILON)
        if not affine:
            return scale.astype(np.float32), (-mean * scale).astype(np.float32)
        scale *= self.read(f"{name}.weight", channels)
        return scale.astype(np.float32), (self.read(f"{name}.bias", channels) - mean * scale).astype(np.float32)

    def folded(
        self, weight: str, normalisation: str, *allowed: int | None, affine: bool = True
    ) -> tuple[Floats, Floats]:
        """Return weight and bias of a convolution without bias and the batch normalisation behind it."""
        values = self.read(weight, *allowed)
        scale, shift = self.normalisation(normalisation, len(values), affine=affine)
        return values * scale.reshape(-1, *[1] * (values.ndim - 1)), shift

    @property
    def bands(self) -> int:
        """Number of bands of the filter bank; the head leaves an eighth of them."""
        head, _, _, _ = self.shape("head.conv1.weight", None, 1, 3, 3)
        _, channels, _ = self.shape("xvector.tdnn.linear.weight", None, None, None)
        return 8 * (channels // head)

    @property
    def embedding_size(self) -> int:
        """Length of an embedding."""
        return self.shape("xvector.dense.linear.weight", None, None, 1)[0]
