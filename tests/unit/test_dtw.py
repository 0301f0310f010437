"""The path through the attention, against the plainest way to find it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.contract import Floats
from harken.decoding.alignment_attention import alignment_matrix
from harken.transcribe.dtw import token_starts


def plain_token_starts(matrix: Floats) -> list[int]:
    """Dynamic time warping by the book (openai/whisper, timing.py, dtw_cpu and backtrace)."""
    tokens, steps = matrix.shape
    total = np.full((tokens + 1, steps + 1), np.inf)
    total[0, 0] = 0
    for i in range(tokens):
        for j in range(steps):
            total[i + 1, j + 1] = min(total[i, j], total[i, j + 1], total[i + 1, j]) - matrix[i, j]
    path = [(tokens, steps)]
    while path[-1] != (1, 1):
        i, j = path[-1]
        path.append(min([(i - 1, j - 1), (i - 1, j), (i, j - 1)], key=lambda at: total[at]))
    return [min(j for i, j in path if i == token + 1) - 1 for token in range(tokens)]


@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_the_path_is_the_best(tokens: int, steps: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).standard_normal((tokens, steps)).astype(np.float32)
    assert token_starts(matrix).tolist() == plain_token_starts(matrix)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_tokens_that_listen_to_one_stretch_each(lengths: list[int]) -> None:
    matrix = np.repeat(2 * np.eye(len(lengths), dtype=np.float32) - 1, lengths, axis=1)
    assert token_starts(matrix).tolist() == [0, *np.cumsum(lengths)[:-1]]


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_a_window_of_one_step(tokens: int) -> None:
    assert token_starts(np.ones((tokens, 1), np.float32)).tolist() == [0] * tokens


@pytest.mark.parametrize("steps", [1, 3, 4, 10, 60])
def test_what_is_listened_to(steps: int) -> None:
    weights = np.random.default_rng(steps).dirichlet(np.ones(64), (3, 5)).astype(np.float32)
    heard = weights[:, :, :steps] / weights[:, :, :steps].sum(axis=-1, keepdims=True)
    distinct = (heard - heard.mean(axis=1, keepdims=True)) / np.maximum(heard.std(axis=1, keepdims=True), 1e-12)
    if steps > 3:
        padded = np.pad(distinct, ((0, 0), (0, 0), (3, 3)), mode="reflect")
        distinct = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7, axis=-1), axis=-1)
    expected = distinct.mean(axis=0) if steps > 1 else np.zeros((5, 1))
    np.testing.assert_allclose(alignment_matrix(weights, steps), expected, atol=2e-5)


def test_weights_that_are_nothing_or_the_same_say_nothing() -> None:
    weights = np.zeros((2, 3, 20), np.float32)
    weights[1] = 1 / 20
    np.testing.assert_array_equal(alignment_matrix(weights, 20), np.zeros((3, 20)))


def test_one_token_has_nothing_to_differ_from() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(20), (2, 1)).astype(np.float32)
    matrix = alignment_matrix(weights, 20)
    np.testing.assert_array_equal(matrix, np.zeros((1, 20)))
    assert token_starts(matrix).tolist() == [0]
