"""The probe for saturating integer sums, and weights of 7 bits where they saturate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harken.backends.onnx import OnnxBackend, graph_loader
from harken.backends.onnx.graph_files import MODEL_FILE, write_graph
from harken.backends.onnx.graph_loader import DEPTH, LARGEST_ACTIVATION, probe_graph, probe_weights, weight_bits
from harken.backends.onnx.linear import quantise_rows
from harken.backends.onnx.runtimes import OnnxRuntimeGraph
from tiny_models import DIMS, make_mel, make_weights

LIMIT = 2**15 - 1


def sum_exactly(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return x.astype(np.int64) @ weights.astype(np.int64)


def sum_pairs_with_saturation(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pairs of products added in 16 bits with saturation, as `pmaddubsw` does."""
    products = x.astype(np.int64)[:, :, None] * weights.astype(np.int64)
    return np.clip(products[:, ::2] + products[:, 1::2], -LIMIT - 1, LIMIT).sum(axis=1)


def saturate_with_several_rows(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (sum_exactly if len(x) == 1 else sum_pairs_with_saturation)(x, weights)


class FakeGraph:
    """The probe graph on a machine with the given way to sum."""

    def __init__(self, sum_products: Any) -> None:
        self._sum_products = sum_products

    def __call__(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        outputs["sums"][:] = self._sum_products(inputs["x"], probe_weights())


@pytest.mark.parametrize(
    ("sum_products", "bits"),
    [(sum_exactly, 8), (sum_pairs_with_saturation, 7), (saturate_with_several_rows, 7)],
)
def test_saturating_machine_gets_weights_of_seven_bits(sum_products: Any, bits: int) -> None:
    assert weight_bits(FakeGraph(sum_products)) == bits


def test_seven_bits_do_not_saturate() -> None:
    weights, _ = quantise_rows(np.random.default_rng(0).standard_normal((40, DEPTH), np.float32), 7)
    largest = np.full((3, DEPTH), LARGEST_ACTIVATION)
    np.testing.assert_array_equal(
        sum_pairs_with_saturation(largest, weights.T), sum_exactly(largest, weights.T)
    )


def test_probe_runs_on_this_machine(tmp_path: Path) -> None:
    write_graph(probe_graph(), tmp_path)
    assert weight_bits(OnnxRuntimeGraph(tmp_path / MODEL_FILE, threads=1)) in (7, 8)


@pytest.mark.parametrize("bits", [7, 8])
def test_graphs_of_seven_and_eight_bits_are_stored_separately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    monkeypatch.setattr(graph_loader, "weight_bits", lambda graph: bits)
    quantised = OnnxBackend(DIMS, make_weights(), "tiny", precision="int8", threads=1, cache=tmp_path)
    (graph,) = tmp_path.glob("tiny-decoder-*")
    assert f"-int{bits}-" in graph.name
    logits = quantised.open_session(quantised.encode(make_mel(1)), [0], 8).extend([[1, 2, 3]])
    plain = OnnxBackend(DIMS, make_weights(), "tiny", precision="fp32", threads=1, cache=tmp_path)
    expected = plain.open_session(plain.encode(make_mel(1)), [0], 8).extend([[1, 2, 3]])
    error = np.abs(logits.values - expected.values).max() / expected.values.std()
    assert 0 < error < 0.5
