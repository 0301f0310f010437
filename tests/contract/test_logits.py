"""The contract of logits: one suite over all kinds of them, against plain numpy, with ties and suppressed ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harken.backends.host_logits import TOPK_BLOCK, HostLogits

INF = np.inf
WIDTHS = (1, 2, 7, TOPK_BLOCK - 1, TOPK_BLOCK, TOPK_BLOCK + 1, 300, 3 * TOPK_BLOCK + 5)
UNIFORMS = st.lists(st.floats(0, 1, exclude_max=True) | st.just(np.nextafter(1, 0)), min_size=3, max_size=3)


def make_host_logits(table, token_ids=None):
    return HostLogits(table.copy() if token_ids is None else table[:, token_ids].copy(), token_ids)


def make_torch_logits(table, token_ids=None):
    import torch

    from harken.backends.torch.logits import LogitVocabulary, TorchLogits

    ids = np.arange(table.shape[1]) if token_ids is None else token_ids
    return TorchLogits(torch.tensor(table[:, ids]), LogitVocabulary(ids, torch.device("cpu")))


@pytest.fixture(scope="module", params=["host", "native", "torch"])
def make_logits(request, open_backend):
    """Make logits of a table over all ids, or over the given ones; in host memory, natively, then in PyTorch."""
    if request.param == "host":
        return make_host_logits
    if request.param == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")
        return make_torch_logits
    from harken.backends.native.session import NativeLogits

    decoder = open_backend("native-int8")._decoder

    def make_native_logits(table, token_ids=None):
        """Make logits with larger numbers in the padding."""
        table = table if token_ids is None else table[:, token_ids]
        padding = np.full((len(table), -table.shape[1] % 16), 1e9, np.float32)
        padded = np.ascontiguousarray(np.hstack([table, padding]))
        return NativeLogits(decoder, padded, table.shape[1], token_ids)

    return make_native_logits


@st.composite
def tables(draw):
    """Logits with many ties, both zeros and suppressed ids, at least one id left in each row."""
    shape = draw(st.integers(1, 3)), draw(st.sampled_from(WIDTHS))
    levels = st.sampled_from([-INF, -3.0, -0.0, 0.0, 1.5, 1.5, 9.0])
    table = draw(hnp.arrays(np.float32, shape, elements=levels, fill=levels))
    table[np.isneginf(table).all(axis=1), -1] = 0
    return table


def values(logits):
    return np.asarray(logits.values).copy()


def log_softmax(table):
    wide = table.astype(np.float64)
    peak = wide.max(axis=1, keepdims=True)
    return wide - peak - np.log(np.exp(wide - peak).sum(axis=1, keepdims=True))


class PlainLogits:
    """What logits must be: a table over all ids in numpy, without any part of it left out."""

    def __init__(self, table):
        self.table = table.copy()

    def suppress_tokens(self, tokens):
        self.table[:, tokens] = -INF

    def suppress_ranges(self, ranges):
        for row, row_ranges in zip(self.table, ranges, strict=True):
            for start, stop in row_ranges:
                row[start:stop] = -INF

    def bias(self, bonuses):
        for row, row_bonuses in zip(self.table, bonuses, strict=True):
            for token, bonus in row_bonuses.items():
                row[token] += np.float32(bonus)

    def prefer_timestamps(self, timestamp_begin):
        for row, advantage in zip(self.table, self.advantages(timestamp_begin), strict=True):
            row[:timestamp_begin] = np.where(advantage > 0, -INF, row[:timestamp_begin])

    def advantages(self, timestamp_begin):
        """Return by how much all timestamps together are likelier than the likeliest text, in logarithms."""
        rows = log_softmax(self.table)
        texts = rows[:, :timestamp_begin].max(axis=1, initial=-INF)
        both = zip(rows[:, timestamp_begin:], texts, strict=True)
        return [np.logaddexp.reduce(timestamps, initial=-INF) - text for timestamps, text in both]

    @property
    def possible(self):
        """True if each row has an id that is not suppressed."""
        return bool(np.isfinite(self.table).any(axis=1).all())


def test_top_of_a_large_vocabulary(make_logits):
    table = 10 * np.random.default_rng(0).standard_normal((4, 51_866), np.float32)
    np.testing.assert_array_equal(make_logits(table).top(6)[0], np.argsort(-table, axis=1)[:, :6])


@pytest.mark.parametrize(("size", "accuracy"), [(30, 1e-5), (1e4, 1e-3)])
def test_large_logits_do_not_overflow(make_logits, size, accuracy):
    logits = make_logits(np.array([[size, -size, size]], np.float32))
    assert logits.probability(0) == pytest.approx(0.5, abs=accuracy)


def test_missing_ranges_and_bonuses_are_refused(make_logits):
    logits = make_logits(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"zip|1 lists of ranges for 2 positions"):
        logits.suppress_ranges([[]])
    with pytest.raises(ValueError, match=r"zip|1 bonuses for 2 positions"):
        logits.bias([{}])


def test_logits_without_positions(make_logits):
    logits = make_logits(np.empty((0, 9), np.float32))
    logits.suppress_ranges([])
    logits.bias([])
    logits.suppress_tokens(np.array([1]))
    logits.prefer_timestamps(5)
    assert len(logits) == 0
    assert len(logits.select_positions([])) == 0
    assert logits.top(2)[0].shape == (0, 2)
    assert logits.probability(3).shape == (0,)


@st.composite
def subsets(draw):
    """A table, and the ids that its logits cover or None for all; others are -inf, and one is left in each row."""
    table = draw(tables())
    if draw(st.integers(0, 3)) == 0:
        return table, None
    covered = draw(hnp.arrays(bool, table.shape[1], fill=st.booleans()))
    covered[draw(st.integers(0, table.shape[1] - 1))] = True
    table[:, ~covered] = -INF
    table[np.isneginf(table).all(axis=1), np.flatnonzero(covered)[0]] = 0
    return table, np.flatnonzero(covered)


def read_only_ids(tokens):
    ids = np.array(tokens, np.int64)
    ids.flags.writeable = False
    return ids


@st.composite
def changes(draw, rows, width):
    """Some rules with their arguments: ids of the vocabulary, and ranges that may go beyond it."""
    token, edge = st.integers(0, width - 1), st.integers(0, width) | st.just(1 << 31)
    bonus = st.sampled_from([2.0, 0.5, -4.0, -INF])

    def each(one):
        return st.lists(one, min_size=rows, max_size=rows)

    arguments = {
        "suppress_tokens": st.lists(token, max_size=9).map(read_only_ids),
        "suppress_ranges": each(st.lists(st.tuples(edge, edge), max_size=3)),
        "bias": each(st.dictionaries(token, bonus, max_size=3)),
        "prefer_timestamps": st.integers(0, width),
        "probability": token,
        "top": st.integers(1, width),
    }
    names = draw(st.lists(st.sampled_from([*arguments]), max_size=6))
    return [(name, draw(arguments[name])) for name in names]


@given(subsets(), st.data(), st.floats(0.05, 10), UNIFORMS)
def test_rules_in_any_order_are_those_of_plain_numpy_over_the_whole_vocabulary(
    make_logits, drawn, data, temperature, uniforms
):
    table, ids = drawn
    own, plain = make_logits(table, ids), PlainLogits(table)
    for name, argument in data.draw(changes(*table.shape)):
        if not plain.possible:
            return
        if name in ("probability", "top"):  # which may compute something in advance
            getattr(own, name)(argument)
        elif name != "prefer_timestamps" or min(map(abs, plain.advantages(argument))) > 1e-5:
            # Else rounding would decide.
            getattr(own, name)(argument)
            getattr(plain, name)(argument)

    def check_values():
        np.testing.assert_array_equal(values(own), plain.table[:, ... if ids is None else ids])

    checks = [check_values]
    if plain.possible:
        order = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=4))

        def check_copies():
            selected = own.select_positions(order)
            assert_choices(selected, plain.table[order], temperature, [0.3] * len(order))
            selected.suppress_ranges([[(0, 1 << 31)]] * len(order))
            values(selected)
            check_values()

        checks += [lambda: assert_choices(own, plain.table, temperature, uniforms), check_copies]
    for check in data.draw(st.permutations(checks)):
        check()


def assert_choices(logits, table, temperature, uniforms):
    """Check probabilities, the order of the best, and that samples are where the cumulative distribution passes."""
    expected, width = log_softmax(table), table.shape[1]
    for token in (0, width // 2, width - 1):
        np.testing.assert_allclose(logits.probability(token), np.exp(expected)[:, token], rtol=1e-5, atol=1e-7)
    for k in (1, 5, width):
        best, logprobs = logits.top(k)
        assert (best.dtype, logprobs.dtype) == (np.int64, np.float32)
        order = np.argsort(-table, axis=1, kind="stable")[:, : best.shape[1]]
        order_logprobs = np.take_along_axis(expected, order, axis=1)
        np.testing.assert_allclose(logprobs, order_logprobs, atol=1e-5)
        possible = np.isfinite(order_logprobs)
        np.testing.assert_array_equal(best[possible], order[possible])
    tokens, logprobs = logits.sample(temperature, uniforms[: len(table)])
    mass = np.exp(log_softmax(table / np.float32(temperature))).cumsum(axis=1)
    for row, (token, uniform) in enumerate(zip(tokens, uniforms[: len(table)], strict=True)):
        assert np.isfinite(table[row, token])
        assert (mass[row, token - 1] if token else 0) - 1e-6 <= uniform <= mass[row, token] + 1e-6
        assert logprobs[row] == pytest.approx(expected[row, token], abs=1e-5)
