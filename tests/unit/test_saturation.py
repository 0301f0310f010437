"""The runtime is asked whether integers are summed exactly, and where they are not, weights are made smaller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from harken.backends.onnx import OnnxBackend, backend
from harken.backends.onnx.linear import quantise_rows
from harken.backends.onnx.runtimes import OnnxRuntimeGraph
from harken.backends.onnx.saturation import DEPTH, LARGEST_ACTIVATION, probe_graph, probe_weights, weight_bits
from tiny_models import DIMS, make_mel, make_weights

LIMIT = 2**15 - 1


def exact(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return x.astype(np.int64) @ weights.astype(np.int64)


def in_pairs(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pairs of products added in 16 bits with saturation, as `pmaddubsw` does."""
    products = x.astype(np.int64)[:, :, None] * weights.astype(np.int64)
    return np.clip(products[:, ::2] + products[:, 1::2], -LIMIT - 1, LIMIT).sum(axis=1)


def only_with_several_rows(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return (exact if len(x) == 1 else in_pairs)(x, weights)


class FakeGraph:
    """The probe on a machine that sums in its own way."""

    def __init__(self, total: Any) -> None:
        self._total = total

    def __call__(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        outputs["sums"][:] = self._total(inputs["x"], probe_weights())


@pytest.mark.parametrize(("total", "bits"), [(exact, 8), (in_pairs, 7), (only_with_several_rows, 7)])
def test_bits_of_a_weight(total: Any, bits: int) -> None:
    assert weight_bits(FakeGraph(total)) == bits


def test_what_saturates_does_not_with_seven_bits() -> None:
    weights, _ = quantise_rows(np.random.default_rng(0).standard_normal((40, DEPTH), np.float32), 7)
    largest = np.full((3, DEPTH), LARGEST_ACTIVATION)
    np.testing.assert_array_equal(in_pairs(largest, weights.T), exact(largest, weights.T))


def test_the_probe_has_all_signs_side_by_side() -> None:
    pairs = probe_weights().reshape(DEPTH // 2, 2, -1).astype(int)
    assert {(int(a), int(b)) for a, b in zip(*np.rollaxis(pairs, 1).reshape(2, -1), strict=True)} == {
        (127, 127), (127, -127), (-127, -127)
    }  # fmt: skip


def test_this_machine_has_an_answer(tmp_path: Path) -> None:
    onnx.save_model(probe_graph(), tmp_path / "probe.onnx")
    assert weight_bits(OnnxRuntimeGraph(tmp_path / "probe.onnx", threads=1)) in (7, 8)


@pytest.mark.parametrize("bits", [7, 8])
def test_graphs_of_either_kind_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    monkeypatch.setattr(backend, "weight_bits", lambda graph: bits)
    its = OnnxBackend(DIMS, make_weights(), "tiny", precision="int8", threads=1, cache=tmp_path)
    (kept,) = tmp_path.glob("tiny-decoder-*")
    assert f"-int{bits}-" in kept.name
    logits = its.open_session(its.encode(make_mel(1)), [0], 8).extend([[1, 2, 3]])
    plain = OnnxBackend(DIMS, make_weights(), "tiny", precision="fp32", threads=1, cache=tmp_path)
    expected = plain.open_session(plain.encode(make_mel(1)), [0], 8).extend([[1, 2, 3]])
    error = np.abs(logits.values - expected.values).max() / expected.values.std()
    assert 0 < error < 0.5
