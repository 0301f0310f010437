"""Logits of a subset of the vocabulary equal those of the whole with all other tokens suppressed."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import BackendPair

from harken.contract import Backend, Ints, Logits
from tiny_models import DIMS, TOKENIZER, make_backend

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
SUBSET = np.sort(np.random.default_rng(0).choice(DIMS.n_vocab, 300, replace=False))
OTHERS = np.setdiff1d(np.arange(DIMS.n_vocab), SUBSET)
RELATIVE_TOLERANCE = 1e-5
"""Largest difference, relative to the largest value, between sums of more and of fewer terms."""


@pytest.fixture(scope="module")
def subset_backend(backends: BackendPair, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    return make_backend(backends.name, tmp_path_factory.mktemp("subset"), vocab_subset=SUBSET)


@pytest.fixture
def logits(backends: BackendPair, subset_backend: Backend) -> tuple[Logits, Logits]:
    """Logits of the subset, and of the whole vocabulary with all other tokens suppressed."""
    subset = subset_backend.open_session(
        subset_backend.reuse_encoder_output(backends.features), [0, 2], 48
    ).extend([PROMPT] * 2, last_n=3)
    full = backends.tested.open_session(backends.features, [0, 2], 48).extend([PROMPT] * 2, last_n=3)
    full.suppress_tokens(OTHERS)
    return subset, full


def assert_same(subset: tuple[Ints, np.ndarray], full: tuple[Ints, np.ndarray]) -> None:
    np.testing.assert_array_equal(subset[0], full[0])
    np.testing.assert_allclose(subset[1], full[1], atol=RELATIVE_TOLERANCE * np.abs(full[1]).max(), rtol=0)


def test_top_returns_token_ids_of_the_subset(logits: tuple[Logits, Logits]) -> None:
    subset, full = logits
    assert_same(subset.top(1), full.top(1))
    assert_same(subset.top(len(SUBSET)), full.top(len(SUBSET)))
    assert np.isin(subset.top(1)[0], SUBSET).all()


def test_top_returns_no_more_tokens_than_the_subset_has(logits: tuple[Logits, Logits]) -> None:
    assert logits[0].top(len(SUBSET) + 9)[0].shape == (6, len(SUBSET))


def test_samples_are_those_of_the_suppressed_vocabulary(logits: tuple[Logits, Logits]) -> None:
    subset, full = logits
    uniforms = np.linspace(0.05, 0.95, 6).tolist()
    assert_same(subset.sample(0.8, uniforms), full.sample(0.8, uniforms))


@pytest.mark.parametrize("token", [int(SUBSET[0]), int(SUBSET[-1]), int(OTHERS[0]), int(OTHERS[-1])])
def test_probability_is_that_of_the_suppressed_vocabulary(logits: tuple[Logits, Logits], token: int) -> None:
    subset, full = logits
    np.testing.assert_allclose(subset.probability(token), full.probability(token), rtol=1e-4, atol=1e-9)


def test_changes_of_tokens_outside_have_no_effect(logits: tuple[Logits, Logits]) -> None:
    bonuses = [{int(SUBSET[3]): 2.0, int(OTHERS[3]): 50.0}, {}] * 3
    for each in logits:
        each.suppress_ranges([[(0, 100), (700, 701), (900, 5000)]] * 6)
        each.suppress_tokens(np.concatenate([SUBSET[150:160], OTHERS[40:60]]))
        each.bias(bonuses)
        each.prefer_timestamps(TOKENIZER.timestamp_begin)
    subset, full = logits
    assert_same(subset.top(5), full.top(5))


def test_prompts_may_hold_tokens_outside_of_the_subset(backends: BackendPair, subset_backend: Backend) -> None:
    one, other = (
        backend.open_session(backend.reuse_encoder_output(backends.features), [1], 48)
        for backend in (subset_backend, backends.tested)
    )
    for tokens in (OTHERS[:7].tolist(), SUBSET[:2].tolist(), [int(OTHERS[90])]):
        subset, full = one.extend([tokens]), other.extend([tokens])
        full.suppress_tokens(OTHERS)
        assert_same(subset.top(9), full.top(9))


def test_logits_without_positions(subset_backend: Backend, backends: BackendPair) -> None:
    nothing = subset_backend.open_session(
        subset_backend.reuse_encoder_output(backends.features), [0], 48
    ).extend([[]])
    assert len(nothing) == 0
    assert nothing.top(2)[0].shape == (0, 2)
