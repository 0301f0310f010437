"""The native logits beside those in host memory: the same rules in any order, the same choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harken.backends.host_logits import HostLogits
from harken.backends.native.session import MOST_INSERTED, NativeLogits
from harken.contract import Backend, Ints, Logits

COLUMNS, PADDED = 700, 704
TOKEN_IDS = np.arange(0, 3 * COLUMNS, 3)
Pair = tuple[NativeLogits, HostLogits]
MakePair = Callable[..., Pair]


@pytest.fixture(scope="module")
def make_pair(open_backend: Callable[[str], Backend]) -> MakePair:
    decoder: Any = open_backend("native-int8")._decoder

    def make(seed: int, token_ids: Ints | None = None) -> Pair:
        padded = 4 * np.random.default_rng(seed).standard_normal((3, PADDED), np.float32)
        padded[:, COLUMNS:] = 1e9
        host = HostLogits(padded[:, :COLUMNS].copy(), token_ids)
        return NativeLogits(decoder, padded, COLUMNS, token_ids), host

    return make


RULES: dict[str, Callable[[Logits, np.random.Generator, int], object]] = {
    "tokens": lambda logits, rng, last: logits.suppress_tokens(rng.integers(0, last, 30)),
    "ranges": lambda logits, rng, last: logits.suppress_ranges(
        [[(int(start), int(start) + 40) for start in rng.integers(0, last, 2)] for _ in range(len(logits))]
    ),
    "timestamps": lambda logits, rng, last: logits.prefer_timestamps(int(rng.integers(last // 4, last))),
    "bias": lambda logits, rng, last: logits.bias(
        [{int(token): 1.5 for token in rng.integers(0, last, 3)} for _ in range(len(logits))]
    ),
    "read": lambda logits, rng, last: logits.top(1),
    "probability": lambda logits, rng, last: logits.probability(int(rng.integers(0, last))),
}


def assert_same_choices(native: Logits, host: Logits, k: int = 5) -> None:
    for (ids, values), (expected_ids, expected) in (
        (native.top(k), host.top(k)),
        (native.sample(0.8, [0.1, 0.5, 0.999]), host.sample(0.8, [0.1, 0.5, 0.999])),
    ):
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(values, expected, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("token_ids", [None, TOKEN_IDS], ids=["whole vocabulary", "subset"])
def test_rules_in_any_order_are_those_of_host_logits(make_pair: MakePair, token_ids: Ints | None) -> None:
    """A preference depends on what was suppressed before it, not on what is suppressed after it."""
    last = COLUMNS if token_ids is None else 3 * COLUMNS
    for seed in range(25):
        pair = make_pair(seed, token_ids)
        names = np.random.default_rng(seed).choice([*RULES], 7)
        for logits in pair:
            rng = np.random.default_rng(seed)
            for name in names:
                RULES[name](logits, rng, last)
        native, host = pair
        np.testing.assert_array_equal(native.values, host.values, err_msg=str(names))
        assert_same_choices(native, host)
        assert_same_choices(*(logits.select_positions([2, 0, 2]) for logits in pair))


@pytest.mark.parametrize("k", [1, 2, MOST_INSERTED, MOST_INSERTED + 1, COLUMNS, COLUMNS + 5])
def test_best_are_found_and_no_more_than_there_are(make_pair: MakePair, k: int) -> None:
    native, host = make_pair(3)
    assert native.top(k)[0].shape == (3, min(k, COLUMNS))
    assert_same_choices(native, host, k)


def test_nothing_is_chosen_where_all_is_suppressed(make_pair: MakePair) -> None:
    native, host = make_pair(0)
    for logits in (native, host):
        logits.suppress_ranges([[(0, 1 << 31)], [], []])
    ids, logprobs = native.top(2)
    expected_ids, expected = host.top(2)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(logprobs, expected, atol=2e-6)
    assert np.isneginf(logprobs[0]).all()
    assert native.probability(4)[0] == 0


@pytest.mark.parametrize("token", [-1, COLUMNS])
def test_token_outside_of_the_vocabulary_is_refused(make_pair: MakePair, token: int) -> None:
    native, _ = make_pair(0)
    native.suppress_tokens(np.array([3, token]))
    with pytest.raises(IndexError, match="not all ids"):
        native.top(1)
