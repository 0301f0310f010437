"""Cross-attention of the alignment heads: every backend against the reference, after every change of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import BackendPair

from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
HEADS = (DIMS.n_text_layer - DIMS.n_text_layer // 2) * DIMS.n_text_head


def test_attention_covers_every_token_and_position(backends: BackendPair) -> None:
    pair = backends.open_session([2, 0], attention=True)
    pair.extend([PROMPT, PROMPT[:3]])
    for row, tokens in enumerate((len(PROMPT), 3)):
        weights = pair.attention(row)
        assert weights.shape == (HEADS, tokens, DIMS.n_audio_ctx)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


def test_single_steps_have_the_attention_of_one_prefill(backends: BackendPair) -> None:
    whole, steps = (backends.open_session([1], attention=True) for _ in range(2))
    whole.extend([PROMPT])
    for token in PROMPT:
        steps.extend([[token]])
    np.testing.assert_allclose(steps.attention(0), whole.attention(0), atol=1e-5)


def test_attention_is_as_long_as_a_short_window(backends: BackendPair) -> None:
    session = backends.tested.open_session(
        backends.tested.encode(make_mel(1)[:, :, :10]), [0], 8, attention=True
    )
    session.extend([PROMPT[:4]])
    assert session.attention(0).shape == (HEADS, 4, 5)


def test_keeping_attention_does_not_change_logits(backends: BackendPair) -> None:
    with_attention = backends.open_session([0, 1], attention=True).extend([PROMPT] * 2)
    np.testing.assert_array_equal(with_attention, backends.open_session([0, 1]).extend([PROMPT] * 2))


def test_attention_follows_reordered_rows(backends: BackendPair) -> None:
    pair = backends.open_session(range(N_WINDOWS), attention=True)
    pair.extend([PROMPT] * N_WINDOWS)
    before = [pair.attention(row) for row in range(N_WINDOWS)]
    pair.reorder([2, 2, 0])
    for row, parent in enumerate((2, 2, 0)):
        np.testing.assert_array_equal(pair.attention(row), before[parent])
    pair.extend([[65], [66, 67], []])
    for row, parent in enumerate((2, 2, 0)):
        np.testing.assert_allclose(pair.attention(row)[:, : len(PROMPT)], before[parent], atol=1e-6)


def test_rewind_drops_attention(backends: BackendPair) -> None:
    pair = backends.open_session([0, 3], attention=True)
    pair.extend([PROMPT] * 2)
    pair.rewind([2, len(PROMPT)])
    pair.extend([[90, 91, 92], [93]])
    assert [pair.attention(row).shape[1] for row in range(2)] == [5, len(PROMPT) + 1]


def test_attention_of_beam_hypotheses(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1], attention=True)
    pair.extend([PROMPT] * 2)
    pair.reorder([0, 0, 0, 1, 1, 1])
    for step, parents in enumerate([[2, 2, 0, 3, 5, 5], [1, 0, 0, 4, 4, 4], [2, 1, 0, 5, 4, 3]]):
        pair.extend([[65 + 6 * step + row] for row in range(6)])
        pair.reorder(parents)
    for row in range(6):
        pair.attention(row)


def test_attention_survives_growth_of_the_kv_cache(backends: BackendPair) -> None:
    pair = backends.open_session([0, 0, 0, 1], attention=True)
    rng = np.random.default_rng(0)
    for _ in range(4):
        pair.extend([rng.integers(0, 256, 12).tolist() for _ in range(4)])
    for row in range(4):
        pair.attention(row)


def test_attention_of_a_session_without_it_is_refused(backends: BackendPair) -> None:
    session = backends.open_session([0]).tested
    session.extend([PROMPT])
    with pytest.raises(AssertionError, match="opened with attention=True"):
        session.attention(0)
