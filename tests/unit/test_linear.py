"""Weights of 8 bits: every block of a row has a scale of its own, and no weight is off by more than half a step."""

from __future__ import annotations

import numpy as np
import pytest

from harken.backends.onnx.linear import BLOCK, quantise_blocks


def restore(quantised: np.ndarray, scales: np.ndarray, columns: int) -> np.ndarray:
    blocks = (quantised.astype(np.float32) - 128) * scales[:, :, None]
    return blocks.reshape(len(quantised), -1)[:, :columns]


@pytest.mark.parametrize("columns", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_no_weight_is_off_by_more_than_half_a_step_of_its_block(columns: int) -> None:
    weight = np.random.default_rng(0).standard_normal((5, columns), np.float32)
    weight[:, ::BLOCK] *= np.float32(10) ** np.arange(
        0, weight[:, ::BLOCK].shape[1]
    )  # blocks of different size
    quantised, scales = quantise_blocks(weight, BLOCK)
    assert quantised.shape == (*scales.shape, BLOCK)
    error = np.abs(restore(quantised, scales, columns) - weight)
    for start in range(0, columns, BLOCK):
        block = slice(start, start + BLOCK)
        half_a_step = np.abs(weight[:, block]).max(axis=1, keepdims=True) / 254
        assert (error[:, block] <= 1.001 * half_a_step).all()


def test_the_largest_weights_are_exact() -> None:
    weight = np.zeros((1, BLOCK), np.float32)
    weight[0, :2] = 3, -3
    np.testing.assert_allclose(restore(*quantise_blocks(weight, BLOCK), 2), [[3, -3]], rtol=1e-6)


def test_a_block_of_zeros_stays_zero() -> None:
    quantised, scales = quantise_blocks(np.zeros((2, BLOCK), np.float32), BLOCK)
    assert (quantised == 128).all()
    assert not scales.any()
