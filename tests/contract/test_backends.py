"""The contract: one suite over every backend, each against the reference backend within its own tolerance.

What extends, rewinds and reorders sessions in any order is in test_session_programs.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from pairs import PROMPT, BackendPair, decode, log_probabilities

from tiny_models import DIMS, N_WINDOWS, make_backend, make_mel

HEADS = (DIMS.n_text_layer - DIMS.n_text_layer // 2) * DIMS.n_text_head
MIN_DIFFERENCE = 5.0
"""Smallest difference of logits that must differ, in tolerances."""


def differ(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    """Return whether logits differ by more than rounding explains."""
    return bool(np.abs(one - other).max() > min(MIN_DIFFERENCE * tolerance, 0.5) * one.std())


def test_dims_and_capabilities_are_reported(backends: BackendPair) -> None:
    assert backends.tested.dims == DIMS
    assert backends.tested.capabilities.device == "cpu"
    assert backends.tested.capabilities.detail


# --- encoding ----------------------------------------------------------------------------------------------


def test_batch_size_does_not_change_the_encoding(backends: BackendPair) -> None:
    mel = make_mel()
    together = decode(backends.tested, backends.features, range(N_WINDOWS))
    assert backends.features.n_windows == N_WINDOWS
    for window in range(N_WINDOWS):
        alone = backends.tested.encode(mel[window : window + 1])
        assert alone.n_windows == 1
        logits = decode(backends.tested, alone)[0]
        np.testing.assert_allclose(logits, together[window], atol=1e-4 * together.std(), rtol=0)
        assert all(differ(together[window], other, backends.tolerance) for other in together[:window])
    np.testing.assert_array_equal(mel, make_mel())


def test_encoder_output_is_that_of_the_reference(backends: BackendPair) -> None:
    actual = backends.tested.encoder_output(backends.features)
    expected = backends.reference.encoder_output(backends.reference_features)
    assert actual.shape == expected.shape == (N_WINDOWS, DIMS.n_audio_ctx, DIMS.n_audio_state)
    assert actual.dtype == np.float32
    assert np.abs(actual - expected).max() <= backends.tolerance * expected.std()


@pytest.mark.parametrize("frames", [2, 10, DIMS.n_audio_ctx])
def test_short_windows_are_encoded_at_their_own_length(backends: BackendPair, frames: int) -> None:
    pair = backends.encode(make_mel()[:, :, :frames]).open_session(range(N_WINDOWS), attention=True)
    short = pair.extend([PROMPT] * N_WINDOWS)
    assert differ(short[0], decode(backends.tested, backends.features)[0], backends.tolerance)
    assert pair.attention(0).shape == (HEADS, len(PROMPT), frames // 2)


# --- sessions ----------------------------------------------------------------------------------------------


def test_logits_are_those_of_the_last_tokens(backends: BackendPair) -> None:
    pair = backends.open_session([2, 0, 1, 3])
    assert pair.lengths == (0,) * 4
    assert pair.extend([PROMPT, PROMPT[:1], PROMPT[:4], []], last_n=3).shape == (3 + 1 + 3, DIMS.n_vocab)
    assert len(pair.extend([[65], [66, 67], [], [68, 69]])) == 3
    assert len(pair.extend([[]] * 4)) == 0
    assert pair.lengths == (len(PROMPT) + 1, 3, 4, 2)


def test_single_steps_have_the_logits_and_attention_of_one_prefill(backends: BackendPair) -> None:
    one, steps = (backends.open_session([1], attention=True) for _ in range(2))
    whole = one.extend([PROMPT], last_n=len(PROMPT))
    for i, token in enumerate(PROMPT):
        np.testing.assert_allclose(steps.extend([[token]])[0], whole[i], atol=2e-5 * whole.std(), rtol=0)
    np.testing.assert_allclose(steps.attention(0), one.attention(0), atol=1e-5)


def test_sessions_over_the_same_windows_are_independent(backends: BackendPair) -> None:
    one, other = backends.open_session([0, 1]), backends.open_session([1, 0])
    for i in range(3):
        one.extend([PROMPT[i : i + 1]] * 2)
        other.extend([[65 + i], [75 + i]])


def test_threads_can_share_a_backend(backends: BackendPair) -> None:
    mel = make_mel()

    def decode_window(window: int) -> np.ndarray:
        features = backends.tested.encode(mel[window : window + 1])
        session = backends.tested.open_session(features, [0], DIMS.n_text_ctx)
        session.extend([PROMPT])
        return np.concatenate([log_probabilities(session.extend([[65 + i]])) for i in range(4)])

    alone = [decode_window(window) for window in range(N_WINDOWS)]
    with ThreadPoolExecutor(N_WINDOWS) as pool:
        for _ in range(3):
            np.testing.assert_array_equal(list(pool.map(decode_window, range(N_WINDOWS))), alone)


def test_suppressed_logits_do_not_change_the_session(backends: BackendPair) -> None:
    session, expected = backends.open_session([0]).tested, backends.open_session([0])
    session.extend([PROMPT]).suppress_ranges([[(0, DIMS.n_vocab - 1)]])
    expected.extend([PROMPT])
    np.testing.assert_array_equal(log_probabilities(session.extend([[65]])), expected.extend([[65]]))


@pytest.mark.parametrize("length", range(len(PROMPT)))
def test_other_tokens_may_follow_a_rewind(backends: BackendPair, length: int) -> None:
    pair = backends.open_session([0])
    pair.extend([PROMPT])
    pair.rewind([length])
    instead = pair.extend([[90, 91]], last_n=2)
    after_all = backends.open_session([0]).extend([[*PROMPT, 90, 91]])
    assert differ(instead[-1], after_all[0], backends.tolerance)


def test_beams_follow_their_parents_until_windows_are_dropped(backends: BackendPair) -> None:
    pair = backends.open_session([2, 0], attention=True)
    pair.extend([PROMPT] * 2)
    parents = [[0, 0, 0, 1, 1, 1], [2, 2, 0, 3, 5, 5], [1, 0, 0, 4, 4, 4], [2, 1, 0, 5, 4, 3], [4, 4, 5], [1]]
    for step, rows in enumerate(parents):
        before = [pair.attention(row) for row in rows]
        pair.reorder(rows)
        for row, attention in enumerate(before):
            np.testing.assert_array_equal(pair.attention(row), attention)
        logits = pair.extend([[65 + 6 * step + row] for row in range(len(rows))])
        assert all(differ(logits[0], other, backends.tolerance) for other in logits[1:])


def test_rows_are_extended_to_their_capacity(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1, 2], attention=True)
    nearly_full = np.random.default_rng(1).integers(0, 256, DIMS.n_text_ctx - 1).tolist()
    pair.extend([nearly_full, [*nearly_full, 65], PROMPT], last_n=DIMS.n_text_ctx)
    pair.extend([[66], [], [67, 68, 69]], last_n=3)
    assert pair.lengths == (DIMS.n_text_ctx, DIMS.n_text_ctx, len(PROMPT) + 3)
    for row in range(3):
        pair.attention(row)
    pair.rewind([DIMS.n_text_ctx - 1, 7, 3])
    pair.extend([[70], [71], [72]])


def test_errors_do_not_accumulate_over_many_steps(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1])
    pair.extend([PROMPT] * 2)
    for token in range(30):
        pair.extend([[token], [255 - token]])


def test_use_against_the_contract_is_refused(backends: BackendPair) -> None:
    with pytest.raises(AssertionError, match="outgrown"):
        backends.tested.open_session(backends.features, [0], 4).extend([[65, 66, 67, 68, 69]])
    session = backends.open_session([0]).tested
    session.extend([PROMPT])
    with pytest.raises(AssertionError, match="opened with attention=True"):
        session.attention(0)


def test_attention_is_a_distribution_and_changes_no_logits(backends: BackendPair) -> None:
    pair = backends.open_session([2, 0], attention=True)
    with_attention = pair.extend([PROMPT, PROMPT[:3]])
    np.testing.assert_array_equal(with_attention, backends.open_session([2, 0]).extend([PROMPT, PROMPT[:3]]))
    for row, tokens in enumerate((len(PROMPT), 3)):
        weights = pair.attention(row)
        assert weights.shape == (HEADS, tokens, DIMS.n_audio_ctx)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


def test_part_of_the_vocabulary_is_the_whole_with_all_other_tokens_suppressed(
    backends: BackendPair, tmp_path: Path
) -> None:
    """Prompts may hold tokens outside of the part."""
    part = np.sort(np.random.default_rng(0).choice(DIMS.n_vocab, 300, replace=False))
    others = np.setdiff1d(np.arange(DIMS.n_vocab), part)
    backend = make_backend(backends.name, tmp_path, shares_encoder=True, vocab_subset=part)
    features = backend.reuse_encoder_output(backends.features)
    sessions = backend.open_session(features, [0, 2], 48), backends.open_session([0, 2], 48).tested
    for prompt in (PROMPT, others[:7].tolist(), [*part[:2].tolist(), int(others[90])]):
        own, whole = (session.extend([prompt] * 2, last_n=3) for session in sessions)
        whole.suppress_tokens(others)
        (ids, logprobs), (expected_ids, expected) = own.top(len(part) + 9), whole.top(len(part))
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(logprobs, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)
    assert len(sessions[0].extend([[], []])) == 0
