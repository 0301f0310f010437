"""Rows that each follow one token at a time, or as many as a draft got right: greedy decoding and sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from harken.contract import Floats, Ints, Logits, Session
from harken.decoding.hypothesis import Hypothesis, Listen, Observer, Step, deaf
from harken.decoding.rules import Rules
from harken.decoding.speculation import Speculation


class Picked(NamedTuple):
    """Tokens chosen at some positions.

    Parameters
    ----------
    ids : ndarray of shape (P,), int64
    logprobs : ndarray of shape (P,), float32
    margins : ndarray of shape (P,), float32
        By how much each is more probable than the next best; infinite where nobody asks.
    """

    ids: Ints
    logprobs: Floats
    margins: Floats


Place = tuple[int, int]
"""A row, and the index in it of the token to choose."""
Pick = Callable[[Logits, Sequence[Place], bool], Picked]
"""Choose one token at each position, given the place of each, and whether to compare it with the next best."""


def pick_best(logits: Logits, places: Sequence[Place], compare: bool) -> Picked:
    """Choose the most probable token."""
    ids, logprobs = logits.top(2 if compare else 1)
    margins = logprobs[:, 0] - logprobs[:, 1] if compare else np.full(len(ids), np.inf, np.float32)
    return Picked(ids[:, 0], logprobs[:, 0], margins)


def pick_sample(temperature: float, generators: Sequence[np.random.Generator]) -> Pick:
    """Draw at a temperature, with one generator a row, so that no row depends on its neighbours.

    Every place has its own random number, however often a token is drawn for it. So a drafted token is accepted where
    plain decoding would have drawn it: with the probability that the model gives it, and where it is not, what is drawn
    instead has the distribution of all the others. That is the rejection rule of Leviathan et al. 2023 (section 2.3)
    for a draft that puts all its probability on one token.
    """
    drawn: list[list[float]] = [[] for _ in generators]

    def uniform(row: int, index: int) -> float:
        while len(drawn[row]) <= index:
            drawn[row].append(generators[row].random())
        return drawn[row][index]

    def pick(logits: Logits, places: Sequence[Place], compare: bool) -> Picked:
        ids, logprobs = logits.sample(temperature, [uniform(*place) for place in places])
        return Picked(ids, logprobs, np.full(len(ids), np.inf, np.float32))

    return pick


@dataclass(frozen=True, slots=True)
class _Choice:
    token: int
    logprob: float
    margin: float


@dataclass(slots=True)
class _Row:
    """A row in work; ``draft`` are the guesses that the model has read behind its tokens."""

    limit: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    draft: tuple[int, ...] = ()
    ended: bool = False
    attention: Floats | None = None

    @property
    def room(self) -> int:
        """How many tokens may be guessed: behind them there is always one more to choose."""
        return self.limit - len(self.tokens) - 1

    def places(self) -> range:
        """Indices of the tokens to choose: one for each guess, and the one behind them."""
        return range(len(self.tokens), len(self.tokens) + len(self.draft) + 1)

    def prefixes(self) -> list[list[int]]:
        """What stands before each of these places if all guesses are right."""
        text = [*self.tokens, *self.draft]
        return [text[:index] for index in self.places()]

    def take(self, choices: Sequence[_Choice], eot: int) -> list[_Choice]:
        """Take the choices up to the first that differs from its guess; those behind it followed a wrong prefix."""
        for n, choice in enumerate(choices, start=1):
            self.tokens.append(choice.token)
            self.logprobs.append(choice.logprob)
            self.ended = choice.token == eot or len(self.tokens) == self.limit
            if self.ended or n > len(self.draft) or choice.token != self.draft[n - 1]:
                break
        return list(choices[:n])

    def hypothesis(self, eot: int) -> Hypothesis:
        tokens = self.tokens[:-1] if self.tokens[-1] == eot else self.tokens
        return Hypothesis(tokens=tuple(tokens), logprobs=tuple(self.logprobs), attention=self.attention)


def follow(
    session: Session,
    logits: Logits,
    rules: Rules,
    pick: Pick,
    limits: Sequence[int],
    observe: Observer,
    listen: Listen = deaf,
    speculation: Speculation | None = None,
) -> list[Hypothesis]:
    """Extend every row until its end of text or its limit.

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
    speculation : Speculation or None
        Guesses what comes next before each forward pass, which then verifies all guesses at once. Each row takes as
        many as are right in it. The tokens are those of plain decoding.

    Returns
    -------
    list of Hypothesis
        One a row.
    """
    prompts = session.lengths
    rows = [_Row(limit) for limit in limits]
    active = list(range(len(rows)))
    while True:
        places = [(row, index) for row in active for index in rows[row].places()]
        rules.apply(logits, [prefix for row in active for prefix in rows[row].prefixes()])
        picked = pick(logits, places, any(rows[row].draft for row in active))
        choices: dict[int, list[_Choice]] = {row: [] for row in active}
        for (row, _), *choice in zip(places, *(part.tolist() for part in picked), strict=True):
            choices[row].append(_Choice(*choice))
        taken = {row: rows[row].take(choices[row], rules.eot) for row in active}
        for row, its in taken.items():
            for index, one in enumerate(its, start=len(rows[row].tokens) - len(its)):
                observe(Step(row=row, index=index, token=one.token, logprob=one.logprob))
        if speculation:
            # A row without a guess was read in the same pass as the others.
            together = any(rows[row].draft for row in active)
            margins = [choice.margin for its in taken.values() for choice in its] if together else []
            speculation.learn({row: [choice.token for choice in its] for row, its in taken.items()}, margins)
            # The last token of each row is still to be read, and guesses that were wrong are to be forgotten.
            session.rewind([prompts[row] + len(rows[row].tokens) - 1 for row in active])
        for i, row in enumerate(active):
            if rows[row].ended:
                rows[row].attention = listen(i, len(rows[row].tokens))
        keep = [i for i, row in enumerate(active) if not rows[row].ended]
        if not keep:
            break
        if len(keep) < len(active):
            session.select(keep)
            active = [active[i] for i in keep]
        if speculation:
            prefixes = {row: rows[row].tokens for row in active}
            drafts = speculation.propose(prefixes, {row: rows[row].room for row in active})
            for row in active:
                rows[row].draft = drafts.get(row, ())
        new = [(*rows[row].tokens[-1:], *rows[row].draft) for row in active]
        logits = session.extend(new, max(map(len, new)))
    return [row.hypothesis(rules.eot) for row in rows]
