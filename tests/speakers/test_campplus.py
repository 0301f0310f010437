"""The graph of CAM++ with tiny random weights, compared with the layers as the paper describes them, in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from harken.backends.onnx.graph_files import MODEL_FILE, write_graph
from harken.backends.onnx.runtimes import OnnxRuntimeGraph
from harken.speakers.campplus import campplus, open_campplus
from tiny_campplus import BANDS, SIZE, campplus_weights, write_campplus


@pytest.fixture(scope="module")
def weights():
    return campplus_weights()


@pytest.fixture(scope="module")
def graph(weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("campplus")
    write_graph(campplus(open_campplus(write_campplus(folder / "tiny.pt", weights))), folder)
    return OnnxRuntimeGraph(folder / MODEL_FILE, threads=1)


class Reference:
    """CAM++ of one piece, in float64, one layer after the other."""

    def __init__(self, weights):
        self.weights = {name: values.astype(np.float64) for name, values in weights.items()}

    def normalised(self, x, name):
        scale = 1 / np.sqrt(self.weights[f"{name}.running_var"] + 1e-5)
        y = (x.T - self.weights[f"{name}.running_mean"]) * scale
        if f"{name}.weight" in self.weights:
            y = y * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return y.T

    def convolution(self, x, name, stride=1, dilation=1):
        """Convolve over the last axis, (channels, frames), with zeros around."""
        kernel = self.weights[f"{name}.weight"]
        reach = dilation * (kernel.shape[2] // 2)
        padded = np.pad(x, [(0, 0), (reach, reach)])
        taps = [
            padded[:, k * dilation : k * dilation + x.shape[1]][:, ::stride] for k in range(kernel.shape[2])
        ]
        y = sum(kernel[:, :, k] @ tap for k, tap in enumerate(taps))
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias[:, None]

    def image_convolution(self, x, name, stride=1):
        """Convolve over bands and frames, (channels, bands, frames), with zeros around; the stride is the bands'."""
        kernel = self.weights[f"{name}.weight"]
        reach = kernel.shape[2] // 2
        padded = np.pad(x, [(0, 0), (reach, reach), (reach, reach)])
        views = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[2:], axis=(1, 2))[:, ::stride]
        return np.einsum("oikl,ibtkl->obt", kernel, views)

    def image_layer(self, x, convolution, normalisation, stride=1):
        y = self.image_convolution(x, convolution, stride)
        return self.normalised(y.transpose(0, 2, 1), normalisation).transpose(0, 2, 1)

    def head(self, fbank):
        x = np.maximum(0, self.image_layer(fbank.T[None], "head.conv1", "head.bn1"))
        for layer in ("head.layer1", "head.layer2"):
            for block in (0, 1):
                name, stride = f"{layer}.{block}", 1 if block else 2
                y = np.maximum(0, self.image_layer(x, f"{name}.conv1", f"{name}.bn1", stride))
                y = self.image_layer(y, f"{name}.conv2", f"{name}.bn2")
                if not block:
                    x = self.image_layer(x, f"{name}.shortcut.0", f"{name}.shortcut.1", stride)
                x = np.maximum(0, y + x)
        x = np.maximum(0, self.image_layer(x, "head.conv2", "head.bn2", 2))
        return x.reshape(-1, x.shape[2])

    def mask(self, x, name):
        context = np.empty_like(x)
        for start in range(0, x.shape[1], 100):
            context[:, start : start + 100] = x[:, start : start + 100].mean(axis=1, keepdims=True)
        context += x.mean(axis=1, keepdims=True)
        hidden = np.maximum(0, self.convolution(context, f"{name}.linear1"))
        return 1 / (1 + np.exp(-self.convolution(hidden, f"{name}.linear2")))

    def dense_layer(self, x, name, dilation):
        y = self.convolution(
            np.maximum(0, self.normalised(x, f"{name}.nonlinear1.batchnorm")), f"{name}.linear1"
        )
        y = np.maximum(0, self.normalised(y, f"{name}.nonlinear2.batchnorm"))
        local = self.convolution(y, f"{name}.cam_layer.linear_local", dilation=dilation)
        return np.concatenate([x, local * self.mask(y, f"{name}.cam_layer")])

    def __call__(self, fbank):
        x = self.convolution(self.head(fbank.astype(np.float64)), "xvector.tdnn.linear", stride=2)
        x = np.maximum(0, self.normalised(x, "xvector.tdnn.nonlinear.batchnorm"))
        for block, layers, dilation in ((1, 2, 1), (2, 1, 2)):
            for layer in range(1, layers + 1):
                x = self.dense_layer(x, f"xvector.block{block}.tdnnd{layer}", dilation)
            x = np.maximum(0, self.normalised(x, f"xvector.transit{block}.nonlinear.batchnorm"))
            x = self.convolution(x, f"xvector.transit{block}.linear")
        x = np.maximum(0, self.normalised(x, "xvector.out_nonlinear.batchnorm"))
        statistics = np.concatenate([x.mean(axis=1), x.std(axis=1, ddof=1)])
        y = self.weights["xvector.dense.linear.weight"][:, :, 0] @ statistics
        return self.normalised(y, "xvector.dense.nonlinear.batchnorm")


def run(graph, fbank):
    embedding = np.empty((len(fbank), SIZE), np.float32)
    graph({"fbank": fbank}, {"embedding": embedding})
    return embedding


# One to three segments of 100 frames of 20 ms, whole ones and others.
@pytest.mark.parametrize("frames", [3, 28, 98, 199, 200, 201, 202, 399, 401, 500])
def test_embeddings_are_those_of_the_paper(graph, weights, frames):
    fbank = np.random.default_rng(frames).normal(0, 2, (2, frames, BANDS)).astype(np.float32)
    wanted = [Reference(weights)(piece) for piece in fbank]
    # Rounding in float32; the largest difference seen is 7e-7, of values up to 4.
    assert np.abs(run(graph, fbank) - wanted).max() < 5e-6


def test_a_piece_does_not_depend_on_its_batch(graph):
    fbank = np.random.default_rng(1).normal(0, 2, (5, 150, BANDS)).astype(np.float32)
    alone = np.concatenate([run(graph, piece[None]) for piece in fbank])
    assert np.abs(run(graph, fbank) - alone).max() < 5e-6
