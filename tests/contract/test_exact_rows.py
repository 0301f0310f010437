"""The logits of a row do not depend on what is computed beside it, to the last bit: in int8, and in native float32.

Therefore verifying drafts and decoding windows together are exact: sums of integers are exact, and floating-point sums
are computed in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

from harken.contract import Backend, Features, Floats, Logits
from real_models import recognizer
from tiny_models import make_mel

PROMPT = (256, 72, 101, 108, 111)
TEXT, CAPACITY = 34, 48
CANDIDATES = 5


@pytest.fixture(
    scope="module",
    params=[
        "onnx-int8",
        "native-int8",
        "native-fp32",
        pytest.param("tiny.en", marks=[pytest.mark.real, pytest.mark.slow]),
    ],
)
def backend(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]) -> Backend:
    return recognizer("int8").backend if request.param == "tiny.en" else open_backend(request.param)


@pytest.fixture(scope="module")
def features(backend: Backend) -> Features:
    mel = np.resize(make_mel(4), (4, backend.dims.n_mels, 2 * backend.dims.n_audio_ctx))
    return backend.encode(mel + np.arange(4, dtype=np.float32)[:, None, None] / 4)


def draw_tokens(row: int, n: int = TEXT) -> list[int]:
    return np.random.default_rng(row).integers(0, 256, n).tolist()


def all_log_probabilities(logits: Logits, backend: Backend) -> Floats:
    """Return all log-probabilities in the order of ids; they are equal for equal logits only."""
    ids, values = logits.top(backend.dims.n_vocab)
    return np.take_along_axis(values, ids.argsort(axis=1, kind="stable"), axis=1)


def decode_step_by_step(backend: Backend, features: Features, window: int, tokens: Sequence[int]) -> Floats:
    """Return log-probabilities after the prompt and each token, one step each."""
    steps = _decode_all_steps(backend, features, window)
    assert list(tokens) == draw_tokens(window)[: len(tokens)]
    return steps[: 1 + len(tokens)]


@cache  # of a few backends, whose tests all compare with it
def _decode_all_steps(backend: Backend, features: Features, window: int) -> Floats:
    session = backend.open_session(features, [window], CAPACITY)
    steps = [session.extend([PROMPT]), *(session.extend([[token]]) for token in draw_tokens(window))]
    return np.concatenate([all_log_probabilities(step, backend) for step in steps])


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 11, 16])
def test_verifying_n_tokens_at_once_changes_no_bit(backend: Backend, features: Features, n: int) -> None:
    session = backend.open_session(features, [1], CAPACITY)
    chunks = [PROMPT, *(draw_tokens(1)[at : at + n] for at in range(0, TEXT, n))]
    together = [
        all_log_probabilities(session.extend([chunk], n if i else 1), backend) for i, chunk in enumerate(chunks)
    ]
    np.testing.assert_array_equal(
        np.concatenate(together), decode_step_by_step(backend, features, 1, draw_tokens(1))
    )


def test_rejected_drafts_change_no_bit(backend: Backend, features: Features) -> None:
    session, tokens, at = backend.open_session(features, [1], CAPACITY), draw_tokens(1), 0
    seen = [all_log_probabilities(session.extend([PROMPT]), backend)]
    for drafted, accepted in [(5, 2), (3, 3), (8, 1), (1, 1), (6, 5), (4, 0), (7, 7), (16, 9)]:
        draft = [*tokens[at : at + accepted], *draw_tokens(9, drafted - accepted)]
        seen.append(all_log_probabilities(session.extend([draft], drafted), backend)[:accepted])
        at += accepted
        session.rewind([len(PROMPT) + at])
    np.testing.assert_array_equal(np.concatenate(seen), decode_step_by_step(backend, features, 1, tokens[:at]))


def test_decoding_windows_together_changes_no_bit(backend: Backend, features: Features) -> None:
    counts = np.random.default_rng(0).integers(0, 5, (12, 4))
    session = backend.open_session(features, range(4), CAPACITY)
    seen = [[logits[None]] for logits in all_log_probabilities(session.extend([PROMPT] * 4), backend)]
    at = np.zeros(4, int)
    for count in counts:
        logits = session.extend([draw_tokens(row)[at[row] : at[row] + n] for row, n in enumerate(count)], 4)
        for row, part in enumerate(np.split(all_log_probabilities(logits, backend), np.cumsum(count)[:-1])):
            seen[row].append(part)
        at += count
    for row in range(4):
        expected = decode_step_by_step(backend, features, row, draw_tokens(row)[: at[row]])
        np.testing.assert_array_equal(np.concatenate(seen[row]), expected)


def test_dropping_other_windows_changes_no_bit(backend: Backend, features: Features) -> None:
    session, tokens = backend.open_session(features, range(4), CAPACITY), draw_tokens(2)
    seen = [all_log_probabilities(session.extend([PROMPT] * 4), backend)[2:3]]
    seen.append(
        all_log_probabilities(
            session.extend([draw_tokens(0, 2), [], tokens[:3], draw_tokens(3, 1)], 3), backend
        )[2:5]
    )
    session.reorder([0, 2, 3])
    seen.append(
        all_log_probabilities(
            session.extend([draw_tokens(0, 1), tokens[3:13], draw_tokens(3, 4)], 10), backend
        )[1:11]
    )
    session.reorder([1])
    seen.append(all_log_probabilities(session.extend([tokens[13:14]]), backend))
    seen.append(all_log_probabilities(session.extend([tokens[14:30]], 16), backend))
    np.testing.assert_array_equal(np.concatenate(seen), decode_step_by_step(backend, features, 2, tokens[:30]))


@pytest.mark.parametrize("ends", [False, True], ids=["to the end", "some end"])
def test_candidates_of_one_window_change_no_bit_of_each_other(
    backend: Backend, features: Features, ends: bool
) -> None:
    """Rows that read several tokens at once equal rows that read one a step, also where other rows end."""
    steps = decode_candidates(backend, features, np.ones((24, CANDIDATES), int), ends=False)
    counts = np.random.default_rng(1).integers(0, 6, (12, CANDIDATES))
    drafted = decode_candidates(backend, features, counts, ends=ends)
    for row in range(CANDIDATES):
        both = min(len(steps[row]), len(drafted[row]))
        assert both > (4 if ends else 12)
        np.testing.assert_array_equal(drafted[row][:both], steps[row][:both])


def decode_candidates(backend: Backend, features: Features, counts: np.ndarray, *, ends: bool) -> list[Floats]:
    """Return log-probabilities of the tokens of each row; with `ends`, the first two rows are dropped on the way."""
    session = backend.open_session(features, [3], CAPACITY)
    session.extend([PROMPT])
    session.reorder([0] * CANDIDATES)
    rows, seen = list(range(CANDIDATES)), [[np.empty((0, backend.dims.n_vocab), np.float32)] for _ in range(5)]
    for step, count in enumerate(counts):
        if ends and step in (4, 8):
            session.reorder(range(1, len(rows)))
            del rows[0]
        at = [length - len(PROMPT) for length in session.lengths]
        new = [draw_tokens(row)[start : start + count[row]] for row, start in zip(rows, at, strict=True)]
        logits = all_log_probabilities(session.extend(new, 6), backend) if any(new) else seen[0][0]
        for row, part in zip(
            rows, np.split(logits, np.cumsum([len(row_tokens) for row_tokens in new])[:-1]), strict=True
        ):
            seen[row].append(part)
    return [np.concatenate(parts) for parts in seen]
