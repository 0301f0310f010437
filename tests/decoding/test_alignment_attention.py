"""The alignment matrix: cross-attention weights standardized over the tokens and median-filtered."""

from __future__ import annotations

import numpy as np
import pytest

from harken.decoding.alignment_attention import RunningAlignment, alignment_matrix


@pytest.mark.parametrize("n_positions", [1, 3, 4, 10, 60])
def test_matrix_is_standardized_and_median_filtered(n_positions: int) -> None:
    weights = np.random.default_rng(n_positions).dirichlet(np.ones(64), (3, 5)).astype(np.float32)
    normalized = weights[:, :, :n_positions] / weights[:, :, :n_positions].sum(axis=-1, keepdims=True)
    deviation = np.maximum(normalized.std(axis=1, keepdims=True), 1e-12)
    standardized = (normalized - normalized.mean(axis=1, keepdims=True)) / deviation
    if n_positions > 3:
        padded = np.pad(standardized, ((0, 0), (0, 0), (3, 3)), mode="reflect")
        standardized = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7, axis=-1), axis=-1)
    expected = standardized.mean(axis=0) if n_positions > 1 else np.zeros((5, 1))
    np.testing.assert_allclose(alignment_matrix(weights, n_positions), expected, atol=2e-5)


def test_matrix_is_zero_where_all_tokens_attend_alike_and_for_one_token() -> None:
    weights = np.zeros((2, 3, 20), np.float32)
    weights[1] = 1 / 20
    single = np.random.default_rng(0).dirichlet(np.ones(20), (2, 1)).astype(np.float32)
    for alike in (weights, single):
        np.testing.assert_array_equal(alignment_matrix(alike, 20), np.zeros((alike.shape[1], 20)))
        np.testing.assert_array_equal(RunningAlignment(20).last_row(alike), np.zeros(20))


def test_rows_of_one_token_after_another_are_those_of_the_matrix() -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(40), (3, 12)).astype(np.float32)
    alignment = RunningAlignment(30)
    for n_tokens in (4, 5, 8, 12):
        expected = alignment_matrix(weights[:, :n_tokens], 30, 1)[0]
        np.testing.assert_allclose(alignment.last_row(weights[:, :n_tokens]), expected, atol=2e-5)
