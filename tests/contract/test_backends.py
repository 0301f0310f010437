"""The contract: one suite over every backend, each against the reference backend within its own tolerance."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pairs import BackendPair, SessionPair, log_probabilities

from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
MIN_DIFFERENCE = 5.0
"""Smallest difference of logits that must differ, in tolerances."""


def differ(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    """Return whether logits differ by more than rounding explains."""
    return bool(np.abs(one - other).max() > min(MIN_DIFFERENCE * tolerance, 0.5) * one.std())


def test_dims_and_capabilities_are_reported(backends: BackendPair) -> None:
    assert backends.tested.dims == DIMS
    assert backends.tested.capabilities.device == "cpu"
    assert backends.tested.capabilities.detail


def test_batch_size_does_not_change_the_encoding(backends: BackendPair) -> None:
    mel = make_mel()
    together = backends.open_session(range(N_WINDOWS)).extend([PROMPT] * N_WINDOWS)
    assert backends.features.n_windows == N_WINDOWS
    for window in range(N_WINDOWS):
        alone = backends.tested.encode(mel[window : window + 1])
        assert alone.n_windows == 1
        logits = log_probabilities(backends.tested.open_session(alone, [0], DIMS.n_text_ctx).extend([PROMPT]))
        np.testing.assert_allclose(logits[0], together[window], atol=1e-4 * together.std(), rtol=0)


def test_encoder_output_is_that_of_the_reference(backends: BackendPair) -> None:
    actual = backends.tested.encoder_output(backends.features)
    expected = backends.reference.encoder_output(backends.reference_features)
    assert actual.shape == expected.shape == (N_WINDOWS, DIMS.n_audio_ctx, DIMS.n_audio_state)
    assert actual.dtype == np.float32
    assert np.abs(actual - expected).max() <= backends.tolerance * expected.std()


@pytest.mark.parametrize("frames", [2, 10, DIMS.n_audio_ctx])
def test_short_windows_are_encoded_at_their_own_length(backends: BackendPair, frames: int) -> None:
    mel = make_mel()[:, :, :frames]
    features, expected = backends.tested.encode(mel), backends.reference.encode(mel)
    pair = SessionPair(
        backends.tested.open_session(features, range(N_WINDOWS), DIMS.n_text_ctx),
        backends.reference.open_session(expected, range(N_WINDOWS), DIMS.n_text_ctx),
        backends.tolerance,
    )
    short = pair.extend([PROMPT] * N_WINDOWS)
    assert differ(short[0], backends.open_session([0]).extend([PROMPT])[0], backends.tolerance)


def test_different_windows_give_different_logits(backends: BackendPair) -> None:
    logits = backends.open_session(range(N_WINDOWS)).extend([PROMPT] * N_WINDOWS)
    for one in range(N_WINDOWS):
        for other in range(one):
            assert differ(logits[one], logits[other], backends.tolerance)


def test_encode_does_not_change_the_mel(backends: BackendPair) -> None:
    mel = make_mel(1)
    backends.tested.encode(mel)
    np.testing.assert_array_equal(mel, make_mel(1))


def test_extend_returns_logits_of_the_last_token(backends: BackendPair) -> None:
    pair = backends.open_session([0])
    assert pair.lengths == (0,)
    assert pair.extend([PROMPT]).shape == (1, DIMS.n_vocab)
    assert pair.lengths == (len(PROMPT),)


def test_last_n_returns_logits_of_every_token(backends: BackendPair) -> None:
    assert len(backends.open_session([0]).extend([PROMPT], last_n=len(PROMPT))) == len(PROMPT)


def test_single_steps_have_the_logits_of_one_prefill(backends: BackendPair) -> None:
    whole = backends.open_session([1]).extend([PROMPT], last_n=len(PROMPT))
    steps = backends.open_session([1])
    for i, token in enumerate(PROMPT):
        np.testing.assert_allclose(steps.extend([[token]])[0], whole[i], atol=2e-5 * whole.std(), rtol=0)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_draft_gets_logits_at_every_token(backends: BackendPair, k: int) -> None:
    pair = backends.open_session([0, 3])
    pair.extend([PROMPT, PROMPT])
    drafts = [[65, *range(100, 100 + k)], [66, *range(200, 200 + k)]]
    assert len(pair.extend(drafts, last_n=k + 1)) == 2 * (k + 1)


def test_rows_may_bring_different_numbers_of_tokens(backends: BackendPair) -> None:
    pair = backends.open_session([2, 0, 1])
    assert len(pair.extend([PROMPT, PROMPT[:1], PROMPT[:4]], last_n=3)) == 3 + 1 + 3
    assert len(pair.extend([[65], [66, 67, 68, 69], [70, 71]], last_n=2)) == 1 + 2 + 2
    assert pair.lengths == (len(PROMPT) + 1, 5, 6)


def test_empty_sequence_leaves_its_row_unchanged(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1, 1])
    pair.extend([PROMPT] * 3)
    assert len(pair.extend([[], [80, 81], []], last_n=4)) == 2
    assert len(pair.extend([[82], [], [83]])) == 2
    assert pair.lengths == (len(PROMPT) + 1, len(PROMPT) + 2, len(PROMPT) + 1)


def test_empty_sequences_for_all_rows_return_no_logits(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1])
    pair.extend([PROMPT] * 2)
    assert len(pair.extend([[], []])) == 0
    pair.extend([[65], [66]])


def test_rows_attend_to_the_windows_they_were_opened_with(backends: BackendPair) -> None:
    pair = backends.open_session([3, 1, 3, 0])
    pair.extend([PROMPT] * 4)
    pair.extend([[65], [66], [67], [68]])


def test_sessions_over_the_same_windows_are_independent(backends: BackendPair) -> None:
    one, other = backends.open_session([0, 1]), backends.open_session([1, 0])
    for i in range(3):
        one.extend([PROMPT[i : i + 1]] * 2)
        other.extend([[65 + i], [75 + i]])


def test_threads_can_share_a_backend(backends: BackendPair) -> None:
    mel = make_mel()

    def decode(window: int) -> np.ndarray:
        session = backends.tested.open_session(
            backends.tested.encode(mel[window : window + 1]), [0], DIMS.n_text_ctx
        )
        session.extend([PROMPT])
        return np.concatenate([log_probabilities(session.extend([[65 + i]])) for i in range(4)])

    alone = [decode(window) for window in range(N_WINDOWS)]
    with ThreadPoolExecutor(N_WINDOWS) as pool:
        for _ in range(3):
            np.testing.assert_array_equal(list(pool.map(decode, range(N_WINDOWS))), alone)


def test_suppressed_logits_do_not_change_the_session(backends: BackendPair) -> None:
    session, expected = backends.open_session([0]).tested, backends.open_session([0])
    session.extend([PROMPT]).suppress_ranges([[(0, DIMS.n_vocab - 1)]])
    expected.extend([PROMPT])
    after = log_probabilities(session.extend([[65]]))
    np.testing.assert_array_equal(after, expected.extend([[65]]))


@pytest.mark.parametrize("length", range(len(PROMPT)))
def test_other_tokens_may_follow_a_rewind(backends: BackendPair, length: int) -> None:
    pair = backends.open_session([0])
    pair.extend([PROMPT])
    pair.rewind([length])
    assert pair.lengths == (length,)
    instead = pair.extend([[90, 91]], last_n=2)
    after_all = backends.open_session([0]).extend([[*PROMPT, 90, 91]])
    assert differ(instead[-1], after_all[0], backends.tolerance)


def test_each_row_rewinds_to_its_own_length(backends: BackendPair) -> None:
    pair = backends.open_session([0, 0, 2])
    pair.extend([PROMPT] * 3)
    pair.rewind([len(PROMPT), 2, 0])
    assert pair.lengths == (len(PROMPT), 2, 0)
    pair.extend([[90], [91, 92], [93]], last_n=2)


def test_copied_rows_rewind_independently(backends: BackendPair) -> None:
    pair = backends.open_session([1])
    pair.extend([PROMPT])
    pair.reorder([0, 0, 0])
    pair.rewind([len(PROMPT), 1, 3])
    pair.extend([[90], [91, 92], [93]])
    pair.extend([[94], [95], [96]])


def test_reorder_permutes_rows(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1, 2])
    pair.extend([PROMPT, PROMPT[:3], PROMPT[:5]])
    pair.reorder([2, 0, 1])
    assert pair.lengths == (5, len(PROMPT), 3)
    pair.extend([[65], [66], [67]])


def test_reorder_copies_a_row(backends: BackendPair) -> None:
    pair = backends.open_session([3])
    pair.extend([PROMPT])
    pair.reorder([0] * 5)
    logits = pair.extend([[65 + row] for row in range(5)])
    assert all(differ(logits[0], logits[row], backends.tolerance) for row in range(1, 5))
    pair.extend([[75]] * 5)


def test_reorder_follows_beam_parents(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1])
    pair.extend([PROMPT] * 2)
    pair.reorder([0, 0, 0, 1, 1, 1])
    for step, parents in enumerate([[2, 2, 0, 3, 5, 5], [1, 0, 0, 4, 4, 4], [2, 1, 0, 5, 4, 3]]):
        pair.extend([[65 + 6 * step + row] for row in range(6)])
        pair.reorder(parents)
    pair.extend([[120 + row] for row in range(6)])


@pytest.mark.parametrize("rows", [[1, 2, 3], [0, 3], [3, 1], [2], [2, 2], [3, 3, 0, 0]])
def test_reorder_drops_windows(backends: BackendPair, rows: list[int]) -> None:
    pair = backends.open_session([2, 0, 3, 1])
    pair.extend([PROMPT, PROMPT[1:], PROMPT[2:], PROMPT[3:]])
    pair.reorder(rows)
    pair.extend([[65 + i] for i in range(len(rows))])
    pair.rewind([3] * len(rows))
    pair.extend([[75 + i, 85] for i in range(len(rows))], last_n=2)


def test_windows_are_dropped_one_by_one(backends: BackendPair) -> None:
    pair = backends.open_session([3, 2, 1, 0])
    pair.extend([PROMPT] * 4)
    for rows in ([0, 1, 3], [2, 0], [1]):
        pair.reorder(rows)
        pair.extend([[65 + row] for row in rows])


def test_kv_cache_grows_with_many_rows(backends: BackendPair) -> None:
    pair = backends.open_session([0, 0, 0, 0, 1])
    pair.extend([PROMPT] * 5)
    rng = np.random.default_rng(0)
    for _ in range(3):
        pair.extend([rng.integers(0, 256, 12).tolist() for _ in range(5)], last_n=2)
    pair.rewind([len(PROMPT), 40, 20, 0, 10])
    pair.extend([[65 + row] for row in range(5)])


def test_row_is_extended_to_its_capacity(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1])
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 256, (2, DIMS.n_text_ctx)).tolist()
    pair.extend([row[:-1] for row in tokens], last_n=DIMS.n_text_ctx)
    pair.extend([row[-1:] for row in tokens])
    assert pair.lengths == (DIMS.n_text_ctx,) * 2
    pair.rewind([DIMS.n_text_ctx - 1, 7])
    pair.extend([[65], [66]])


def test_full_row_does_not_stop_the_others(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1, 2])
    nearly_full = list(range(DIMS.n_text_ctx - 1))
    pair.extend([nearly_full, [*nearly_full, 65], PROMPT])
    pair.extend([[66], [], [67, 68, 69]], last_n=3)
    pair.rewind([DIMS.n_text_ctx - 1] * 2 + [3])
    pair.extend([[70], [71], [72]])


def test_extending_beyond_the_capacity_is_refused(backends: BackendPair) -> None:
    session = backends.tested.open_session(backends.features, [0], 4)
    with pytest.raises(AssertionError, match="outgrown"):
        session.extend([[65, 66, 67, 68, 69]])


def test_errors_do_not_accumulate_over_many_steps(backends: BackendPair) -> None:
    pair = backends.open_session([0, 1])
    pair.extend([PROMPT] * 2)
    for token in range(30):
        pair.extend([[token], [255 - token]])
