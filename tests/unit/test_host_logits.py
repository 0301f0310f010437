"""Logits in host memory against the same in plain numpy, ties and bans included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harken.backends.host_logits import TOPK_BLOCK, HostLogits

INF = np.inf
WIDTHS = (1, 2, 7, TOPK_BLOCK - 1, TOPK_BLOCK, TOPK_BLOCK + 1, 3 * TOPK_BLOCK + 5)


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 3) -> np.ndarray:
    """Logits with many ties and bans, at least one id left in each row."""
    shape = draw(st.integers(1, most_rows)), draw(st.sampled_from(WIDTHS))
    levels = st.sampled_from([-INF, -3.0, 0.0, 1.5, 1.5, 9.0])
    table = draw(hnp.arrays(np.float32, shape, elements=levels, fill=levels))
    table[np.isneginf(table).all(axis=1), -1] = 0
    return table


def log_softmax(table: np.ndarray) -> np.ndarray:
    wide = table.astype(np.float64)
    peak = wide.max(axis=1, keepdims=True)
    return wide - peak - np.log(np.exp(wide - peak).sum(axis=1, keepdims=True))


@given(tables(), st.integers(1, 20))
def test_top_is_a_stable_sort(table: np.ndarray, k: int) -> None:
    ids, logprobs = HostLogits(table.copy()).top(k)
    expected = np.argsort(-table, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(logprobs, np.take_along_axis(log_softmax(table), expected, axis=1), atol=1e-5)


def test_top_of_many_blocks() -> None:
    table = np.random.default_rng(0).standard_normal((4, 51_865), np.float32)
    ids, _ = HostLogits(table).top(6)
    np.testing.assert_array_equal(ids, np.argsort(-table, axis=1)[:, :6])


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_lower_id_wins_a_tie(k: int) -> None:
    table = np.zeros((1, 4 * TOPK_BLOCK), np.float32)
    assert HostLogits(table).top(k)[0].tolist() == [list(range(k))]


@given(tables())
def test_probability(table: np.ndarray) -> None:
    for token in {0, table.shape[1] - 1}:
        np.testing.assert_allclose(
            HostLogits(table).probability(token), np.exp(log_softmax(table))[:, token], rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize(("size", "accuracy"), [(30, 1e-5), (1e4, 1e-3)])
def test_great_logits_do_not_overflow(size: float, accuracy: float) -> None:
    logits = HostLogits(np.array([[size, -size, size]], np.float32))
    assert logits.probability(0) == pytest.approx(0.5, abs=accuracy)


def test_ban() -> None:
    logits = HostLogits(np.zeros((3, 6), np.float32))
    logits.suppress_ranges([[(0, 2), (5, 6)], [], [(3, 1 << 31)]])
    expected = [[-INF, -INF, 0, 0, 0, -INF], [0] * 6, [0, 0, 0, -INF, -INF, -INF]]
    np.testing.assert_array_equal(logits.values, expected)


def test_ban_wants_ranges_for_every_position() -> None:
    with pytest.raises(ValueError, match="zip"):
        HostLogits(np.zeros((2, 3), np.float32)).suppress_ranges([[]])


def test_suppress() -> None:
    logits = HostLogits(np.zeros((2, 4), np.float32))
    logits.suppress_tokens(np.array([1, 3]))
    np.testing.assert_array_equal(logits.values, [[0, -INF, 0, -INF]] * 2)


def test_suppress_nothing() -> None:
    logits = HostLogits(np.zeros((2, 4), np.float32))
    logits.suppress_tokens(np.array([], np.int64))
    assert not logits.values.any()


@given(tables(), st.integers(0, 300))
def test_prefer_timestamps(table: np.ndarray, begin: int) -> None:
    begin = min(begin, table.shape[1])
    logits = HostLogits(table.copy())
    logits.prefer_timestamps(begin)
    for row, (before, after) in enumerate(zip(log_softmax(table), logits.values, strict=True)):
        together = np.logaddexp.reduce(before[begin:], initial=-INF)
        single = before[:begin].max(initial=-INF)
        if abs(together - single) < 1e-5:
            continue  # too near a tie to demand one or the other
        expected = np.where((np.arange(len(after)) < begin) & (together > single), -INF, table[row])
        np.testing.assert_array_equal(after, expected)


def test_prefer_timestamps_bans_only_text_and_only_where_they_outweigh() -> None:
    logits = HostLogits(np.array([[1, 0, 0.4, 0.4], [1, 0, 0.2, 0.2], [1, 0, -INF, -INF]], np.float32))
    logits.prefer_timestamps(2)
    np.testing.assert_array_equal(np.isneginf(logits.values[:, :2]).all(axis=1), [True, False, False])
    np.testing.assert_array_equal(logits.values[1:, :2], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(logits.values[0, 2:], np.float32([0.4, 0.4]))


@given(tables(), st.floats(0.05, 10), st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3))
def test_sample_inverts_the_distribution(table: np.ndarray, temperature: float, uniforms: list[float]) -> None:
    uniforms = uniforms[: len(table)]
    ids, logprobs = HostLogits(table).sample(temperature, uniforms)
    mass = np.exp(log_softmax(table / np.float32(temperature))).cumsum(axis=1)
    for row, (token, uniform) in enumerate(zip(ids, uniforms, strict=True)):
        below = mass[row, token - 1] if token else 0
        assert np.isfinite(table[row, token])
        assert below - 1e-6 <= uniform <= mass[row, token] + 1e-6
        assert logprobs[row] == pytest.approx(log_softmax(table)[row, token], abs=1e-5)


@pytest.mark.parametrize("temperature", [0.01, 0.2, 1, 10])
@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1, 0)])
def test_sample_never_draws_what_is_banned(temperature: float, uniform: float) -> None:
    rng = np.random.default_rng(0)
    table = 20 * rng.standard_normal((20, 400), np.float32)
    banned = rng.random(table.shape) < 0.9
    banned[:, 0] = banned[:, -1] = True
    banned[:, 200] = False
    table[banned] = -INF
    ids, _ = HostLogits(table).sample(temperature, [uniform] * 20)
    assert np.isfinite(np.take_along_axis(table, ids[:, None], axis=1)).all()


def test_samples_follow_the_distribution() -> None:
    table = np.log(np.array([[0.1, 0.2, 0.7]], np.float32))
    uniforms = (np.arange(1000) + 0.5) / 1000
    ids, _ = HostLogits(np.repeat(table, 1000, axis=0)).sample(1, uniforms)
    assert np.bincount(ids).tolist() == [100, 200, 700]


def test_take_copies_in_order() -> None:
    logits = HostLogits(np.arange(12, dtype=np.float32).reshape(4, 3))
    taken = logits.select_positions([2, 0, 2])
    taken.suppress_tokens(np.array([0]))
    assert len(taken) == 3
    np.testing.assert_array_equal(taken.values[:, 1:], [[7, 8], [1, 2], [7, 8]])
    np.testing.assert_array_equal(logits.values[:, 0], [0, 3, 6, 9])


def test_no_positions() -> None:
    logits = HostLogits(np.empty((0, 9), np.float32))
    logits.suppress_ranges([])
    logits.suppress_tokens(np.array([1]))
    logits.prefer_timestamps(5)
    assert len(logits) == 0
    assert logits.top(2)[0].shape == (0, 2)
    assert logits.probability(3).shape == (0,)


def test_bias_adds_to_some_ids_of_each_position() -> None:
    logits = HostLogits(np.array([[0, 1, -INF], [0, 1, 2], [0, 1, 2]], np.float32))
    logits.bias([{0: 2.5, 2: 9.0}, {}, {1: -1.0}])
    np.testing.assert_array_equal(logits.values, np.float32([[2.5, 1, -INF], [0, 1, 2], [0, 0, 2]]))


def test_bias_wants_bonuses_for_every_position() -> None:
    with pytest.raises(ValueError, match="zip"):
        HostLogits(np.zeros((2, 3), np.float32)).bias([{}])


# --- part of the vocabulary --------------------------------------------------------------------------------


@st.composite
def parts(draw: st.DrawFn) -> tuple[HostLogits, HostLogits]:
    """Logits of some ids, and those of all with -inf in the place of the others."""
    table = draw(tables())
    width = table.shape[1]
    there = draw(hnp.arrays(bool, width, fill=st.booleans()))
    there[draw(st.integers(0, width - 1))] = True
    table[:, ~there] = -INF
    table[np.isneginf(table).all(axis=1), np.flatnonzero(there)[0]] = 0
    ids = np.flatnonzero(there)
    return HostLogits(table[:, ids], ids), HostLogits(table)


def assert_same(part: HostLogits, full: HostLogits, k: int = 3) -> None:
    ids, logprobs = part.top(k)
    expected = full.top(ids.shape[1])
    chosen = np.isfinite(expected[1])
    np.testing.assert_array_equal(ids[chosen], expected[0][chosen])
    np.testing.assert_allclose(logprobs, expected[1], atol=1e-5)


@given(parts(), st.integers(1, 400))
def test_part_top(both: tuple[HostLogits, HostLogits], k: int) -> None:
    part, full = both
    assert_same(part, full, k)
    assert part.top(k)[0].shape[1] == min(k, part.values.shape[1])


@given(parts(), st.floats(0.05, 10), st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3))
def test_part_sample(both: tuple[HostLogits, HostLogits], temperature: float, uniforms: list[float]) -> None:
    part, full = both
    ids, logprobs = part.sample(temperature, uniforms[: len(part)])
    expected = full.sample(temperature, uniforms[: len(part)])
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(logprobs, expected[1], atol=1e-5)


@given(parts(), st.integers(0, 10**6))
def test_part_probability(both: tuple[HostLogits, HostLogits], token: int) -> None:
    part, full = both
    token %= full.values.shape[1]
    np.testing.assert_allclose(part.probability(token), full.probability(token), rtol=1e-5, atol=1e-7)


SPANS = st.lists(st.tuples(st.integers(0, 800), st.integers(0, 800)), max_size=3)
TOKENS = st.lists(st.integers(0, 800), max_size=9)


@given(parts(), st.data())
def test_part_changes(both: tuple[HostLogits, HostLogits], data: st.DataObject) -> None:
    part, full = both
    width = full.values.shape[1]
    spans = [data.draw(SPANS) for _ in range(len(part))]
    tokens = np.array([token % width for token in data.draw(TOKENS)], np.int64)
    bonuses = [{token % width: 0.5 * token for token in data.draw(TOKENS)} for _ in range(len(part))]
    order = data.draw(st.lists(st.integers(0, len(part) - 1), min_size=1, max_size=4))
    for logits in (part, full):
        logits.suppress_ranges(spans)
        logits.suppress_tokens(tokens)
        logits.bias(bonuses)
    assume(np.isfinite(full.values).any(axis=1).all())
    assert_same(part, full, width)
    assert_same(part.select_positions(order), full.select_positions(order), width)


@given(parts(), st.integers(0, 300))
def test_part_prefer_timestamps(both: tuple[HostLogits, HostLogits], begin: int) -> None:
    part, full = both
    begin = min(begin, full.values.shape[1])
    for before in log_softmax(full.values):
        together, single = np.logaddexp.reduce(before[begin:], initial=-INF), before[:begin].max(initial=-INF)
        if abs(together - single) < 1e-5:
            return  # too near a tie to demand one or the other
    part.prefer_timestamps(begin)
    full.prefer_timestamps(begin)
    assert_same(part, full, full.values.shape[1])


def test_part_outside_of_it_nothing_happens() -> None:
    logits = HostLogits(np.zeros((1, 3), np.float32), np.array([2, 5, 9]))
    logits.suppress_tokens(np.array([0, 3, 10, 11]))
    logits.bias([{1: 9.0, 4: 9.0, 99: 9.0}])
    logits.suppress_ranges([[(0, 2), (3, 5), (6, 9), (10, 1 << 31)]])
    np.testing.assert_array_equal(logits.values, [[0, 0, 0]])
    logits.suppress_ranges([[(5, 9)]])
    logits.suppress_tokens(np.array([8, 9]))
    logits.bias([{2: 1.5}])
    np.testing.assert_array_equal(logits.values, np.float32([[1.5, -INF, -INF]]))
