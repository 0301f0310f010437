"""Part of the vocabulary: every backend gives its logits as if all other tokens were banned."""

from __future__ import annotations

import numpy as np
import pytest
from bench import Bench

from harken.contract import Backend, Ints, Logits
from tiny_models import DIMS, TOKENIZER, make_backend

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
PART = np.sort(np.random.default_rng(0).choice(DIMS.n_vocab, 300, replace=False))
OTHERS = np.setdiff1d(np.arange(DIMS.n_vocab), PART)
NEARLY = 1e-5
"""How far apart, in standard deviations of the logits, sums of more and of fewer terms may be."""


@pytest.fixture(scope="module")
def part(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    return make_backend(bench.name, tmp_path_factory.mktemp("part"), vocabulary=PART)


@pytest.fixture
def logits(bench: Bench, part: Backend) -> tuple[Logits, Logits]:
    """Logits of a part, and those of everything with all others banned."""
    few = part.open_session(part.reuse_encoder_output(bench.features), [0, 2], 48).extend(
        [PROMPT] * 2, last_n=3
    )
    all_of_them = bench.backend.open_session(bench.features, [0, 2], 48).extend([PROMPT] * 2, last_n=3)
    all_of_them.suppress_tokens(OTHERS)
    return few, all_of_them


def same(few: tuple[Ints, np.ndarray], full: tuple[Ints, np.ndarray]) -> None:
    np.testing.assert_array_equal(few[0], full[0])
    np.testing.assert_allclose(few[1], full[1], atol=NEARLY * np.abs(full[1]).max(), rtol=0)


def test_the_same_tokens_by_their_own_ids(logits: tuple[Logits, Logits]) -> None:
    few, full = logits
    same(few.top(1), full.top(1))
    same(few.top(len(PART)), full.top(len(PART)))
    assert np.isin(few.top(1)[0], PART).all()


def test_no_more_than_there_are(logits: tuple[Logits, Logits]) -> None:
    assert logits[0].top(len(PART) + 9)[0].shape == (6, len(PART))


def test_samples(logits: tuple[Logits, Logits]) -> None:
    few, full = logits
    uniforms = np.linspace(0.05, 0.95, 6).tolist()
    same(few.sample(0.8, uniforms), full.sample(0.8, uniforms))


@pytest.mark.parametrize("token", [int(PART[0]), int(PART[-1]), int(OTHERS[0]), int(OTHERS[-1])])
def test_probabilities(logits: tuple[Logits, Logits], token: int) -> None:
    few, full = logits
    np.testing.assert_allclose(few.probability(token), full.probability(token), rtol=1e-4, atol=1e-9)


def test_what_is_done_to_tokens_that_are_not_there_is_done_to_none(logits: tuple[Logits, Logits]) -> None:
    bonuses = [{int(PART[3]): 2.0, int(OTHERS[3]): 50.0}, {}] * 3
    for each in logits:
        each.suppress_ranges([[(0, 100), (700, 701), (900, 5000)]] * 6)
        each.suppress_tokens(np.concatenate([PART[150:160], OTHERS[40:60]]))
        each.bias(bonuses)
        each.prefer_timestamps(TOKENIZER.timestamp_begin)
    few, full = logits
    same(few.top(5), full.top(5))


def test_prompts_may_hold_any_token(bench: Bench, part: Backend) -> None:
    one, other = (
        backend.open_session(backend.reuse_encoder_output(bench.features), [1], 48)
        for backend in (part, bench.backend)
    )
    for tokens in (OTHERS[:7].tolist(), PART[:2].tolist(), [int(OTHERS[90])]):
        few, full = one.extend([tokens]), other.extend([tokens])
        full.suppress_tokens(OTHERS)
        same(few.top(9), full.top(9))


def test_no_positions(part: Backend, bench: Bench) -> None:
    nothing = part.open_session(part.reuse_encoder_output(bench.features), [0], 48).extend([[]])
    assert len(nothing) == 0
    assert nothing.top(2)[0].shape == (0, 2)
