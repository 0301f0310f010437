"""Beam search over four tokens: what a beam holds at the limit, and the best text of all."""

from __future__ import annotations

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


def run(script: LogitsFunction, width: int, limit: int, patience: float = 1.0) -> list[Hypothesis]:
    session, beam = FakeSession(script, [0]), Beam(width=width, patience=patience)
    (found,), _ = beam_search(session, session.logits, RULES, beam, [limit], lambda step: None)
    return found


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_unfinished_hypotheses_fill_the_beam_at_the_limit(limit: int) -> None:
    never = np.log([0.5, 0.3, 0.2, 1e-30])
    found = run(lambda window, prefix: never, 3, limit)
    assert len(found) == 3
    assert all(len(hypothesis.tokens) == len(hypothesis.logprobs) == limit for hypothesis in found)
    assert found[0].tokens == (A,) * limit
    totals = [hypothesis.sum_logprob for hypothesis in found]
    assert totals == sorted(totals, reverse=True)


def test_beam_is_full_behind_texts_that_end() -> None:
    """The end of text is likeliest everywhere; it takes the place of no text that goes on."""
    logits = np.log([0.3, 0.2, 0.1, 0.4])
    found = run(lambda window, prefix: logits, 2, 2, patience=2.0)
    assert [hypothesis.tokens for hypothesis in found] == [(), (A,), (B,)]


def random_script(seed: int) -> LogitsFunction:
    """Make random logits that differ between windows."""

    def script(window: int, prefix: tuple[int, ...]) -> np.ndarray:
        return 3 * np.random.default_rng((seed, window, *prefix)).standard_normal(4)

    return script


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

    found = run(script, 40, limit)
    assert max(hypothesis.sum_logprob for hypothesis in found) == pytest.approx(walk((), 0), abs=1e-4)
