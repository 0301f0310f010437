"""Cross-attention of the alignment heads: each backend tells what the reference does, whatever was done to the rows."""

from __future__ import annotations

import numpy as np
import pytest
from bench import Bench

from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
HEADS = (DIMS.n_text_layer - DIMS.n_text_layer // 2) * DIMS.n_text_head


def test_of_every_token_over_every_position(bench: Bench) -> None:
    pair = bench.open([2, 0], attention=True)
    pair.extend([PROMPT, PROMPT[:3]])
    for row, tokens in enumerate((len(PROMPT), 3)):
        weights = pair.attention(row)
        assert weights.shape == (HEADS, tokens, DIMS.n_audio_ctx)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


def test_steps_attend_as_one_prefill_does(bench: Bench) -> None:
    whole, steps = (bench.open([1], attention=True) for _ in range(2))
    whole.extend([PROMPT])
    for token in PROMPT:
        steps.extend([[token]])
    np.testing.assert_allclose(steps.attention(0), whole.attention(0), atol=1e-5)


def test_only_as_many_positions_as_the_window_has(bench: Bench) -> None:
    session = bench.backend.open_session(bench.backend.encode(make_mel(1)[:, :, :10]), [0], 8, attention=True)
    session.extend([PROMPT[:4]])
    assert session.attention(0).shape == (HEADS, 4, 5)


def test_logits_are_the_same_with_and_without(bench: Bench) -> None:
    heard = bench.open([0, 1], attention=True).extend([PROMPT] * 2)
    np.testing.assert_array_equal(heard, bench.open([0, 1]).extend([PROMPT] * 2))


def test_it_moves_with_the_rows(bench: Bench) -> None:
    pair = bench.open(range(N_WINDOWS), attention=True)
    pair.extend([PROMPT] * N_WINDOWS)
    before = [pair.attention(row) for row in range(N_WINDOWS)]
    pair.reorder([2, 2, 0])
    for row, was in enumerate((2, 2, 0)):
        np.testing.assert_array_equal(pair.attention(row), before[was])
    pair.extend([[65], [66, 67], []])
    for row, was in enumerate((2, 2, 0)):
        np.testing.assert_allclose(pair.attention(row)[:, : len(PROMPT)], before[was], atol=1e-6)


def test_what_was_rewound_is_forgotten(bench: Bench) -> None:
    pair = bench.open([0, 3], attention=True)
    pair.extend([PROMPT] * 2)
    pair.rewind([2, len(PROMPT)])
    pair.extend([[90, 91, 92], [93]])
    assert [pair.attention(row).shape[1] for row in range(2)] == [5, len(PROMPT) + 1]


def test_hypotheses_of_a_beam(bench: Bench) -> None:
    pair = bench.open([0, 1], attention=True)
    pair.extend([PROMPT] * 2)
    pair.reorder([0, 0, 0, 1, 1, 1])
    for step, parents in enumerate([[2, 2, 0, 3, 5, 5], [1, 0, 0, 4, 4, 4], [2, 1, 0, 5, 4, 3]]):
        pair.extend([[65 + 6 * step + row] for row in range(6)])
        pair.reorder(parents)
    for row in range(6):
        pair.attention(row)


def test_rows_that_outgrow_the_first_store(bench: Bench) -> None:
    pair = bench.open([0, 0, 0, 1], attention=True)
    rng = np.random.default_rng(0)
    for _ in range(4):
        pair.extend([rng.integers(0, 256, 12).tolist() for _ in range(4)])
    for row in range(4):
        pair.attention(row)


def test_it_is_kept_only_where_it_was_asked_for(bench: Bench) -> None:
    session = bench.open([0]).session
    session.extend([PROMPT])
    with pytest.raises(AssertionError, match="opened to"):
        session.attention(0)
