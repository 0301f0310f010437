"""Rows that each follow one token at a time: greedy decoding and sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harken.contract import Floats, Ints, Logits, Session
from harken.decoding.hypothesis import Hypothesis, Listen, Observer, Step, deaf
from harken.decoding.rules import Rules

Pick = Callable[[Logits, Sequence[int]], tuple[Ints, Floats]]
"""Choose one token at each position, given which row each belongs to: ids and log-probabilities, shapes (P,)."""


def pick_best(logits: Logits, rows: Sequence[int]) -> tuple[Ints, Floats]:
    """Choose the most probable token."""
    ids, logprobs = logits.top(1)
    return ids[:, 0], logprobs[:, 0]


def pick_sample(temperature: float, generators: Sequence[np.random.Generator]) -> Pick:
    """Draw at a temperature, with one generator a row, so that no row depends on its neighbours."""

    def pick(logits: Logits, rows: Sequence[int]) -> tuple[Ints, Floats]:
        return logits.sample(temperature, [generators[row].random() for row in rows])

    return pick


@dataclass(slots=True)
class _Row:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    attention: Floats | None = None


def follow(
    session: Session,
    logits: Logits,
    rules: Rules,
    pick: Pick,
    limits: Sequence[int],
    observe: Observer,
    listen: Listen = deaf,
) -> list[Hypothesis]:
    """Extend every row token by token until its end of text or its limit.

    Parameters
    ----------
    session : Session
        Rows that have read their prompts; finished ones are dropped from it.
    logits : Logits
        After the last token of each prompt.
    rules : Rules
    pick : Pick
    limits : sequence of int
        Most tokens to sample in each row.
    observe : Observer
    listen : Listen
        Asked for the attention of every row that has ended.

    Returns
    -------
    list of Hypothesis
        One a row.
    """
    rows = [_Row() for _ in limits]
    active = list(range(len(rows)))
    while True:
        rules.apply(logits, [rows[row].tokens for row in active])
        ids, logprobs = pick(logits, active)
        for row, token, logprob in zip(active, ids.tolist(), logprobs.tolist(), strict=True):
            observe(Step(row=row, index=len(rows[row].tokens), token=token, logprob=logprob))
            rows[row].tokens.append(token)
            rows[row].logprobs.append(logprob)
        keep: list[int] = []
        for i, row in enumerate(active):
            its = rows[row]
            if its.tokens[-1] != rules.eot and len(its.tokens) < limits[row]:
                keep.append(i)
            else:
                its.attention = listen(i, len(its.tokens))
        if not keep:
            break
        if len(keep) < len(active):
            session.select(keep)
            active = [active[i] for i in keep]
        logits = session.extend([rows[row].tokens[-1:] for row in active])
    return [_hypothesis(row, rules.eot) for row in rows]


def _hypothesis(row: _Row, eot: int) -> Hypothesis:
    tokens = row.tokens[:-1] if row.tokens[-1] == eot else row.tokens
    return Hypothesis(tokens=tuple(tokens), logprobs=tuple(row.logprobs), attention=row.attention)
