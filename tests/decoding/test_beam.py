"""Beam search over four tokens: what each window finds, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.backends import FakeSession, LogitsFunction
from harken.decoding import Beam, Hypothesis, LogitRules
from harken.decoding.beam import beam_search

A, B, C, EOT = range(4)
RULES = LogitRules(
    eot=EOT,
    timestamp_begin=EOT + 1,
    suppressed=np.array([], np.int64),
    first_banned=(),
    timestamps=False,
    max_initial_timestamp=None,
)


def run(
    script: LogitsFunction, beam: Beam, limits: Sequence[int] = (10,), windows: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    session = FakeSession(script, range(len(limits)) if windows is None else windows)
    return beam_search(session, session.logits, RULES, beam, limits, lambda step: None)[0]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_unfinished_hypotheses_fill_the_beam_at_the_limit(limit: int) -> None:
    never = np.log([0.5, 0.3, 0.2, 1e-30])
    (found,) = run(lambda window, prefix: never, Beam(width=3), [limit])
    assert len(found) == 3
    assert all(len(hypothesis.tokens) == len(hypothesis.logprobs) == limit for hypothesis in found)
    assert found[0].tokens == (A,) * limit
    totals = [hypothesis.sum_logprob for hypothesis in found]
    assert totals == sorted(totals, reverse=True)


def random_script(seed: int) -> LogitsFunction:
    """Make random logits that differ between windows."""

    def script(window: int, prefix: tuple[int, ...]) -> np.ndarray:
        return 3 * np.random.default_rng((seed, window, *prefix)).standard_normal(4)

    return script


@given(
    st.integers(0, 1000),
    st.integers(1, 4),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=4),
)
def test_windows_of_a_batch_are_searched_independently(
    seed: int, width: int, patience: float, windows: list[tuple[int, int]]
) -> None:
    beam = Beam(width=width, patience=patience)
    together = run(random_script(seed), beam, [limit for _, limit in windows], [w for w, _ in windows])
    for found, (window, limit) in zip(together, windows, strict=True):
        (alone,) = run(random_script(seed), beam, [limit], [window])
        assert found == alone


@given(st.integers(0, 1000), st.integers(1, 4))
def test_logprobs_belong_to_the_tokens_of_the_hypothesis(seed: int, width: int) -> None:
    script = random_script(seed)
    (found,) = run(script, Beam(width=width), [5])
    for hypothesis in found:
        ended = [*hypothesis.tokens, EOT][: len(hypothesis.logprobs)]
        for i, (token, logprob) in enumerate(zip(ended, hypothesis.logprobs, strict=True)):
            logits = script(0, hypothesis.tokens[:i])
            assert logprob == pytest.approx(logits[token] - np.logaddexp.reduce(logits), abs=1e-5)


@given(st.integers(0, 1000))
def test_beam_as_wide_as_the_tree_finds_the_best_text(seed: int) -> None:
    script, limit = random_script(seed), 3

    def walk(prefix: tuple[int, ...], total: float) -> float:
        """Return the log-probability of the best text that begins with `prefix`."""
        if len(prefix) == limit:
            return total
        logits = script(0, prefix)
        logprobs = logits - np.logaddexp.reduce(logits)
        longer = (walk((*prefix, token), total + logprobs[token]) for token in (A, B, C))
        return max(total + logprobs[EOT], *longer)

    (found,) = run(script, Beam(width=40), [limit])
    assert max(hypothesis.sum_logprob for hypothesis in found) == pytest.approx(walk((), 0), abs=1e-4)
