"""The contract, one suite over every backend, each against the reference within its own tolerance."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from bench import Bench, Pair, log_probabilities

from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
TOO_FAR = 5.0
"""How many tolerances apart things are that a test must tell apart."""


def differ(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    return bool(np.abs(one - other).max() > min(TOO_FAR * tolerance, 0.5) * one.std())


def test_says_what_it_is(bench: Bench) -> None:
    assert bench.backend.dims == DIMS
    assert bench.backend.capabilities.device == "cpu"
    assert bench.backend.capabilities.detail


def test_windows_are_encoded_alike_alone_and_together(bench: Bench) -> None:
    mel = make_mel()
    together = bench.open(range(N_WINDOWS)).extend([PROMPT] * N_WINDOWS)
    assert bench.features.n_windows == N_WINDOWS
    for audio in range(N_WINDOWS):
        alone = bench.backend.encode(mel[audio : audio + 1])
        assert alone.audios == 1
        logits = log_probabilities(bench.backend.open_session(alone, [0], DIMS.n_text_ctx).extend([PROMPT]))
        np.testing.assert_allclose(logits[0], together[audio], atol=1e-4 * together.std(), rtol=0)


@pytest.mark.parametrize("frames", [2, 10, DIMS.n_audio_ctx])
def test_shorter_windows(bench: Bench, frames: int) -> None:
    mel = make_mel()[:, :, :frames]
    features, expected = bench.backend.encode(mel), bench.reference_backend.encode(mel)
    pair = Pair(
        bench.backend.open_session(features, range(N_WINDOWS), DIMS.n_text_ctx),
        bench.reference_backend.open_session(expected, range(N_WINDOWS), DIMS.n_text_ctx),
        bench.tolerance,
    )
    short = pair.extend([PROMPT] * N_WINDOWS)
    assert differ(short[0], bench.open([0]).extend([PROMPT])[0], bench.tolerance)


def test_every_window_is_heard(bench: Bench) -> None:
    heard = bench.open(range(N_WINDOWS)).extend([PROMPT] * N_WINDOWS)
    for one in range(N_WINDOWS):
        for other in range(one):
            assert differ(heard[one], heard[other], bench.tolerance)


def test_encoding_leaves_the_mel_alone(bench: Bench) -> None:
    mel = make_mel(1)
    bench.backend.encode(mel)
    np.testing.assert_array_equal(mel, make_mel(1))


def test_a_prompt_gives_logits_after_its_last_token(bench: Bench) -> None:
    pair = bench.open([0])
    assert pair.lengths == (0,)
    assert pair.extend([PROMPT]).shape == (1, DIMS.n_vocab)
    assert pair.lengths == (len(PROMPT),)


def test_a_prompt_gives_logits_after_each_token(bench: Bench) -> None:
    assert len(bench.open([0]).extend([PROMPT], last_n=len(PROMPT))) == len(PROMPT)


def test_steps_equal_one_prefill(bench: Bench) -> None:
    whole = bench.open([1]).extend([PROMPT], last_n=len(PROMPT))
    steps = bench.open([1])
    for i, token in enumerate(PROMPT):
        np.testing.assert_allclose(steps.extend([[token]])[0], whole[i], atol=2e-5 * whole.std(), rtol=0)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_verifying_drafts(bench: Bench, k: int) -> None:
    pair = bench.open([0, 3])
    pair.extend([PROMPT, PROMPT])
    drafts = [[65, *range(100, 100 + k)], [66, *range(200, 200 + k)]]
    assert len(pair.extend(drafts, last_n=k + 1)) == 2 * (k + 1)


def test_ragged_rows(bench: Bench) -> None:
    pair = bench.open([2, 0, 1])
    assert len(pair.extend([PROMPT, PROMPT[:1], PROMPT[:4]], last_n=3)) == 3 + 1 + 3
    assert len(pair.extend([[65], [66, 67, 68, 69], [70, 71]], last_n=2)) == 1 + 2 + 2
    assert pair.lengths == (len(PROMPT) + 1, 5, 6)


def test_an_empty_sequence_leaves_its_row_alone(bench: Bench) -> None:
    pair = bench.open([0, 1, 1])
    pair.extend([PROMPT] * 3)
    assert len(pair.extend([[], [80, 81], []], last_n=4)) == 2
    assert len(pair.extend([[82], [], [83]])) == 2
    assert pair.lengths == (len(PROMPT) + 1, len(PROMPT) + 2, len(PROMPT) + 1)


def test_empty_sequences_for_all_rows_give_no_logits(bench: Bench) -> None:
    pair = bench.open([0, 1])
    pair.extend([PROMPT] * 2)
    assert len(pair.extend([[], []])) == 0
    pair.extend([[65], [66]])


def test_rows_hear_the_windows_they_were_opened_with(bench: Bench) -> None:
    pair = bench.open([3, 1, 3, 0])
    pair.extend([PROMPT] * 4)
    pair.extend([[65], [66], [67], [68]])


def test_sessions_over_the_same_windows_do_not_meet(bench: Bench) -> None:
    one, other = bench.open([0, 1]), bench.open([1, 0])
    for i in range(3):
        one.extend([PROMPT[i : i + 1]] * 2)
        other.extend([[65 + i], [75 + i]])


def test_a_backend_serves_several_threads(bench: Bench) -> None:
    mel = make_mel()

    def hear(audio: int) -> np.ndarray:
        session = bench.backend.open_session(bench.backend.encode(mel[audio : audio + 1]), [0], DIMS.n_text_ctx)
        session.extend([PROMPT])
        return np.concatenate([log_probabilities(session.extend([[65 + i]])) for i in range(4)])

    alone = [hear(audio) for audio in range(N_WINDOWS)]
    with ThreadPoolExecutor(N_WINDOWS) as pool:
        for _ in range(3):
            np.testing.assert_array_equal(list(pool.map(hear, range(N_WINDOWS))), alone)


def test_bans_stay_in_the_logits(bench: Bench) -> None:
    session, expected = bench.open([0]).session, bench.open([0])
    session.extend([PROMPT]).suppress_ranges([[(0, DIMS.n_vocab - 1)]])
    expected.extend([PROMPT])
    after = log_probabilities(session.extend([[65]]))
    np.testing.assert_array_equal(after, expected.extend([[65]]))


@pytest.mark.parametrize("length", range(len(PROMPT)))
def test_rewind_then_other_tokens(bench: Bench, length: int) -> None:
    pair = bench.open([0])
    pair.extend([PROMPT])
    pair.rewind([length])
    assert pair.lengths == (length,)
    instead = pair.extend([[90, 91]], last_n=2)
    after_all = bench.open([0]).extend([[*PROMPT, 90, 91]])
    assert differ(instead[-1], after_all[0], bench.tolerance)


def test_rows_rewind_each_for_itself(bench: Bench) -> None:
    pair = bench.open([0, 0, 2])
    pair.extend([PROMPT] * 3)
    pair.rewind([len(PROMPT), 2, 0])
    assert pair.lengths == (len(PROMPT), 2, 0)
    pair.extend([[90], [91, 92], [93]], last_n=2)


def test_a_fanned_out_row_rewinds_without_its_siblings(bench: Bench) -> None:
    pair = bench.open([1])
    pair.extend([PROMPT])
    pair.reorder([0, 0, 0])
    pair.rewind([len(PROMPT), 1, 3])
    pair.extend([[90], [91, 92], [93]])
    pair.extend([[94], [95], [96]])


def test_select_reorders(bench: Bench) -> None:
    pair = bench.open([0, 1, 2])
    pair.extend([PROMPT, PROMPT[:3], PROMPT[:5]])
    pair.reorder([2, 0, 1])
    assert pair.lengths == (5, len(PROMPT), 3)
    pair.extend([[65], [66], [67]])


def test_select_fans_out(bench: Bench) -> None:
    pair = bench.open([3])
    pair.extend([PROMPT])
    pair.reorder([0] * 5)
    logits = pair.extend([[65 + row] for row in range(5)])
    assert all(differ(logits[0], logits[row], bench.tolerance) for row in range(1, 5))
    pair.extend([[75]] * 5)


def test_select_replaces_hypotheses_as_a_beam_does(bench: Bench) -> None:
    pair = bench.open([0, 1])
    pair.extend([PROMPT] * 2)
    pair.reorder([0, 0, 0, 1, 1, 1])
    for step, parents in enumerate([[2, 2, 0, 3, 5, 5], [1, 0, 0, 4, 4, 4], [2, 1, 0, 5, 4, 3]]):
        pair.extend([[65 + 6 * step + row] for row in range(6)])
        pair.reorder(parents)
    pair.extend([[120 + row] for row in range(6)])


@pytest.mark.parametrize("rows", [[1, 2, 3], [0, 3], [3, 1], [2], [2, 2], [3, 3, 0, 0]])
def test_select_drops_windows(bench: Bench, rows: list[int]) -> None:
    pair = bench.open([2, 0, 3, 1])
    pair.extend([PROMPT, PROMPT[1:], PROMPT[2:], PROMPT[3:]])
    pair.reorder(rows)
    pair.extend([[65 + i] for i in range(len(rows))])
    pair.rewind([3] * len(rows))
    pair.extend([[75 + i, 85] for i in range(len(rows))], last_n=2)


def test_windows_dropped_one_by_one(bench: Bench) -> None:
    pair = bench.open([3, 2, 1, 0])
    pair.extend([PROMPT] * 4)
    for rows in ([0, 1, 3], [2, 0], [1]):
        pair.reorder(rows)
        pair.extend([[65 + row] for row in rows])


def test_many_rows_outgrow_the_first_store(bench: Bench) -> None:
    pair = bench.open([0, 0, 0, 0, 1])
    pair.extend([PROMPT] * 5)
    rng = np.random.default_rng(0)
    for _ in range(3):
        pair.extend([rng.integers(0, 256, 12).tolist() for _ in range(5)], last_n=2)
    pair.rewind([len(PROMPT), 40, 20, 0, 10])
    pair.extend([[65 + row] for row in range(5)])


def test_full_to_capacity(bench: Bench) -> None:
    pair = bench.open([0, 1])
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 256, (2, DIMS.n_text_ctx)).tolist()
    pair.extend([row[:-1] for row in tokens], last_n=DIMS.n_text_ctx)
    pair.extend([row[-1:] for row in tokens])
    assert pair.lengths == (DIMS.n_text_ctx,) * 2
    pair.rewind([DIMS.n_text_ctx - 1, 7])
    pair.extend([[65], [66]])


def test_a_row_may_be_full_while_others_go_on(bench: Bench) -> None:
    pair = bench.open([0, 1, 2])
    nearly = list(range(DIMS.n_text_ctx - 1))
    pair.extend([nearly, [*nearly, 65], PROMPT])
    pair.extend([[66], [], [67, 68, 69]], last_n=3)
    pair.rewind([DIMS.n_text_ctx - 1] * 2 + [3])
    pair.extend([[70], [71], [72]])


def test_more_than_the_capacity_is_refused(bench: Bench) -> None:
    session = bench.backend.open_session(bench.features, [0], 4)
    with pytest.raises(AssertionError, match="outgrown"):
        session.extend([[65, 66, 67, 68, 69]])


def test_many_steps_stay_exact(bench: Bench) -> None:
    pair = bench.open([0, 1])
    pair.extend([PROMPT] * 2)
    for token in range(30):
        pair.extend([[token], [255 - token]])
