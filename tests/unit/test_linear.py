"""Weights in integers: each row has its scale, no weight is off by more than half a step; products sum exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from harken.backends.onnx.builder import GraphBuilder
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


def multiply(
    arithmetic: QuantizationScheme, x: np.ndarray, weight: np.ndarray, tmp_path: Path
) -> tuple[np.ndarray, ...]:
    """What a general layer and one behind a GELU give."""
    graph = GraphBuilder("linear")
    given = graph.input("x", ("rows", weight.shape[1]))
    for name in ("linear", "after_gelu"):
        graph.output(getattr(arithmetic, name)(graph, given, weight), name, ("rows", len(weight)))
    onnx.save_model(graph.model(), tmp_path / "linear.onnx")
    run = OnnxRuntimeGraph(tmp_path / "linear.onnx", threads=1)
    out = {name: np.empty((len(x), len(weight)), np.float32) for name in ("linear", "after_gelu")}
    run({"x": x}, out)
    return out["linear"], out["after_gelu"]


@pytest.mark.parametrize("bits", [7, 8])
def test_no_weight_is_off_by_more_than_half_a_step_of_its_row(bits: int) -> None:
    weight = WEIGHT * np.float32(10) ** np.arange(-20, 20)[:, None]
    quantised, scales = quantise_rows(weight.astype(np.float32), bits)
    assert quantised.dtype == np.int8
    assert np.abs(quantised).max() == 2 ** (bits - 1) - 1
    half_a_step = np.abs(weight).max(axis=1) / (2**bits - 2)
    assert (np.abs(quantised * scales[:, None] - weight).max(axis=1) <= 1.001 * half_a_step).all()


def test_a_row_of_zeros_stays_zero() -> None:
    quantised, scales = quantise_rows(np.zeros((2, 3), np.float32), 8)
    assert not quantised.any()
    assert not scales.any()


@pytest.mark.parametrize(("kind", "tolerance"), [("int8", 0.012), ("int7", 0.02), ("int4", 0.12)])
def test_products_are_near_those_of_float32(tmp_path: Path, kind: str, tolerance: float) -> None:
    x = RNG.standard_normal((5, COLUMNS), np.float32)
    gelu = np.maximum(x, np.float32(-0.1))
    linear, _ = multiply(INTEGER_SCHEMES[kind], x, WEIGHT, tmp_path)
    _, after_gelu = multiply(INTEGER_SCHEMES[kind], gelu, WEIGHT, tmp_path)
    for actual, expected in ((linear, x @ WEIGHT.T), (after_gelu, gelu @ WEIGHT.T)):
        assert np.abs(actual - expected).std() < tolerance * expected.std()


def test_how_many_rows_are_multiplied_at_once_does_not_show(tmp_path: Path) -> None:
    x = RNG.standard_normal((17, COLUMNS), np.float32) * np.float32(10) ** np.arange(-8, 9)[:, None]
    x = x.astype(np.float32)
    together = multiply(INTEGER_SCHEMES["int8"], x, WEIGHT, tmp_path)
    for rows in (1, 2, 5, 16):
        some = multiply(INTEGER_SCHEMES["int8"], x[:rows], WEIGHT, tmp_path)
        for one, other in zip(some, together, strict=True):
            np.testing.assert_array_equal(one, other[:rows])


def test_a_row_of_zeros_among_others_gives_zeros(tmp_path: Path) -> None:
    x = RNG.standard_normal((3, COLUMNS), np.float32)
    x[1] = 0
    for product in multiply(INTEGER_SCHEMES["int8"], x, WEIGHT, tmp_path):
        assert not product[1].any()
        assert product[0].all()
        assert np.isfinite(product).all()


def test_loud_units_do_not_drown_the_others(tmp_path: Path) -> None:
    x = np.abs(RNG.standard_normal((4, COLUMNS), np.float32))
    x[:, : COLUMNS // UNITS_PER_OUTLIER] *= 1000
    weight = WEIGHT.copy()
    weight[:, : COLUMNS // UNITS_PER_OUTLIER] = 0
    linear, after_gelu = multiply(INTEGER_SCHEMES["int8"], x, weight, tmp_path)
    expected = x @ weight.T
    assert np.abs(after_gelu - expected).max() < 0.05 * expected.std()
    assert np.abs(linear - expected).max() > expected.std()


@pytest.mark.parametrize("columns", [64, 40])
def test_four_bits_are_off_by_no_more_than_half_a_step(columns: int) -> None:
    weight = np.random.default_rng(0).standard_normal((6, columns)).astype(np.float32)
    quantised, scales = quantise_blocks(weight)
    digits = np.stack([quantised & 15, quantised >> 4], axis=-1).reshape(*scales.shape, INT4_BLOCK)
    restored = ((digits.astype(np.float32) - 8) * scales[:, :, None]).reshape(6, -1)[:, :columns]
    steps = np.repeat(np.abs(scales), INT4_BLOCK, axis=1)[:, :columns]
    # What lies opposite of the largest may be a whole step away, as 16 numbers cannot be symmetric.
    assert (np.abs(restored - weight) <= 1.001 * steps).all()
    assert np.median(np.abs(restored - weight) / steps) < 0.3
