"""Logits of a subset of the vocabulary equal those of the whole with all other tokens suppressed."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import PROMPT, BackendPair

from harken.contract import Backend, Ints
from tiny_models import DIMS, TOKENIZER, make_backend

SUBSET = np.sort(np.random.default_rng(0).choice(DIMS.n_vocab, 300, replace=False))
OTHERS = np.setdiff1d(np.arange(DIMS.n_vocab), SUBSET)
RELATIVE_TOLERANCE = 1e-5
"""Largest difference, relative to the largest value, between sums of more and of fewer terms."""


@pytest.fixture(scope="module")
def subset_backend(backends: BackendPair, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    return make_backend(backends.name, tmp_path_factory.mktemp("subset"), vocab_subset=SUBSET)


def assert_same(subset: tuple[Ints, np.ndarray], full: tuple[Ints, np.ndarray]) -> None:
    np.testing.assert_array_equal(subset[0], full[0])
    np.testing.assert_allclose(subset[1], full[1], atol=RELATIVE_TOLERANCE * np.abs(full[1]).max(), rtol=0)


def test_choices_are_those_of_the_suppressed_vocabulary(backends: BackendPair, subset_backend: Backend) -> None:
    """Prompts may hold tokens outside of the subset, and changes of such tokens have no effect."""
    sessions = [
        backend.open_session(backend.reuse_encoder_output(backends.features), [0, 2], 48)
        for backend in (subset_backend, backends.tested)
    ]
    uniforms = np.linspace(0.05, 0.95, 6).tolist()
    for prompt in (PROMPT, OTHERS[:7].tolist(), [*SUBSET[:2].tolist(), int(OTHERS[90])]):
        subset, full = (session.extend([prompt] * 2, last_n=3) for session in sessions)
        full.suppress_tokens(OTHERS)
        assert_same(subset.top(1), full.top(1))
        assert_same(subset.top(len(SUBSET) + 9), full.top(len(SUBSET)))
        assert np.isin(subset.top(1)[0], SUBSET).all()
        assert_same(subset.sample(0.8, uniforms), full.sample(0.8, uniforms))
        for token in (int(ids[at]) for ids in (SUBSET, OTHERS) for at in (0, -1)):
            np.testing.assert_allclose(subset.probability(token), full.probability(token), rtol=1e-4, atol=1e-9)
        for logits in (subset, full):
            logits.suppress_ranges([[(0, 100), (700, 701), (900, 5000)]] * 6)
            logits.suppress_tokens(np.concatenate([SUBSET[150:160], OTHERS[40:60]]))
            logits.bias([{int(SUBSET[3]): 2.0, int(OTHERS[3]): 50.0}, {}] * 3)
            logits.prefer_timestamps(TOKENIZER.timestamp_begin)
        assert_same(subset.top(5), full.top(5))


def test_logits_without_positions(backends: BackendPair, subset_backend: Backend) -> None:
    features = subset_backend.reuse_encoder_output(backends.features)
    nothing = subset_backend.open_session(features, [0], 48).extend([[]])
    assert len(nothing) == 0
    assert nothing.top(2)[0].shape == (0, 2)
