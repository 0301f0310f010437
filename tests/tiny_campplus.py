"""Tiny random weights of CAM++, as a file of them and as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkpoint_files import write_torch

Floats = NDArray[np.float32]

BANDS, SIZE = 80, 4
_HEAD, _FIRST, _GROWTH, _WIDTH = 2, 6, 3, 4
_BLOCKS = ((2, 5), (1, 6))
"""Number of layers of a block, and number of channels that the transition behind it leaves."""


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names of convolutions and their shapes; of batch normalisations, and their number of channels."""
    yield "head.conv1.weight", (_HEAD, 1, 3, 3)
    yield "head.bn1", (_HEAD,)
    for layer in ("head.layer1", "head.layer2"):
        for block in (0, 1):
            for part in (1, 2):
                yield f"{layer}.{block}.conv{part}.weight", (_HEAD, _HEAD, 3, 3)
                yield f"{layer}.{block}.bn{part}", (_HEAD,)
        yield f"{layer}.0.shortcut.0.weight", (_HEAD, _HEAD, 1, 1)
        yield f"{layer}.0.shortcut.1", (_HEAD,)
    yield "head.conv2.weight", (_HEAD, _HEAD, 3, 3)
    yield "head.bn2", (_HEAD,)
    yield "xvector.tdnn.linear.weight", (_FIRST, _HEAD * BANDS // 8, 5)
    yield "xvector.tdnn.nonlinear.batchnorm", (_FIRST,)
    channels = _FIRST
    for block, (layers, left) in enumerate(_BLOCKS, 1):
        for layer in (f"xvector.block{block}.tdnnd{number + 1}" for number in range(layers)):
            yield f"{layer}.nonlinear1.batchnorm", (channels,)
            yield f"{layer}.linear1.weight", (_WIDTH, channels, 1)
            yield f"{layer}.nonlinear2.batchnorm", (_WIDTH,)
            yield f"{layer}.cam_layer.linear_local.weight", (_GROWTH, _WIDTH, 3)
            yield f"{layer}.cam_layer.linear1.weight", (_WIDTH // 2, _WIDTH, 1)
            yield f"{layer}.cam_layer.linear1.bias", (_WIDTH // 2,)
            yield f"{layer}.cam_layer.linear2.weight", (_GROWTH, _WIDTH // 2, 1)
            yield f"{layer}.cam_layer.linear2.bias", (_GROWTH,)
            channels += _GROWTH
        yield f"xvector.transit{block}.nonlinear.batchnorm", (channels,)
        yield f"xvector.transit{block}.linear.weight", (left, channels, 1)
        channels = left
    yield "xvector.out_nonlinear.batchnorm", (channels,)
    yield "xvector.dense.linear.weight", (SIZE, 2 * channels, 1)
    yield "xvector.dense.nonlinear.batchnorm", (SIZE,)


def campplus_weights(seed: int = 0) -> dict[str, Floats]:
    """Return random weights; scales of normalisations are positive, negative and, in one channel, 0."""
    rng = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float64]] = {}
    for name, shape in _shapes():
        if name.endswith(("weight", "bias")):
            weights[name] = rng.normal(0, np.prod(shape[1:]) ** -0.5, shape)
            continue
        weights[f"{name}.running_mean"] = rng.normal(0, 0.3, shape)
        weights[f"{name}.running_var"] = rng.uniform(0.2, 2, shape)
        if not name.startswith("xvector.dense"):
            weights[f"{name}.weight"] = rng.normal(1, 0.7, shape)
            weights[f"{name}.bias"] = rng.normal(0, 0.5, shape)
    weights["xvector.block1.tdnnd1.nonlinear1.batchnorm.weight"][:2] = 0, -0.5
    return {name: values.astype(np.float32) for name, values in weights.items()}


def write_campplus(path: Path, weights: dict[str, Floats]) -> Path:
    """Write a file of weights, with the counters that PyTorch stores for each normalisation."""
    counters = {
        name.replace("running_mean", "num_batches_tracked"): np.array(7, np.int64)
        for name in weights
        if name.endswith("running_mean")
    }
    return write_torch(path, weights | counters)
