"""Rows that each follow one token at a time, or as many as a draft got right: greedy decoding and sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from harken.contract import Floats, Ints, Logits, Session
from harken.decoding.hypothesis import AttentionCapture, Hypothesis, Observer, Step, no_attention
from harken.decoding.logit_rules import LogitRules
from harken.decoding.speculation import DraftSession


class PickedTokens(NamedTuple):
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


RowPosition = tuple[int, int]
"""A row, and the index in it of the token to choose."""
Pick = Callable[[Logits, Sequence[RowPosition], bool], PickedTokens]
"""Choose one token at each position, given the place of each, and whether to compare it with the next best."""


def pick_best(logits: Logits, positions: Sequence[RowPosition], with_margins: bool) -> PickedTokens:
    """Choose the most probable token."""
    ids, logprobs = logits.top(2 if with_margins else 1)
    margins = logprobs[:, 0] - logprobs[:, 1] if with_margins else np.full(len(ids), np.inf, np.float32)
    return PickedTokens(ids[:, 0], logprobs[:, 0], margins)


def pick_sample(temperature: float, generators: Sequence[np.random.Generator]) -> Pick:
    """Draw at a temperature, with one generator a row, so that no row depends on its neighbours.

    Every place has its own random number, however often a token is drawn for it. So a drafted token is accepted where
    plain decoding would have drawn it: with the probability that the model gives it, and where it is not, what is drawn
    instead has the distribution of all the others. That is the rejection rule of Leviathan et al. 2023 (section 2.3)
    for a draft that puts all its probability on one token.
    """
    uniforms: list[list[float]] = [[] for _ in generators]

    def uniform(row: int, index: int) -> float:
        while len(uniforms[row]) <= index:
            uniforms[row].append(generators[row].random())
        return uniforms[row][index]

    def pick(logits: Logits, positions: Sequence[RowPosition], with_margins: bool) -> PickedTokens:
        ids, logprobs = logits.sample(temperature, [uniform(*position) for position in positions])
        return PickedTokens(ids, logprobs, np.full(len(ids), np.inf, np.float32))

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
    def max_draft(self) -> int:
        """How many tokens may be guessed: behind them there is always one more to choose."""
        return self.limit - len(self.tokens) - 1

    def positions(self) -> range:
        """Indices of the tokens to choose: one for each guess, and the one behind them."""
        return range(len(self.tokens), len(self.tokens) + len(self.draft) + 1)

    def prefixes(self) -> list[list[int]]:
        """What stands before each of these places if all guesses are right."""
        tokens_and_draft = [*self.tokens, *self.draft]
        return [tokens_and_draft[:index] for index in self.positions()]

    def accept(self, choices: Sequence[_Choice], eot: int) -> list[_Choice]:
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


def generate(
    session: Session,
    logits: Logits,
    logit_rules: LogitRules,
    pick: Pick,
    limits: Sequence[int],
    observe: Observer,
    capture: AttentionCapture = no_attention,
    draft_session: DraftSession | None = None,
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
        positions = [(row, index) for row in active for index in rows[row].positions()]
        logit_rules.apply(logits, [prefix for row in active for prefix in rows[row].prefixes()])
        picked = pick(logits, positions, any(rows[row].draft for row in active))
        choices: dict[int, list[_Choice]] = {row: [] for row in active}
        for (row, _), *choice in zip(positions, *(column.tolist() for column in picked), strict=True):
            choices[row].append(_Choice(*choice))
        accepted = {row: rows[row].accept(choices[row], logit_rules.eot) for row in active}
        for row, row_choices in accepted.items():
            for index, choice_taken in enumerate(row_choices, start=len(rows[row].tokens) - len(row_choices)):
                observe(Step(row=row, index=index, token=choice_taken.token, logprob=choice_taken.logprob))
        if draft_session:
            # A row without a guess was read in the same pass as the others.
            any_draft = any(rows[row].draft for row in active)
            margins = [choice.margin for its in accepted.values() for choice in its] if any_draft else []
            draft_session.record_accepted(
                {row: [choice.token for choice in its] for row, its in accepted.items()}, margins
            )
            # The last token of each row is still to be read, and guesses that were wrong are to be forgotten.
            session.rewind([prompts[row] + len(rows[row].tokens) - 1 for row in active])
        for i, row in enumerate(active):
            if rows[row].ended:
                rows[row].attention = capture(i, len(rows[row].tokens))
        unfinished = [i for i, row in enumerate(active) if not rows[row].ended]
        if not unfinished:
            break
        if len(unfinished) < len(active):
            session.reorder(unfinished)
            active = [active[i] for i in unfinished]
        if draft_session:
            prefixes = {row: rows[row].tokens for row in active}
            drafts = draft_session.propose(prefixes, {row: rows[row].max_draft for row in active})
            for row in active:
                rows[row].draft = drafts.get(row, ())
        unread = [(*rows[row].tokens[-1:], *rows[row].draft) for row in active]
        logits = session.extend(unread, max(map(len, unread)))
    return [row.hypothesis(logit_rules.eot) for row in rows]
