"""Logits on a device do what logits in host memory do, ties and bans included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harken.backends.host_logits import HostLogits
from harken.contract import Logits

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'harken[torch]'")

from harken.backends.torch.logits import LogitVocabulary, TorchLogits  # noqa: E402

INF = np.inf


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 3) -> np.ndarray:
    """Logits with many ties, both zeros and bans, at least one id left in each row."""
    shape = draw(st.integers(1, most_rows)), draw(st.sampled_from([1, 2, 7, 300]))
    levels = st.sampled_from([-INF, -3.0, -0.0, 0.0, 1.5, 9.0])
    table = draw(hnp.arrays(np.float32, shape, elements=levels, fill=levels))
    table[np.isneginf(table).all(axis=1), -1] = 0
    return table


def on_device(table: np.ndarray) -> TorchLogits:
    return TorchLogits(torch.tensor(table), LogitVocabulary(np.arange(table.shape[1]), torch.device("cpu")))


def part_on_device(table: np.ndarray, tokens: np.ndarray) -> TorchLogits:
    """Logits that cover some tokens only."""
    return TorchLogits(torch.tensor(table[:, tokens]), LogitVocabulary(tokens, torch.device("cpu")))


def check_change(table: np.ndarray, change: Callable[[Logits], None]) -> None:
    """Change logits in both places and compare."""
    host, device = HostLogits(table.copy()), on_device(table)
    change(host)
    change(device)
    np.testing.assert_array_equal(device.values.numpy(), host.values)


@given(tables(), st.integers(1, 20))
def test_top(table: np.ndarray, k: int) -> None:
    expected, expected_logprobs = HostLogits(table).top(k)
    ids, logprobs = on_device(table).top(k)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(logprobs, expected_logprobs, atol=1e-5)
    assert ids.dtype == np.int64
    assert logprobs.dtype == np.float32


def test_top_of_a_vocabulary() -> None:
    table = 10 * np.random.default_rng(0).standard_normal((4, 51_866), np.float32)
    np.testing.assert_array_equal(on_device(table).top(6)[0], np.argsort(-table, axis=1)[:, :6])


@given(tables())
def test_probability(table: np.ndarray) -> None:
    for token in {0, table.shape[1] - 1}:
        np.testing.assert_allclose(
            on_device(table).probability(token), HostLogits(table).probability(token), rtol=1e-5, atol=1e-7
        )


@given(tables(), st.data())
def test_ban(table: np.ndarray, data: st.DataObject) -> None:
    edge = st.integers(0, table.shape[1]) | st.just(1 << 31)
    spans = [data.draw(st.lists(st.tuples(edge, edge), max_size=3)) for _ in table]
    check_change(table, lambda logits: logits.suppress_ranges(spans))


def test_ban_wants_ranges_for_every_position() -> None:
    with pytest.raises(ValueError, match="1 lists of ranges for 2 positions"):
        on_device(np.zeros((2, 3), np.float32)).suppress_ranges([[]])


@pytest.mark.parametrize("tokens", [[], [0], [1, 3]])
def test_suppress(tokens: list[int]) -> None:
    frozen = np.array(tokens, np.int64)
    frozen.flags.writeable = False
    check_change(np.zeros((2, 4), np.float32), lambda logits: logits.suppress_tokens(frozen))


@pytest.mark.parametrize("bonuses", [[{}, {}], [{1: 2.0}, {}], [{0: -INF, 3: 0.5}, {0: 1.0, 2: -4.0}]])
def test_bias(bonuses: list[dict[int, float]]) -> None:
    table = np.array([[1, -INF, 3, 4], [-INF, 6, 7, 8]], np.float32)
    check_change(table, lambda logits: logits.bias(bonuses))


def test_bias_wants_a_mapping_for_every_position() -> None:
    with pytest.raises(ValueError, match="1 bonuses for 2 positions"):
        on_device(np.zeros((2, 3), np.float32)).bias([{}])


@given(tables(), st.integers(0, 300))
def test_prefer_timestamps(table: np.ndarray, begin: int) -> None:
    begin = min(begin, table.shape[1])
    text, times = table[:, :begin].max(axis=1, initial=-INF), np.exp(table[:, begin:]).sum(axis=1)
    if np.abs(np.exp(text) - times).min() > 1e-4:  # else too near a tie to demand one or the other
        check_change(table, lambda logits: logits.prefer_timestamps(begin))


@given(tables(), st.floats(0.05, 10), st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=3))
def test_sample_inverts_the_distribution(table: np.ndarray, temperature: float, uniforms: list[float]) -> None:
    uniforms = uniforms[: len(table)]
    ids, logprobs = on_device(table).sample(temperature, uniforms)
    mass = np.exp(table.astype(np.float64) / temperature).cumsum(axis=1)
    for row, (token, uniform) in enumerate(zip(ids, uniforms, strict=True)):
        below = mass[row, token - 1] if token else 0
        total = mass[row, -1]
        assert np.isfinite(table[row, token])
        assert below - 1e-6 * total <= uniform * total <= mass[row, token] + 1e-6 * total
    everything, all_logprobs = HostLogits(table).top(table.shape[1])
    for row, token in enumerate(ids):
        assert logprobs[row] == pytest.approx(all_logprobs[row][everything[row] == token][0], abs=1e-5)


@pytest.mark.parametrize("temperature", [0.01, 1, 10])
@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1, 0)])
def test_sample_never_draws_what_is_banned(temperature: float, uniform: float) -> None:
    rng = np.random.default_rng(0)
    table = 20 * rng.standard_normal((20, 400), np.float32)
    banned = rng.random(table.shape) < 0.9
    banned[:, 0] = banned[:, -1] = True
    banned[:, 200] = False
    table[banned] = -INF
    ids, _ = on_device(table).sample(temperature, [uniform] * 20)
    assert np.isfinite(np.take_along_axis(table, ids[:, None], axis=1)).all()


def test_take_copies_in_order() -> None:
    logits = on_device(np.arange(12, dtype=np.float32).reshape(4, 3))
    taken = logits.select_positions([2, 0, 2])
    taken.suppress_tokens(np.array([0]))
    assert len(taken) == 3
    np.testing.assert_array_equal(taken.values[:, 1:], [[7, 8], [1, 2], [7, 8]])
    np.testing.assert_array_equal(logits.values[:, 0], [0, 3, 6, 9])


def test_no_positions() -> None:
    logits = on_device(np.empty((0, 9), np.float32))
    logits.suppress_ranges([])
    logits.bias([])
    logits.suppress_tokens(np.array([1]))
    logits.prefer_timestamps(5)
    assert len(logits.select_positions([])) == 0
    assert logits.top(2)[0].shape == (0, 2)
    assert logits.probability(3).shape == (0,)


@st.composite
def parts(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A table of 300 columns, and ascending ids of some of them, with one left to choose in each row."""
    levels = st.sampled_from([-INF, -3.0, -0.0, 0.0, 1.5, 9.0])
    table = draw(hnp.arrays(np.float32, (draw(st.integers(1, 3)), 300), elements=levels, fill=levels))
    table[:, -1] = -2.0
    chosen = draw(hnp.arrays(np.bool_, 300, fill=st.booleans()))
    chosen[-1] = True
    return table, np.flatnonzero(chosen)


CHANGES: dict[str, Callable[[Logits], None]] = {
    "ban": lambda logits: logits.suppress_ranges([[(0, 1), (3, 40)]] * len(logits)),
    "suppress": lambda logits: logits.suppress_tokens(np.array([0, 1, 4])),
    "bias": lambda logits: logits.bias([{0: 2.0, 5: 7.0, 298: -1.0}] * len(logits)),
    "bias of nothing it covers": lambda logits: logits.bias([{}] * len(logits)),
    "prefer_timestamps": lambda logits: logits.prefer_timestamps(200),
}


@pytest.mark.parametrize("change", CHANGES)
@given(parts=parts())
def test_a_part_of_the_vocabulary_is_all_of_it_with_the_rest_suppressed(
    change: str, parts: tuple[np.ndarray, np.ndarray]
) -> None:
    table, tokens = parts
    part, whole = part_on_device(table, tokens), on_device(table)
    whole.suppress_tokens(np.setdiff1d(np.arange(300), tokens))
    CHANGES[change](part)
    CHANGES[change](whole)
    np.testing.assert_array_equal(part.values, whole.values[:, tokens])
    for k in (1, min(5, len(tokens))):
        ids, logprobs = part.top(k)
        expected, expected_logprobs = whole.top(k)
        possible = np.isfinite(expected_logprobs)
        np.testing.assert_array_equal(ids[possible], expected[possible])
        np.testing.assert_allclose(logprobs, expected_logprobs, atol=1e-5)
    uniforms = [0.1, 0.6, 0.95][: len(table)]
    np.testing.assert_array_equal(part.sample(0.7, uniforms)[0], whole.sample(0.7, uniforms)[0])
    for token in (0, 5, 299):
        np.testing.assert_allclose(part.probability(token), whole.probability(token), atol=1e-5)


def test_a_token_that_is_not_covered_has_no_probability() -> None:
    table = np.zeros((2, 6), np.float32)
    part = part_on_device(table, np.array([1, 4]))
    assert [part.probability(token).tolist() for token in (0, 1, 2, 5)] == [[0, 0], [0.5, 0.5], [0, 0], [0, 0]]
    np.testing.assert_array_equal(part.select_positions([1]).top(2)[0], [[1, 4]])
