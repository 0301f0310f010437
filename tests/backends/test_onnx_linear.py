"""Quantised linear layers: one scale a row, errors of at most half a step, exact integer sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harken.backends.onnx.builder import GraphBuilder
from harken.backends.onnx.graph_files import MODEL_FILE, write_graph
from harken.backends.onnx.graph_loader import probe_graph, weight_bits
from harken.backends.onnx.linear import (
    INT4_BLOCK,
    INTEGER_SCHEMES,
    UNITS_PER_OUTLIER,
    QuantizationScheme,
    quantise_blocks,
    quantise_rows,
)
from harken.backends.onnx.runtimes import OnnxRuntimeGraph

COLUMNS, OUTPUTS = 96, 40
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((OUTPUTS, COLUMNS), np.float32)


@pytest.fixture(scope="module")
def widest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The scheme of 8-bit weights, or that of 7 bits where the processor saturates the sums of the other."""
    folder = tmp_path_factory.mktemp("probe")
    write_graph(probe_graph(), folder)
    return f"int{weight_bits(OnnxRuntimeGraph(folder / MODEL_FILE, threads=1))}"


def multiply(
    scheme: QuantizationScheme, x: np.ndarray, weight: np.ndarray, tmp_path: Path
) -> tuple[np.ndarray, ...]:
    """Multiply by a general layer and by one behind a GELU."""
    graph = GraphBuilder("linear")
    x_name = graph.input("x", ("rows", weight.shape[1]))
    for name in ("linear", "after_gelu"):
        graph.output(getattr(scheme, name)(graph, x_name, weight), name, ("rows", len(weight)))
    write_graph(graph.build(), tmp_path)
    run = OnnxRuntimeGraph(tmp_path / MODEL_FILE, threads=1)
    outputs = {name: np.empty((len(x), len(weight)), np.float32) for name in ("linear", "after_gelu")}
    run({"x": x}, outputs)
    return outputs["linear"], outputs["after_gelu"]


@pytest.mark.parametrize("bits", [7, 8])
def test_rows_are_quantised_to_half_a_step(bits: int) -> None:
    weight = WEIGHT * np.float32(10) ** np.arange(-20, 20)[:, None]
    quantised, scales = quantise_rows(weight.astype(np.float32), bits)
    assert quantised.dtype == np.int8
    assert np.abs(quantised).max() == 2 ** (bits - 1) - 1
    half_a_step = np.abs(weight).max(axis=1) / (2**bits - 2)
    assert (np.abs(quantised * scales[:, None] - weight).max(axis=1) <= 1.001 * half_a_step).all()


@pytest.mark.parametrize(("scheme", "tolerance"), [("int8", 0.012), ("int7", 0.02), ("int4", 0.12)])
def test_quantised_products_are_close_to_float32(
    tmp_path: Path, scheme: str, tolerance: float, widest: str
) -> None:
    if (scheme, widest) == ("int8", "int7"):
        pytest.skip("this processor saturates sums of 8-bit products")
    x = RNG.standard_normal((5, COLUMNS), np.float32)
    gelu = np.maximum(x, np.float32(-0.1))
    linear, _ = multiply(INTEGER_SCHEMES[scheme], x, WEIGHT, tmp_path)
    _, after_gelu = multiply(INTEGER_SCHEMES[scheme], gelu, WEIGHT, tmp_path)
    for actual, expected in ((linear, x @ WEIGHT.T), (after_gelu, gelu @ WEIGHT.T)):
        assert np.abs(actual - expected).std() < tolerance * expected.std()


def test_input_row_of_zeros_gives_zeros(tmp_path: Path) -> None:
    x = RNG.standard_normal((3, COLUMNS), np.float32)
    x[1] = 0
    for product in multiply(INTEGER_SCHEMES["int8"], x, WEIGHT, tmp_path):
        assert not product[1].any()
        assert product[0].all()
        assert np.isfinite(product).all()


def test_outlier_channels_do_not_coarsen_the_others(tmp_path: Path, widest: str) -> None:
    x = np.abs(RNG.standard_normal((4, COLUMNS), np.float32))
    x[:, : COLUMNS // UNITS_PER_OUTLIER] *= 1000
    weight = WEIGHT.copy()
    weight[:, : COLUMNS // UNITS_PER_OUTLIER] = 0
    linear, after_gelu = multiply(INTEGER_SCHEMES[widest], x, weight, tmp_path)
    expected = x @ weight.T
    assert np.abs(after_gelu - expected).max() < 0.05 * expected.std()
    assert np.abs(linear - expected).max() > expected.std()


@pytest.mark.parametrize("columns", [64, 40])
def test_int4_blocks_are_quantised_to_a_step(columns: int) -> None:
    weight = np.random.default_rng(0).standard_normal((6, columns)).astype(np.float32)
    quantised, scales = quantise_blocks(weight)
    digits = np.stack([quantised & 15, quantised >> 4], axis=-1).reshape(*scales.shape, INT4_BLOCK)
    restored = ((digits.astype(np.float32) - 8) * scales[:, :, None]).reshape(6, -1)[:, :columns]
    steps = np.repeat(np.abs(scales), INT4_BLOCK, axis=1)[:, :columns]
    # Values of the other sign than the largest may be a whole step away: 16 integers are not symmetric about 0.
    assert (np.abs(restored - weight) <= 1.001 * steps).all()
    assert np.median(np.abs(restored - weight) / steps) < 0.3
