"""Dynamic time warping of tokens, against a direct implementation."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harken.contract import Floats
from harken.transcribe.word_timestamps import token_starts


def reference_token_starts(attention: Floats) -> list[int]:
    """Return the token starts by the full table (openai/whisper, timing.py, dtw_cpu and backtrace)."""
    n_tokens, n_positions = attention.shape
    total = np.full((n_tokens + 1, n_positions + 1), np.inf)
    total[0, 0] = 0
    for i in range(n_tokens):
        for j in range(n_positions):
            total[i + 1, j + 1] = min(total[i, j], total[i, j + 1], total[i + 1, j]) - attention[i, j]
    path = [(n_tokens, n_positions)]
    while path[-1] != (1, 1):
        i, j = path[-1]
        path.append(min([(i - 1, j - 1), (i - 1, j), (i, j - 1)], key=lambda at: total[at]))
    return [min(j for i, j in path if i == token + 1) - 1 for token in range(n_tokens)]


@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_path_is_that_of_the_full_table(n_tokens: int, n_positions: int, seed: int) -> None:
    attention = np.random.default_rng(seed).standard_normal((n_tokens, n_positions)).astype(np.float32)
    assert token_starts(attention).tolist() == reference_token_starts(attention)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9))
def test_tokens_begin_where_their_attention_begins(lengths: list[int]) -> None:
    attention = np.repeat(2 * np.eye(len(lengths), dtype=np.float32) - 1, lengths, axis=1)
    assert token_starts(attention).tolist() == [0, *np.cumsum(lengths)[:-1]]
