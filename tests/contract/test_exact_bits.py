"""The logits of a row do not depend on what is computed beside it, to the last bit: in int8, and in native float32.

Therefore verifying drafts and decoding windows together are exact: sums of integers are exact, and floating-point sums
are computed in the same order. The native decoder gives the same bits on any threads and in any instruction set, too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.backends.native.library import INSTRUCTION_SET_VARIABLE, instruction_sets, unavailable_reason
from harken.contract import Backend, Features, Floats, Logits, Session
from harken.decoding.generate import Row, WindowEnd, generate, generate_best, pick_best, prefill
from harken.decoding.hypothesis import Step
from harken.decoding.logit_rules import LogitRules
from real_models import recognizer
from tiny_models import DIMS, make_backend, make_mel

PROMPT = (256, 72, 101, 108, 111)
TEXT, CAPACITY = 34, 48
CANDIDATES = 5


@pytest.fixture(scope="module", params=["onnx-int8", "native-int8", "native-fp32"])
def backend(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]) -> Backend:
    return recognizer("int8").backend if request.param == "tiny.en" else open_backend(request.param)


@pytest.fixture(scope="module")
def features(backend: Backend) -> Features:
    mel = np.resize(make_mel(4), (4, backend.dims.n_mels, 2 * backend.dims.n_audio_ctx))
    return backend.encode(mel + np.arange(4, dtype=np.float32)[:, None, None] / 4)


def draw_tokens(row: int, n: int = TEXT) -> list[int]:
    return np.random.default_rng(row).integers(0, 256, n).tolist()


def read(session: Session, tokens: Sequence[Sequence[int]], last_n: int = 1) -> Floats:
    """Extend a session and return all log-probabilities in the order of ids; equal ones come of equal logits only."""
    return all_log_probabilities(session.extend(tokens, last_n))


def all_log_probabilities(logits: Logits) -> Floats:
    ids, values = logits.top(1 << 20)
    return np.take_along_axis(values, ids.argsort(axis=1, kind="stable"), axis=1)


@cache  # of a few backends, whose tests all compare with it
def step_by_step(backend: Backend, features: Features, window: int) -> Floats:
    """Return log-probabilities after the prompt and each token of a window, one step each."""
    session = backend.open_session(features, [window], CAPACITY)
    steps = [read(session, [PROMPT]), *(read(session, [[token]]) for token in draw_tokens(window))]
    return np.concatenate(steps)


@pytest.mark.parametrize(
    ("backend", "n"),
    [
        *((name, n) for name in ("onnx-int8", "native-int8", "native-fp32") for n in (2, 5, 11, 16, TEXT)),
        pytest.param("tiny.en", 5, marks=[pytest.mark.real, pytest.mark.slow]),
    ],
    indirect=["backend"],
)
def test_verifying_n_tokens_at_once_changes_no_bit(backend: Backend, features: Features, n: int) -> None:
    n = min(n, 16) if backend.capabilities.name == "onnx" else n
    session = backend.open_session(features, [1], CAPACITY)
    chunks = [PROMPT, *(draw_tokens(1)[at : at + n] for at in range(0, TEXT, n))]
    together = [read(session, [chunk], n if i else 1) for i, chunk in enumerate(chunks)]
    np.testing.assert_array_equal(np.concatenate(together), step_by_step(backend, features, 1))


def test_rejected_drafts_change_no_bit(backend: Backend, features: Features) -> None:
    session, tokens, at = backend.open_session(features, [1], CAPACITY), draw_tokens(1), 0
    seen = [read(session, [PROMPT])]
    for drafted, accepted in [(5, 2), (3, 3), (8, 1), (1, 1), (6, 5), (4, 0), (7, 7), (16, 9)]:
        draft = [*tokens[at : at + accepted], *draw_tokens(9, drafted - accepted)]
        seen.append(read(session, [draft], drafted)[:accepted])
        at += accepted
        session.rewind([len(PROMPT) + at])
    np.testing.assert_array_equal(np.concatenate(seen), step_by_step(backend, features, 1)[: at + 1])


def test_decoding_windows_together_changes_no_bit(backend: Backend, features: Features) -> None:
    """Nor does it when some of them are dropped on the way."""
    session = backend.open_session(features, range(4), CAPACITY)
    first = read(session, [PROMPT] * 4)
    rows = decode_rows(session, np.random.default_rng(0).integers(0, 5, (12, 4)), drops=(6, 9))
    for row, together in enumerate(rows):
        expected = step_by_step(backend, features, row)[: 1 + len(together)]
        np.testing.assert_array_equal(np.concatenate([first[row][None], together]), expected)


@pytest.mark.parametrize("backend", ["native-int8", "native-fp32"], indirect=True)
@given(
    timestamp_begin=st.sampled_from([DIMS.n_vocab - n for n in (5, 20, 100)]),
    timestamps=st.booleans(),
    kept=st.sets(st.integers(10, 255), min_size=1, max_size=8),
    speech_ends=st.lists(st.none() | st.integers(DIMS.n_vocab - 20, DIMS.n_vocab), min_size=3, max_size=3),
    limits=st.lists(st.integers(1, CAPACITY - len(PROMPT)), min_size=3, max_size=3),
)
@settings(max_examples=20, deadline=None)
def test_steps_in_one_call_pick_what_single_steps_pick(
    backend: Backend,
    features: Features,
    timestamp_begin: int,
    timestamps: bool,
    kept: set[int],
    speech_ends: list[int | None],
    limits: list[int],
) -> None:
    """With few words and many timestamps, so that a random model picks all kinds, and often the end of text."""
    rules = LogitRules(
        eot=timestamp_begin - 1,
        timestamp_begin=timestamp_begin,
        suppressed=np.setdiff1d(np.arange(timestamp_begin - 1), sorted(kept)),
        first_banned=((0, 10),),
        timestamps=timestamps,
        max_initial_timestamp=timestamp_begin + 2,
    )
    assert rules.greedy

    def decode(at_once: bool) -> tuple[list[Row], list[tuple[int, int, int, float]], int]:
        session, steps = backend.open_session(features, range(3), CAPACITY), []
        rows = [
            Row(len(PROMPT), limit, WindowEnd(rules.eot), speech_end=end)
            for limit, end in zip(limits, speech_ends, strict=True)
        ]
        logits, _ = prefill(session, [PROMPT] * 3, [()] * 3, 0, [None] * 3)

        def observe(step: Step) -> None:
            steps.append((step.row, step.index, step.token, step.logprob))

        if at_once:
            passes = generate_best(session, rows, logits, rules, rules.greedy, observe=observe)
        else:
            passes = generate(session, rows, logits, rules, pick_best, observe=observe)
        return rows, steps, passes

    assert decode(at_once=True) == decode(at_once=False)


@pytest.mark.parametrize("drops", [(), (4, 8)], ids=["to the end", "some end"])
def test_candidates_of_one_window_change_no_bit_of_each_other(
    backend: Backend, features: Features, drops: tuple[int, ...]
) -> None:
    """Rows that read several tokens at once equal rows that read one a step, also where other rows end."""

    def open_candidates() -> Session:
        session = backend.open_session(features, [3], CAPACITY)
        session.extend([PROMPT])
        session.reorder([0] * CANDIDATES)
        return session

    steps = decode_rows(open_candidates(), np.ones((24, CANDIDATES), int))
    drafted = decode_rows(open_candidates(), np.random.default_rng(1).integers(0, 6, (12, CANDIDATES)), drops)
    for one, other in zip(steps, drafted, strict=True):
        both = min(len(one), len(other))
        assert both > (4 if drops else 12)
        np.testing.assert_array_equal(other[:both], one[:both])


def decode_rows(session: Session, counts: np.ndarray, drops: Sequence[int] = ()) -> list[Floats]:
    """Return log-probabilities of the tokens of each row, so many a step; at some steps the first row is dropped."""
    rows = list(range(counts.shape[1]))
    seen: list[list[Floats]] = [[] for _ in rows]
    for step, count in enumerate(counts):
        if step in drops:
            session.reorder(range(1, len(rows)))
            del rows[0]
        at = [length - len(PROMPT) for length in session.lengths]
        new = [draw_tokens(row)[start : start + count[row]] for row, start in zip(rows, at, strict=True)]
        parts = np.split(read(session, new, 6), np.cumsum([len(tokens) for tokens in new])[:-1])
        for row, part in zip(rows, parts, strict=True):
            seen[row].append(part)
    return [np.concatenate(parts) for parts in seen]


# --- the native decoder ------------------------------------------------------------------------------------

SETS = () if unavailable_reason() else instruction_sets()
each_native = pytest.mark.parametrize("backend", ["native-int8", "native-fp32"], indirect=True)


@each_native
@pytest.mark.parametrize("row_windows", [[1], [1, 2, 1]], ids=["one window", "two windows"])
def test_rows_of_a_beam_equal_single_rows(backend: Backend, features: Features, row_windows: list[int]) -> None:
    """Rows that continue copies of one another, some with several tokens at once, some shortened."""
    rng = np.random.default_rng(2)
    session = backend.open_session(features, row_windows, CAPACITY)
    session.extend([PROMPT] * len(row_windows))
    rows: list[tuple[int, list[int]]] = [(window, []) for window in row_windows]
    for _ in range(9):
        parents = rng.integers(0, len(rows), 5).tolist()
        session.reorder(parents)
        rows = [(rows[parent][0], [*rows[parent][1]]) for parent in parents]
        kept = [max(0, len(tokens) - int(rng.integers(0, 2))) for _, tokens in rows]
        session.rewind([len(PROMPT) + length for length in kept])
        new = [rng.integers(0, 256, rng.integers(1, 4)).tolist() for _ in rows]
        rows = [
            (window, [*tokens[:length], *row_new])
            for (window, tokens), length, row_new in zip(rows, kept, new, strict=True)
        ]
        logits = read(session, new)
        for (window, tokens), row_logits in zip(rows, logits, strict=True):
            single = read(backend.open_session(features, [window], CAPACITY), [[*PROMPT, *tokens]])
            np.testing.assert_array_equal(single[0], row_logits)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


def compute(precision: str, packed: Path, features: Features, threads: int) -> list[Floats]:
    """Compute logits, choices and attention in a session that is used in every way."""
    backend = make_backend(f"native-{precision}", packed, shares_encoder=True, threads=threads)
    session = backend.open_session(
        backend.reuse_encoder_output(features), [0, 1, 2, 1], CAPACITY, attention=True
    )
    results: list[Any] = []

    def extend(tokens: Sequence[Sequence[int]], last_n: int = 1) -> None:
        logits = session.extend(tokens, last_n)
        results.append(all_log_probabilities(logits))
        logits.suppress_tokens(np.arange(0, DIMS.n_vocab, 3))
        logits.prefer_timestamps(DIMS.n_vocab - 40)
        results.extend(logits.top(3))
        results.extend(logits.sample(0.7, np.linspace(0, 0.99, len(logits)).tolist()))
        results.append(logits.probability(7))

    extend([PROMPT, draw_tokens(1, 20), draw_tokens(2, 3), PROMPT], 2)
    session.reorder([0, 1, 1, 2, 3])
    extend([draw_tokens(row, row) for row in range(5)], 4)
    session.rewind([length - 1 for length in session.lengths])
    extend([[row + 1] for row in range(5)])
    results += [session.attention(row) for row in range(5)]
    return results


@pytest.mark.parametrize("backend", ["native-int8"], indirect=True)
@pytest.mark.parametrize("precision", ["int8", "int4", "fp32"])
def test_threads_and_instruction_sets_change_no_bit(
    features: Features, packed: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    assert SETS[-1] == "portable"
    expected = compute(precision, packed, features, threads=1)
    assert sum(len(result) for result in expected) > 50
    for instruction_set, threads in [(SETS[0], 2), (SETS[0], 3), *((name, 1) for name in SETS[1:])]:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, instruction_set)
        actual = compute(precision, packed, features, threads)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{instruction_set}, {threads} threads")


@each_native
def test_sessions_in_several_threads_do_not_disturb_each_other(backend: Backend, features: Features) -> None:
    """One call runs at a time; sessions are opened and closed while others compute."""

    def decode(window: int) -> list[Floats]:
        return [step_by_step.__wrapped__(backend, features, window) for _ in range(3)]

    with ThreadPoolExecutor(3) as threads:
        for window, actual in enumerate(threads.map(decode, range(3))):
            np.testing.assert_array_equal(actual, [step_by_step(backend, features, window)] * 3)


@each_native
def test_session_is_collected_without_waiting_for_a_call_of_another_thread(
    backend: Any, features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread in the middle of a call could wait for this one, in the same way."""
    decoder, closed = backend._decoder, []
    close = decoder.library.harken_session_close
    monkeypatch.setattr(decoder.library, "harken_session_close", lambda handle: closed.append(close(handle)))
    sessions = [backend.open_session(features, [0], CAPACITY)]

    def collect_elsewhere() -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(sessions.clear).result(timeout=60)
        assert not closed

    decoder.call(collect_elsewhere)
    session = backend.open_session(features, [0], CAPACITY)
    assert len(closed) == 1
    del session
    assert len(closed) == 2


@each_native
def test_session_outlives_the_references_to_its_backend_and_features(packed: Path, features: Features) -> None:
    backend = make_backend("native-int8", packed, shares_encoder=True)
    session = backend.open_session(backend.reuse_encoder_output(features), [0], CAPACITY)
    expected = session.extend([PROMPT]).top(1)[0]
    session.rewind([0])
    del backend
    gc.collect()
    np.testing.assert_array_equal(session.extend([PROMPT]).top(1)[0], expected)
