"""In int8 the logits of a row do not depend on what is computed beside it, to the last bit.

So a draft is verified exactly, and windows are decoded together exactly: sums of integers are exact, and what is summed
in floating point is summed in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from harken.contract import Backend, Features, Floats, Logits
from real_models import recognizer
from tiny_models import make_mel

PROMPT = (256, 72, 101, 108, 111)
TEXT, CAPACITY = 34, 48
CANDIDATES = 5


@pytest.fixture(
    scope="module", params=["tiny random", pytest.param("tiny.en", marks=[pytest.mark.real, pytest.mark.slow])]
)
def backend(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]) -> Backend:
    return open_backend("onnx-int8") if request.param == "tiny random" else recognizer("int8").backend


@pytest.fixture(scope="module")
def features(backend: Backend) -> Features:
    mel = np.resize(make_mel(4), (4, backend.dims.n_mels, 2 * backend.dims.n_audio_ctx))
    return backend.encode(mel + np.arange(4, dtype=np.float32)[:, None, None] / 4)


def text(row: int, n: int = TEXT) -> list[int]:
    return np.random.default_rng(row).integers(0, 256, n).tolist()


def table(logits: Logits, backend: Backend) -> Floats:
    """All log-probabilities, ids in order; equal for equal logits, and only for these."""
    ids, values = logits.top(backend.dims.n_vocab)
    return np.take_along_axis(values, ids.argsort(axis=1, kind="stable"), axis=1)


def stepped(backend: Backend, features: Features, audio: int, tokens: Sequence[int]) -> Floats:
    """Log-probabilities after the prompt and each token, one at a time."""
    session = backend.open_session(features, [audio], CAPACITY)
    steps = [session.extend([PROMPT]), *(session.extend([[token]]) for token in tokens)]
    return np.concatenate([table(step, backend) for step in steps])


@pytest.mark.parametrize("n", range(2, 17))
def test_verified_together_as_one_by_one(backend: Backend, features: Features, n: int) -> None:
    session = backend.open_session(features, [1], CAPACITY)
    chunks = [PROMPT, *(text(1)[at : at + n] for at in range(0, TEXT, n))]
    together = [table(session.extend([chunk], n if i else 1), backend) for i, chunk in enumerate(chunks)]
    np.testing.assert_array_equal(np.concatenate(together), stepped(backend, features, 1, text(1)))


def test_drafts_that_are_rejected_leave_no_trace(backend: Backend, features: Features) -> None:
    session, tokens, at = backend.open_session(features, [1], CAPACITY), text(1), 0
    seen = [table(session.extend([PROMPT]), backend)]
    for drafted, accepted in [(5, 2), (3, 3), (8, 1), (1, 1), (6, 5), (4, 0), (7, 7), (16, 9)]:
        draft = [*tokens[at : at + accepted], *text(9, drafted - accepted)]
        seen.append(table(session.extend([draft], drafted), backend)[:accepted])
        at += accepted
        session.rewind([len(PROMPT) + at])
    np.testing.assert_array_equal(np.concatenate(seen), stepped(backend, features, 1, tokens[:at]))


def test_windows_together_as_each_alone(backend: Backend, features: Features) -> None:
    counts = np.random.default_rng(0).integers(0, 5, (12, 4))
    session = backend.open_session(features, range(4), CAPACITY)
    seen = [[logits[None]] for logits in table(session.extend([PROMPT] * 4), backend)]
    at = np.zeros(4, int)
    for count in counts:
        logits = session.extend([text(row)[at[row] : at[row] + n] for row, n in enumerate(count)], 4)
        for row, part in enumerate(np.split(table(logits, backend), np.cumsum(count)[:-1])):
            seen[row].append(part)
        at += count
    for row in range(4):
        expected = stepped(backend, features, row, text(row)[: at[row]])
        np.testing.assert_array_equal(np.concatenate(seen[row]), expected)


def test_a_window_that_outlives_the_others(backend: Backend, features: Features) -> None:
    session, tokens = backend.open_session(features, range(4), CAPACITY), text(2)
    seen = [table(session.extend([PROMPT] * 4), backend)[2:3]]
    seen.append(table(session.extend([text(0, 2), [], tokens[:3], text(3, 1)], 3), backend)[2:5])
    session.reorder([0, 2, 3])
    seen.append(table(session.extend([text(0, 1), tokens[3:13], text(3, 4)], 10), backend)[1:11])
    session.reorder([1])
    seen.append(table(session.extend([tokens[13:14]]), backend))
    seen.append(table(session.extend([tokens[14:30]], 16), backend))
    np.testing.assert_array_equal(np.concatenate(seen), stepped(backend, features, 2, tokens[:30]))


@pytest.mark.parametrize("ends", [False, True], ids=["to the end", "some end"])
def test_candidates_of_one_window(backend: Backend, features: Features, ends: bool) -> None:
    """As many tokens a row as are accepted, beside single steps of all rows; others may end meanwhile."""
    steps = candidates(backend, features, np.ones((24, CANDIDATES), int), ends=False)
    counts = np.random.default_rng(1).integers(0, 6, (12, CANDIDATES))
    drafted = candidates(backend, features, counts, ends=ends)
    for row in range(CANDIDATES):
        both = min(len(steps[row]), len(drafted[row]))
        assert both > (4 if ends else 12)
        np.testing.assert_array_equal(drafted[row][:both], steps[row][:both])


def candidates(backend: Backend, features: Features, counts: np.ndarray, *, ends: bool) -> list[Floats]:
    """Log-probabilities of the tokens of each row; where rows end, the first does so after a third of the steps."""
    session = backend.open_session(features, [3], CAPACITY)
    session.extend([PROMPT])
    session.reorder([0] * CANDIDATES)
    rows, seen = list(range(CANDIDATES)), [[np.empty((0, backend.dims.n_vocab), np.float32)] for _ in range(5)]
    for step, count in enumerate(counts):
        if ends and step in (4, 8):
            session.reorder(range(1, len(rows)))
            del rows[0]
        at = [length - len(PROMPT) for length in session.lengths]
        new = [text(row)[start : start + count[row]] for row, start in zip(rows, at, strict=True)]
        logits = table(session.extend(new, 6), backend) if any(new) else seen[0][0]
        for row, part in zip(rows, np.split(logits, np.cumsum([len(its) for its in new])[:-1]), strict=True):
            seen[row].append(part)
    return [np.concatenate(parts) for parts in seen]
