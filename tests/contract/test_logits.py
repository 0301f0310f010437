"""The contract of logits: one suite over all kinds of them, against plain numpy, with ties and suppressed ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harken.backends.host_logits import TOPK_BLOCK, HostLogits
from harken.contract import Backend, Logits

INF = np.inf
WIDTHS = (1, 2, 7, TOPK_BLOCK - 1, TOPK_BLOCK, TOPK_BLOCK + 1, 300, 3 * TOPK_BLOCK + 5)
UNIFORMS = st.lists(st.floats(0, 1, exclude_max=True) | st.just(np.nextafter(1, 0)), min_size=3, max_size=3)
MakeLogits = Callable[..., Logits]


def make_host_logits(table: np.ndarray, token_ids: np.ndarray | None = None) -> Logits:
    return HostLogits(table.copy() if token_ids is None else table[:, token_ids].copy(), token_ids)


def make_torch_logits(table: np.ndarray, token_ids: np.ndarray | None = None) -> Logits:
    import torch

    from harken.backends.torch.session import LogitVocabulary, TorchLogits

    ids = np.arange(table.shape[1]) if token_ids is None else token_ids
    return TorchLogits(torch.tensor(table[:, ids]), LogitVocabulary(ids, torch.device("cpu")))


@pytest.fixture(scope="module", params=["host", "native", "torch"])
def make_logits(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]) -> MakeLogits:
    """Make logits of a table over all ids, or over the given ones; in host memory, natively, then in PyTorch."""
    if request.param == "host":
        return make_host_logits
    if request.param == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")
        return make_torch_logits
    from harken.backends.native.session import NativeLogits

    decoder: Any = open_backend("native-int8")._decoder

    def make_native_logits(table: np.ndarray, token_ids: np.ndarray | None = None) -> Logits:
        """Make logits with larger numbers in the padding."""
        table = table if token_ids is None else table[:, token_ids]
        padding = np.full((len(table), -table.shape[1] % 16), 1e9, np.float32)
        padded = np.ascontiguousarray(np.hstack([table, padding]))
        return NativeLogits(decoder, padded, table.shape[1], token_ids)

    return make_native_logits


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 3) -> np.ndarray:
    """Logits with many ties, both zeros and suppressed ids, at least one id left in each row."""
    shape = draw(st.integers(1, max_rows)), draw(st.sampled_from(WIDTHS))
    levels = st.sampled_from([-INF, -3.0, -0.0, 0.0, 1.5, 1.5, 9.0])
    table = draw(hnp.arrays(np.float32, shape, elements=levels, fill=levels))
    table[np.isneginf(table).all(axis=1), -1] = 0
    return table


def values(logits: Logits) -> np.ndarray:
    return np.asarray(logits.values).copy()


def log_softmax(table: np.ndarray) -> np.ndarray:
    wide = table.astype(np.float64)
    peak = wide.max(axis=1, keepdims=True)
    return wide - peak - np.log(np.exp(wide - peak).sum(axis=1, keepdims=True))


def near_tie(table: np.ndarray, timestamp_begin: int) -> bool:
    """Return whether timestamps and text are so close that rounding decides which is likelier."""
    for row in log_softmax(table):
        together = np.logaddexp.reduce(row[timestamp_begin:], initial=-INF)
        single = row[:timestamp_begin].max(initial=-INF)
        if abs(together - single) < 1e-5:
            return True
    return False


@given(tables(), st.integers(1, 20))
def test_top_is_a_stable_sort(make_logits: MakeLogits, table: np.ndarray, k: int) -> None:
    ids, logprobs = make_logits(table).top(k)
    expected = np.argsort(-table, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(logprobs, np.take_along_axis(log_softmax(table), expected, axis=1), atol=1e-5)
    assert ids.dtype == np.int64
    assert logprobs.dtype == np.float32


def test_top_of_a_large_vocabulary(make_logits: MakeLogits) -> None:
    table = 10 * np.random.default_rng(0).standard_normal((4, 51_866), np.float32)
    np.testing.assert_array_equal(make_logits(table).top(6)[0], np.argsort(-table, axis=1)[:, :6])


@given(tables())
def test_probability_is_the_softmax(make_logits: MakeLogits, table: np.ndarray) -> None:
    for token in {0, table.shape[1] - 1}:
        np.testing.assert_allclose(
            make_logits(table).probability(token), np.exp(log_softmax(table))[:, token], rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize(("size", "accuracy"), [(30, 1e-5), (1e4, 1e-3)])
def test_large_logits_do_not_overflow(make_logits: MakeLogits, size: float, accuracy: float) -> None:
    logits = make_logits(np.array([[size, -size, size]], np.float32))
    assert logits.probability(0) == pytest.approx(0.5, abs=accuracy)


def test_missing_ranges_and_bonuses_are_refused(make_logits: MakeLogits) -> None:
    logits = make_logits(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"zip|1 lists of ranges for 2 positions"):
        logits.suppress_ranges([[]])
    with pytest.raises(ValueError, match=r"zip|1 bonuses for 2 positions"):
        logits.bias([{}])


@given(tables(), st.data())
def test_changes_are_made_at_their_positions(
    make_logits: MakeLogits, table: np.ndarray, data: st.DataObject
) -> None:
    width = table.shape[1]
    token, edge = st.integers(0, width - 1), st.integers(0, width) | st.just(1 << 31)
    ranges = [data.draw(st.lists(st.tuples(edge, edge), max_size=3)) for _ in table]
    tokens = np.array(data.draw(st.lists(token, max_size=9)), np.int64)
    bonus = st.sampled_from([2.0, 0.5, -4.0, -INF])
    bonuses = [data.draw(st.dictionaries(token, bonus, max_size=3)) for _ in table]
    tokens.flags.writeable = False
    logits, expected = make_logits(table), table.copy()
    logits.suppress_ranges(ranges)
    logits.suppress_tokens(tokens)
    logits.bias(bonuses)
    expected[:, tokens] = -INF
    for row, row_ranges, row_bonuses in zip(expected, ranges, bonuses, strict=True):
        for start, stop in row_ranges:
            row[start:stop] = -INF
        for one, added in row_bonuses.items():
            row[one] += np.float32(added)
    np.testing.assert_array_equal(values(logits), expected)


@given(tables(), st.integers(0, 300))
def test_prefer_timestamps_suppresses_text_that_timestamps_outweigh(
    make_logits: MakeLogits, table: np.ndarray, timestamp_begin: int
) -> None:
    timestamp_begin = min(timestamp_begin, table.shape[1])
    logits = make_logits(table)
    logits.prefer_timestamps(timestamp_begin)
    for row, (before, after) in enumerate(zip(log_softmax(table), values(logits), strict=True)):
        together = np.logaddexp.reduce(before[timestamp_begin:], initial=-INF)
        single = before[:timestamp_begin].max(initial=-INF)
        if abs(together - single) < 1e-5:
            continue  # rounding decides
        suppressed = (np.arange(len(after)) < timestamp_begin) & (together > single)
        np.testing.assert_array_equal(after, np.where(suppressed, -INF, table[row]))


@given(tables(), st.floats(0.05, 10), UNIFORMS)
def test_sample_inverts_the_cumulative_distribution(
    make_logits: MakeLogits, table: np.ndarray, temperature: float, uniforms: list[float]
) -> None:
    assert_sampled(make_logits(table), table, temperature, uniforms[: len(table)])


def assert_sampled(logits: Logits, table: np.ndarray, temperature: float, uniforms: list[float]) -> None:
    """Check that the sampled ids are those at which the cumulative distribution passes the uniform numbers."""
    ids, logprobs = logits.sample(temperature, uniforms)
    mass = np.exp(log_softmax(table / np.float32(temperature))).cumsum(axis=1)
    for row, (token, uniform) in enumerate(zip(ids, uniforms, strict=True)):
        below = mass[row, token - 1] if token else 0
        assert np.isfinite(table[row, token])
        assert below - 1e-6 <= uniform <= mass[row, token] + 1e-6
        assert logprobs[row] == pytest.approx(log_softmax(table)[row, token], abs=1e-5)


def test_selected_positions_are_copies_in_order(make_logits: MakeLogits) -> None:
    logits = make_logits(np.arange(12, dtype=np.float32).reshape(4, 3))
    selected = logits.select_positions([2, 0, 2])
    selected.suppress_tokens(np.array([0]))
    assert len(selected) == 3
    np.testing.assert_array_equal(values(selected)[:, 1:], [[7, 8], [1, 2], [7, 8]])
    np.testing.assert_array_equal(values(logits)[:, 0], [0, 3, 6, 9])


def test_logits_without_positions(make_logits: MakeLogits) -> None:
    logits = make_logits(np.empty((0, 9), np.float32))
    logits.suppress_ranges([])
    logits.bias([])
    logits.suppress_tokens(np.array([1]))
    logits.prefer_timestamps(5)
    assert len(logits) == 0
    assert len(logits.select_positions([])) == 0
    assert logits.top(2)[0].shape == (0, 2)
    assert logits.probability(3).shape == (0,)


# --- any rules in any order, over a part of the vocabulary -------------------------------------------------


@st.composite
def subsets(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray | None]:
    """A table, and the ids that its logits cover or None for all; others are -inf, and one is left in each row."""
    table = draw(tables())
    if draw(st.integers(0, 3)) == 0:
        return table, None
    covered = draw(hnp.arrays(bool, table.shape[1], fill=st.booleans()))
    covered[draw(st.integers(0, table.shape[1] - 1))] = True
    table[:, ~covered] = -INF
    table[np.isneginf(table).all(axis=1), np.flatnonzero(covered)[0]] = 0
    return table, np.flatnonzero(covered)


ID = st.integers(0, 400)
RULES: dict[str, Callable[[int], st.SearchStrategy[Any]]] = {
    "suppress_tokens": lambda rows: st.lists(ID, max_size=9),
    "suppress_ranges": lambda rows: st.lists(
        st.lists(st.tuples(ID, ID), max_size=2), min_size=rows, max_size=rows
    ),
    "bias": lambda rows: st.lists(
        st.dictionaries(ID, st.sampled_from([1.5, -4.0]), max_size=3), min_size=rows, max_size=rows
    ),
    "prefer_timestamps": lambda rows: ID,
    "probability": lambda rows: ID,
    "top": lambda rows: st.integers(1, 400),
}


def within(arguments: Any, width: int) -> Any:
    """Return the arguments of a rule with all ids in the vocabulary."""
    match arguments:
        case int():
            return arguments % width
        case [dict(), *_]:
            return [{token % width: bonus for token, bonus in bonuses.items()} for bonuses in arguments]
        case [list(), *_]:
            return arguments
        case _:
            return np.array([token % width for token in arguments], np.int64)


@settings(max_examples=120)
@given(subsets(), st.data(), st.floats(0.05, 10), UNIFORMS)
def test_rules_in_any_order_are_those_of_the_suppressed_whole_vocabulary(
    make_logits: MakeLogits,
    drawn: tuple[np.ndarray, np.ndarray | None],
    data: st.DataObject,
    temperature: float,
    uniforms: list[float],
) -> None:
    """A preference depends on what was suppressed before it, not on what is suppressed after it."""
    table, ids = drawn
    width = table.shape[1]
    own, whole = make_logits(table, ids), make_host_logits(table)
    for name in data.draw(st.lists(st.sampled_from([*RULES]), max_size=6)):
        if not np.isfinite(values(whole)).any(axis=1).all():
            break
        arguments = data.draw(RULES[name](len(table)))
        if name in ("probability", "top"):
            getattr(own, name)(arguments % width + 1 if name == "top" else arguments % width)
        elif name != "prefer_timestamps" or not near_tie(values(whole), arguments % width):
            for logits in (own, whole):
                getattr(logits, name)(within(arguments, width))
    np.testing.assert_array_equal(values(own), values(whole)[:, slice(None) if ids is None else ids])
    if not np.isfinite(values(whole)).any(axis=1).all():
        return
    order = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=4))
    for k in (1, 5, width):
        assert_same_top(own, whole, k)
        assert_same_top(own.select_positions(order), whole.select_positions(order), k)
    for token in (0, width // 2, width - 1):
        np.testing.assert_allclose(own.probability(token), whole.probability(token), rtol=1e-5, atol=1e-7)
    assert_sampled(own, values(whole), temperature, uniforms[: len(table)])


def assert_same_top(own: Logits, whole: Logits, k: int) -> None:
    ids, logprobs = own.top(k)
    expected_ids, expected_logprobs = whole.top(ids.shape[1])
    possible = np.isfinite(expected_logprobs)
    np.testing.assert_array_equal(ids[possible], expected_ids[possible])
    np.testing.assert_allclose(logprobs, expected_logprobs, atol=1e-5)


def test_changes_outside_of_the_subset_have_no_effect(make_logits: MakeLogits) -> None:
    logits = make_logits(np.zeros((1, 10), np.float32), np.array([2, 5, 9]))
    logits.suppress_tokens(np.array([0, 3, 10, 11]))
    logits.bias([{1: 9.0, 4: 9.0, 99: 9.0}])
    logits.suppress_ranges([[(0, 2), (3, 5), (6, 9), (10, 1 << 31)]])
    np.testing.assert_array_equal(values(logits), [[0, 0, 0]])
    logits.suppress_ranges([[(5, 9)]])
    logits.suppress_tokens(np.array([8, 9]))
    logits.bias([{2: 1.5}])
    np.testing.assert_array_equal(values(logits), np.float32([[1.5, -INF, -INF]]))
