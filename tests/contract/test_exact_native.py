"""The native decoder gives the same bits for whatever is computed together, on any threads, in any instruction set."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_exact_rows import CAPACITY, PROMPT, TEXT, all_log_probabilities, decode_step_by_step, draw_tokens

from harken.backends.native.library import INSTRUCTION_SET_VARIABLE, instruction_sets, unavailable_reason
from harken.contract import Backend, Features, Floats
from tiny_models import DIMS, make_backend, make_mel

N_WINDOWS = 3
SETS = () if unavailable_reason() else instruction_sets()


@pytest.fixture(scope="module", params=["native-int8", "native-fp32"])
def backend(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]) -> Backend:
    return open_backend(request.param)


@pytest.fixture(scope="module")
def features(backend: Backend) -> Features:
    return backend.encode(make_mel(N_WINDOWS))


@pytest.mark.parametrize("n", [17, 18, 25, TEXT])
def test_reading_many_tokens_at_once_changes_no_bit(backend: Backend, features: Features, n: int) -> None:
    session = backend.open_session(features, [0], CAPACITY)
    chunks = [(*PROMPT, *draw_tokens(0, n)), draw_tokens(0)[n:]]
    seen = [all_log_probabilities(session.extend([chunk], n + 1), backend) for chunk in chunks if chunk]
    expected = decode_step_by_step(backend, features, 0, draw_tokens(0))
    np.testing.assert_array_equal(np.concatenate(seen), expected)


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
        logits = all_log_probabilities(session.extend(new), backend)
        for (window, tokens), row_logits in zip(rows, logits, strict=True):
            single = backend.open_session(features, [window], CAPACITY).extend([[*PROMPT, *tokens]])
            np.testing.assert_array_equal(all_log_probabilities(single, backend)[0], row_logits)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


def compute(precision: str, cache: Path, features: Features, threads: int) -> list[Floats]:
    """Compute logits, choices and attention in a session that is used in every way."""
    backend = make_backend(f"native-{precision}", cache, shares_encoder=True, threads=threads)
    session = backend.open_session(
        backend.reuse_encoder_output(features), [0, 1, 2, 1], CAPACITY, attention=True
    )
    results: list[Any] = []

    def extend(tokens: Sequence[Sequence[int]], last_n: int = 1) -> None:
        logits = session.extend(tokens, last_n)
        results.append(all_log_probabilities(logits, backend))
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


@pytest.mark.parametrize("precision", ["int8", "int4", "fp32"])
def test_threads_and_instruction_sets_change_no_bit(
    features: Features, cache: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    assert SETS[-1] == "portable"
    expected = compute(precision, cache, features, threads=1)
    assert sum(len(result) for result in expected) > 50
    for instruction_set, threads in [(SETS[0], 2), (SETS[0], 3), *((name, 1) for name in SETS[1:])]:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, instruction_set)
        actual = compute(precision, cache, features, threads)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{instruction_set}, {threads} threads")


def test_sessions_in_several_threads_do_not_disturb_each_other(backend: Backend, features: Features) -> None:
    """One call runs at a time; sessions are opened and closed while others compute."""

    def decode(window: int) -> list[Floats]:
        return [decode_step_by_step(backend, features, window, draw_tokens(window, 12)) for _ in range(3)]

    expected = [decode(window) for window in range(N_WINDOWS)]
    with ThreadPoolExecutor(N_WINDOWS) as threads:
        for actual, alone in zip(threads.map(decode, range(N_WINDOWS)), expected, strict=True):
            np.testing.assert_array_equal(actual, alone)


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


def test_session_outlives_the_references_to_its_backend_and_features(cache: Path, features: Features) -> None:
    backend = make_backend("native-int8", cache, shares_encoder=True)
    session = backend.open_session(backend.reuse_encoder_output(features), [0], CAPACITY)
    expected = session.extend([PROMPT]).top(1)[0]
    session.rewind([0])
    del backend
    gc.collect()
    np.testing.assert_array_equal(session.extend([PROMPT]).top(1)[0], expected)
