"""The graph of CAM++, 3D-Speaker's network of speaker embeddings, from the weights of its state dict.

CAM++ (arXiv 2303.00332) is a small 2-D convolutional network over the bands, then densely connected layers over time:
each appends a few channels to its input, multiplied by a mask that it computes from the mean of the whole piece and of
the second around each frame. Mean and deviation over time, projected, are the embedding.

All widths and numbers of layers are those of the weights. Batch normalisations are folded into the convolutions before
or behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harken.checkpoints.torch_file import TorchFile
from harken.contract import Floats
from harken.errors import CheckpointError

if TYPE_CHECKING:
    from harken.backends.onnx.builder import GraphBuilder
    from harken.backends.onnx.runtimes import BuiltGraph

SEGMENT_FRAMES = 100
"""Frames, each of 20 ms, over which a layer takes a mean for its mask."""

_FIRST_BLOCK_DILATION, _DILATION = 1, 2
_EPSILON = 1e-5


class CampplusWeights:
    """Weights by name, checked as they are read.

    Parameters
    ----------
    path : Path
        A state dict of CAM++, as 3D-Speaker publishes it.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is damaged, or holds something else than weights.
    """

    def __init__(self, path: Path) -> None:
        file = TorchFile(path)
        # How many batches a normalisation has seen is an integer, and nothing depends on it.
        state = file.content
        if isinstance(state, Mapping):
            state = {name: state[name] for name in state if not str(name).endswith(".num_batches_tracked")}
        self._path, self._tensors = path, file.tensors(state)

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


def campplus(weights: CampplusWeights) -> BuiltGraph:
    """Build the graph.

    Its input is "fbank" (B, T, bands) float32 with T of 3 or more, its output "embedding" (B, size) float32, of any
    length.
    """
    # A start with a stored graph does not import the package that builds one.
    from harken.backends.onnx.builder import GraphBuilder

    graph = GraphBuilder("campplus")
    bands = weights.bands
    x = graph.input("fbank", ("B", "T", bands))
    layers = _Layers(graph, weights)
    x, channels = layers.head(x, bands)
    x, channels = layers.frames(x, channels)
    x, size = layers.embedding(x, channels)
    graph.output(x, "embedding", ("B", size))
    return graph.build()


class _Layers:
    """The layers of the network, added to a graph."""

    def __init__(self, graph: GraphBuilder, weights: CampplusWeights) -> None:
        self._graph, self._weights = graph, weights

    def head(self, fbank: str, bands: int) -> tuple[str, int]:
        """Add the 2-D convolutions; return their output (B, channels, T), and its channels."""
        op, constant = self._graph.op, self._graph.constant
        image = op("Unsqueeze", op("Transpose", fbank, perm=[0, 2, 1]), constant([1]))
        x = op("Relu", self._image_convolution(image, "head.conv1", "head.bn1", stride=1))
        for layer in ("head.layer1", "head.layer2"):
            for name in self._existing(f"{layer}.{{}}", "conv1.weight", first=0):
                x = self._residual_block(x, name)
        x = op("Relu", self._image_convolution(x, "head.conv2", "head.bn2", stride=2))
        channels = len(self._weights.read("head.conv2.weight", None, None, 3, 3)) * (bands // 8)
        return op("Reshape", x, constant([0, channels, -1])), channels

    def _residual_block(self, x: str, name: str) -> str:
        op = self._graph.op
        has_projection = f"{name}.shortcut.0.weight" in self._weights
        stride = 2 if has_projection else 1
        y = op("Relu", self._image_convolution(x, f"{name}.conv1", f"{name}.bn1", stride))
        y = self._image_convolution(y, f"{name}.conv2", f"{name}.bn2", stride=1)
        if has_projection:
            x = self._image_convolution(x, f"{name}.shortcut.0", f"{name}.shortcut.1", stride)
        return op("Relu", op("Add", y, x))

    def _image_convolution(self, x: str, name: str, normalisation: str, stride: int) -> str:
        """Add a convolution over bands and time, with a stride over the bands."""
        kernel, bias = self._weights.folded(f"{name}.weight", normalisation, None, None, None, None)
        pad = kernel.shape[2] // 2
        constant = self._graph.constant
        return self._graph.op(
            "Conv", x, constant(kernel), constant(bias), strides=[stride, 1], pads=[pad, pad, pad, pad]
        )

    def frames(self, x: str, channels: int) -> tuple[str, int]:
        """Add the layers over time; return their output (B, channels, frames), and its channels."""
        op, constant = self._graph.op, self._graph.constant
        kernel, bias = self._weights.folded(
            "xvector.tdnn.linear.weight", "xvector.tdnn.nonlinear.batchnorm", None, channels, None
        )
        pad = kernel.shape[2] // 2
        x = op("Relu", op("Conv", x, constant(kernel), constant(bias), strides=[2], pads=[pad, pad]))
        channels = len(kernel)
        pooling, spread = self._segments(x)
        blocks = list(self._existing("xvector.block{}", "tdnnd1.linear1.weight"))
        for number, block in enumerate(blocks, 1):
            dilation = _FIRST_BLOCK_DILATION if number == 1 else _DILATION
            for layer in self._existing(f"{block}.tdnnd{{}}", "linear1.weight"):
                new, added = self._dense_layer(x, layer, channels, dilation, pooling, spread)
                x, channels = op("Concat", x, new, axis=1), channels + added
            transit = f"xvector.transit{number}"
            weight, normalisation = f"{transit}.linear.weight", f"{transit}.nonlinear.batchnorm"
            if number < len(blocks):
                kernel = self._weights.read(weight, None, channels, 1)
                x = self._normalised_convolution(x, normalisation, kernel, np.zeros(len(kernel), np.float32))
            else:
                kernel, bias = self._weights.folded(
                    weight, "xvector.out_nonlinear.batchnorm", None, channels, 1
                )
                x = op("Relu", self._normalised_convolution(x, normalisation, kernel, bias))
            channels = len(kernel)
        return x, channels

    def _dense_layer(
        self, x: str, name: str, channels: int, dilation: int, pooling: str, spread: str
    ) -> tuple[str, int]:
        """Add a layer; return the channels that it adds, and their number."""
        op, constant, weights = self._graph.op, self._graph.constant, self._weights
        kernel, bias = weights.folded(
            f"{name}.linear1.weight", f"{name}.nonlinear2.batchnorm", None, channels, 1
        )
        x = op("Relu", self._normalised_convolution(x, f"{name}.nonlinear1.batchnorm", kernel, bias))
        width = len(kernel)

        local = weights.read(f"{name}.cam_layer.linear_local.weight", None, width, None)
        pad = dilation * (local.shape[2] // 2)
        y = op("Conv", x, constant(local), dilations=[dilation], pads=[pad, pad])

        # The mask is the same for all frames of a segment, so it is computed once for each.
        hidden = weights.read(f"{name}.cam_layer.linear1.weight", None, width, 1)
        mask = weights.read(f"{name}.cam_layer.linear2.weight", len(local), len(hidden), 1)
        context = op("MatMul", x, pooling)
        for part, kernel, activation in (("linear1", hidden, "Relu"), ("linear2", mask, "Sigmoid")):
            bias = weights.read(f"{name}.cam_layer.{part}.bias", len(kernel))[:, None]
            context = op(
                activation, op("Add", op("MatMul", constant(kernel[:, :, 0]), context), constant(bias))
            )
        return op("Mul", y, op("MatMul", context, spread)), len(local)

    def _segments(self, x: str) -> tuple[str, str]:
        """Add the matrices from frames to segments and back, which depend on the number of frames.

        The first, (frames, segments), takes the mean over each segment, the last of which may be shorter, plus the mean
        over all frames. The second, (segments, frames), gives each frame its segment's value.
        """
        op, constant = self._graph.op, self._graph.constant
        frames = op("Gather", op("Shape", x), constant(np.asarray(2)))
        zero, one, length = (constant(np.asarray(value)) for value in (0, 1, SEGMENT_FRAMES))
        segment_of_frame = op("Div", op("Range", zero, frames, one), length)
        segments = op("Add", op("Div", op("Sub", frames, one), length), one)
        numbers = op("Unsqueeze", op("Range", zero, segments, one), constant([1]))
        spread = op("Cast", op("Equal", numbers, op("Unsqueeze", segment_of_frame, constant([0]))), to=1)
        sizes = op("ReduceSum", spread, constant([1]), keepdims=1)
        means = op("Transpose", op("Div", spread, sizes), perm=[1, 0])
        overall = op("Reciprocal", op("Cast", frames, to=1))
        return op("Add", means, overall), spread

    def embedding(self, x: str, channels: int) -> tuple[str, int]:
        """Add mean and standard deviation over time and the projection of both; return it and its size."""
        op, constant = self._graph.op, self._graph.constant
        time = constant([2])
        mean = op("ReduceMean", x, time, keepdims=1)
        centred = op("Sub", x, mean)
        squares = op("ReduceSum", op("Mul", centred, centred), time, keepdims=1)
        frames = op("Cast", op("Gather", op("Shape", x), time), to=1)
        deviation = op("Sqrt", op("Div", squares, op("Sub", frames, constant(np.ones(1, np.float32)))))
        kernel, bias = self._weights.folded(
            "xvector.dense.linear.weight",
            "xvector.dense.nonlinear.batchnorm",
            None,
            2 * channels,
            1,
            affine=False,
        )
        statistics = op("Squeeze", op("Concat", mean, deviation, axis=1), time)
        projected = op("MatMul", statistics, constant(np.ascontiguousarray(kernel[:, :, 0].T)))
        return op("Add", projected, constant(bias)), len(kernel)

    def _normalised_convolution(self, x: str, normalisation: str, kernel: Floats, bias: Floats) -> str:
        """Add a batch normalisation, a rectifier and a convolution of width 1 behind them.

        The rectified `scale * x + shift` is `scale * max(x, -shift / scale) + shift`, min instead of max for a negative
        scale. Scale and shift go into the convolution, so that one pass over the frames remains instead of three.
        """
        scale, shift = (
            part.astype(np.float64) for part in self._weights.normalisation(normalisation, kernel.shape[1])
        )
        scale[scale == 0] = np.finfo(np.float32).tiny
        threshold = (-shift / scale).astype(np.float32)[:, None]
        op, constant = self._graph.op, self._graph.constant
        for operation, bounded, unbounded in (("Max", scale > 0, -np.inf), ("Min", scale < 0, np.inf)):
            if bounded.any():
                bounds = np.where(bounded[:, None], threshold, np.float32(unbounded))
                x = op(operation, x, constant(bounds))
        matrix = kernel[:, :, 0].astype(np.float64)
        scaled = (matrix * scale).astype(np.float32)[:, :, None]
        return op("Conv", x, constant(scaled), constant((bias + matrix @ shift).astype(np.float32)))

    def _existing(self, pattern: str, part: str, first: int = 1) -> list[str]:
        """List the names of numbered layers for which there are weights; there must be one."""
        names = (pattern.format(number) for number in count(first))
        existing = list(takewhile(lambda name: f"{name}.{part}" in self._weights, names))
        if not existing:
            self._weights.shape(f"{pattern.format(first)}.{part}")
        return existing
