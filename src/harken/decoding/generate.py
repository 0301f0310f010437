"""The token loop: greedy decoding, sampling, verification of drafts, and streaming, for any number of rows.

Each step picks one token in every row; in a row with a draft, all tokens up to the first that differs from the draft.
`prefill` reads the prompts, `generate` extends the rows until a stopping criterion ends each of them. Beam search has
its own loop.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from harken.contract import Floats, GreedyRules, GreedySession, Ints, Logits, PickedSoFar, Session
from harken.decoding.candidate_generator import common_prefix_length
from harken.decoding.logit_rules import LogitRules
from harken.decoding.speculation import DraftSession
from harken.decoding.types import (
    AttentionCapture,
    CapturedAttention,
    Hypothesis,
    Observer,
    Step,
    no_attention,
)


class PickedTokens(NamedTuple):
    """Tokens picked at P positions.

    Parameters
    ----------
    ids : ndarray of shape (P,), int64
    logprobs : ndarray of shape (P,), float32
    margins : ndarray of shape (P,), float32
        Difference in log-probability to the second best token; infinite where it was not asked for.
    """

    ids: Ints
    logprobs: Floats
    margins: Floats


RowPosition = tuple[int, int]
"""A row, and the index in it of the token to pick."""
Pick = Callable[[Logits, Sequence[RowPosition], bool], PickedTokens]
"""Pick one token at each position; the flag asks for the margins to the second best token."""


def pick_best(logits: Logits, positions: Sequence[RowPosition], with_margins: bool) -> PickedTokens:
    """Pick the most probable token."""
    ids, logprobs = logits.top(2 if with_margins else 1)
    margins = logprobs[:, 0] - logprobs[:, 1] if with_margins else np.full(len(ids), np.inf, np.float32)
    return PickedTokens(ids[:, 0], logprobs[:, 0], margins)


def pick_sample(temperature: float, generators: Sequence[np.random.Generator]) -> Pick:
    """Return a function that draws tokens at a temperature, with one random generator a row.

    Each position of a row has its own random number, however often a token is drawn for it. So a draft token is
    accepted exactly where plain decoding would have drawn it: with the probability that the model gives it. Where it is
    not, the token drawn instead has the distribution of all the others. That is the rejection rule of Leviathan et al.
    2023 (section 2.3) for a draft that puts all its probability on one token.
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


STREAMED_REPEATS = {**dict.fromkeys(range(1, 4), 5), **dict.fromkeys(range(4, 11), 3)}
"""Least number of repetitions that make a loop in a stream, by the length of the unit in tokens: a stream starts anew
every hop, so it sees short loops only, and people do say "no, no, no"."""
REPEATS = {**dict.fromkeys(range(1, 9), 8), **dict.fromkeys(range(9, 41), 4)}
"""The same for whole windows, where a loop is also judged by the compression ratio."""
CHECK_EVERY = 16
"""Tokens between two looks for a loop."""


def compression_ratio(text: str) -> float:
    """Return the ratio by which a text deflates, high for repetition (openai/whisper, utils.py, compression_ratio)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def repetition_length(tokens: Sequence[int], repeats: Mapping[int, int]) -> int:
    """Return how many tokens at the end only repeat those before them, if that makes a loop; else 0.

    Parameters
    ----------
    tokens : sequence of int
    repeats : mapping of int to int
        Least number of repetitions that make a loop, by the length of the unit.
    """
    for period, least in repeats.items():
        length = 0
        while length + period < len(tokens) and tokens[-1 - length] == tokens[-1 - length - period]:
            length += 1
        if length >= (least - 1) * period:
            return length
    return 0


@dataclass(frozen=True, slots=True)
class LoopRule:
    """The rule that tells a loop from speech that repeats itself, for the text of a whole window.

    Parameters
    ----------
    decode : callable
        Text of some tokens.
    eot : int
        Ids from it on are no text: timestamps differ from repetition to repetition.
    max_ratio : float
        Compression ratio above which a text is rejected. What passes is no loop.
    """

    decode: Callable[[Sequence[int]], str]
    eot: int
    max_ratio: float

    def stops(self, tokens: Sequence[int]) -> bool:
        """Return whether a row ends here: every `CHECK_EVERY` tokens it is looked at, and ends in a loop."""
        return not len(tokens) % CHECK_EVERY and self.begins(tokens) is not None

    def begins(self, tokens: Sequence[int]) -> int | None:
        """Return the index of the first token that only repeats those before it up to the end; None without a loop."""
        text = [index for index, token in enumerate(tokens) if token < self.eot]
        length = repetition_length([tokens[index] for index in text], REPEATS)
        if not length or compression_ratio(self.decode(tokens).lstrip()) <= self.max_ratio:
            return None
        return text[-length]


StoppingCriterion = Callable[["Row", int, Floats | None], int | None]
"""Return how many tokens a row keeps, if it ends with the token that was picked next; else None.

Given are the row with all tokens before this one, the token, and the cross-attention of all tokens that the model has
read in this row, shape (heads, tokens, positions); None unless `generate` reads it.
"""


@dataclass(frozen=True, slots=True)
class WindowEnd:
    """The stopping criterion of offline decoding: end of text, as many tokens as the row may hold, or a loop.

    Parameters
    ----------
    eot : int
    loop_rule : LoopRule or None
    """

    eot: int
    loop_rule: LoopRule | None = None

    def __call__(self, row: Row, token: int, attention: Floats | None) -> int | None:
        n_tokens = len(row.tokens) + 1
        ends = token == self.eot or n_tokens == row.limit
        ends = ends or (self.loop_rule is not None and self.loop_rule.stops([*row.tokens, token]))
        return n_tokens if ends else None


@dataclass(slots=True)
class Row:
    """A row that is being decoded.

    Parameters
    ----------
    prompt : tuple of int
        Tokens that the model reads before the first token to pick, committed ones included.
    limit : int
        Most tokens to pick.
    stopping : StoppingCriterion
    committed : tuple of int
        Tokens at the end of the prompt that count as text for the logit rules.
    speech_end : int or None
        Timestamp before which no segment may be empty (see `LogitRules.banned`).
    draft : tuple of int
        Tokens that the model has read behind those of the row, to be verified in the next step.
    tokens : list of int
        Tokens picked.
    logprobs : list of float
    n_matched : int
        Number of draft tokens that were right.
    ended : bool
    attention : tuple of ndarray or None
        Cross-attention that picked each token, of the alignment heads and of the word heads, if it was captured.
    """

    prompt: tuple[int, ...]
    limit: int
    stopping: StoppingCriterion
    committed: tuple[int, ...] = ()
    speech_end: int | None = None
    draft: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    n_matched: int = 0
    ended: bool = False
    attention: CapturedAttention = (None, None)

    @property
    def max_draft(self) -> int:
        """Most tokens to draft: one more token is picked behind them."""
        return self.limit - len(self.tokens) - 1

    @property
    def n_read(self) -> int:
        """Number of tokens that the session is to keep: all but the last one picked, which is still to be read."""
        return len(self.prompt) + max(0, len(self.tokens) - 1)

    def positions(self) -> range:
        """Return the indices of the tokens to pick: one for each draft token, and the one behind them."""
        return range(len(self.tokens), len(self.tokens) + len(self.draft) + 1)

    def prefixes(self) -> list[list[int]]:
        """Return the tokens before each of these indices, given that the whole draft is right."""
        prefix = [*self.committed, *self.tokens, *self.draft]
        return [prefix[: len(prefix) - n] for n in range(len(self.draft), -1, -1)]

    def accept(self, token_ids: Sequence[int], logprobs: Sequence[float], attention: Floats | None) -> None:
        """Append picked tokens up to the first that differs from the draft; those behind it had a wrong prefix."""
        n_matched = common_prefix_length(self.draft, token_ids) if self.draft else 0
        self.n_matched += n_matched
        self.draft = ()
        for token, logprob in zip(token_ids[: n_matched + 1], logprobs, strict=False):
            n_kept = self.stopping(self, token, attention)
            self.tokens.append(token)
            self.logprobs.append(logprob)
            if n_kept is not None:
                del self.tokens[n_kept:], self.logprobs[n_kept:]
                self.ended = True
                break

    def hypothesis(self, eot: int) -> Hypothesis:
        """Return the result of a row that has ended."""
        return Hypothesis.from_picked(self.tokens, self.logprobs, eot, self.attention)


def prefill(session: Session, rows: Sequence[Row], sot: int, no_speech: int) -> tuple[Logits, list[float]]:
    """Read the prompt and the draft of every row in one forward pass.

    Parameters
    ----------
    session : Session
        The rows, which have read nothing.
    rows : sequence of Row
    sot, no_speech : int
        Ids of <|startoftranscript|> and <|nospeech|>.

    Returns
    -------
    logits : Logits
        Behind the last token of each prompt and each token of its draft.
    no_speech_probs : list of float
        Probability of <|nospeech|> right after <|startoftranscript|>, for each row without committed tokens.
    """
    unread = [(*row.prompt, *row.draft) for row in rows]
    firsts = [len(row.prompt) - 1 if row.committed else row.prompt.index(sot) for row in rows]
    n_logits = [len(tokens) - first for tokens, first in zip(unread, firsts, strict=True)]
    last_n = max(n_logits)
    logits = session.extend(unread, last_n)
    ends = np.cumsum([min(last_n, len(tokens)) for tokens in unread]).tolist()
    sots = [end - n for end, n, row in zip(ends, n_logits, rows, strict=True) if not row.committed]
    no_speech_probs = logits.select_positions(sots).probability(no_speech).tolist() if sots else []
    positions = [
        position
        for end, row in zip(ends, rows, strict=True)
        for position in range(end - len(row.draft) - 1, end)
    ]
    return logits.select_positions(positions), no_speech_probs


STEPS_AT_ONCE = 8
"""Most steps in one call, between two looks at who observes: some 0.2 s with the largest models."""


def generate(
    session: Session,
    rows: Sequence[Row],
    logits: Logits,
    logit_rules: LogitRules,
    pick: Pick,
    *,
    greedy: GreedyRules | None = None,
    observe: Observer | None = None,
    capture: AttentionCapture = no_attention,
    draft_session: DraftSession | None = None,
    stop_by_attention: bool = False,
) -> int:
    """Extend every row until its stopping criterion ends it.

    Parameters
    ----------
    session : Session
        Rows that have read their prompts, and the drafts that `rows` have at the start. Rows that have ended are
        dropped from it.
    rows : sequence of Row
        One for each row of the session, filled in place.
    logits : Logits
        Behind the last token of each prompt and each token of its draft (see `prefill`).
    logit_rules : LogitRules
    pick : callable
    greedy : GreedyRules or None
        `logit_rules` behind the first token, if `pick` is `pick_best` and the session a `GreedySession`: then some
        steps without a draft are one call.
    observe : callable or None
        Called with every `Step`; decoding stops at once with whatever it raises.
    capture : callable
        Called for the attention of every row that has ended.
    draft_session : DraftSession or None
        Proposes tokens before each forward pass, which then verifies all of them at once. Each row accepts as many as
        are right in it. The tokens are those of plain decoding.
    stop_by_attention : bool
        Whether the stopping criteria need the attention, which is then read once a row and step.

    Returns
    -------
    int
        Number of forward passes.
    """
    active = list(range(len(rows)))
    forwards = 0
    while True:
        positions = [(row, index) for row in active for index in rows[row].positions()]
        drafted = len(positions) > len(active)
        logit_rules.apply(
            logits,
            [prefix for row in active for prefix in rows[row].prefixes()],
            [rows[row].speech_end for row, _ in positions],
        )
        picked = pick(logits, positions, drafted and draft_session is not None)
        ids, logprobs = picked.ids.tolist(), picked.logprobs.tolist()
        lengths_before = {row: len(rows[row].tokens) for row in active}
        start = 0
        for i, row in enumerate(active):
            end = start + len(rows[row].draft) + 1
            attention = session.attention(i) if stop_by_attention else None
            rows[row].accept(ids[start:end], logprobs[start:end], attention)
            start = end
        if observe is not None:
            for row, length in lengths_before.items():
                _report_steps(row, rows[row], length, observe)
        if draft_session is not None:
            new_tokens = {row: rows[row].tokens[length:] for row, length in lengths_before.items()}
            # Of the tokens that were accepted; a row without a draft was read in the same pass as the others.
            margins = [
                margin
                for (row, index), margin in zip(positions, picked.margins.tolist(), strict=True)
                if drafted and index < len(rows[row].tokens)
            ]
            draft_session.record_accepted(new_tokens, margins)
        if drafted:
            session.rewind([rows[row].n_read for row in active])
        active = _drop_ended(session, rows, active, capture)
        while active:
            n_steps = STEPS_AT_ONCE
            if draft_session is not None:
                prefixes = {row: rows[row].tokens for row in active}
                drafts = draft_session.propose(prefixes, {row: rows[row].max_draft for row in active})
                for row in active:
                    rows[row].draft = drafts.get(row, ())
                n_steps = 1 if drafts else min(draft_session.plain_steps, STEPS_AT_ONCE)
            if greedy is None or n_steps == 1:
                break
            forwards += _pick_steps(
                cast(GreedySession, session), rows, active, greedy, n_steps, observe, draft_session
            )
            active = _drop_ended(session, rows, active, capture)
        if not active:
            return forwards
        unread = [(rows[row].tokens[-1], *rows[row].draft) for row in active]
        logits = session.extend(unread, max(map(len, unread)))
        forwards += 1


def _pick_steps(
    session: GreedySession,
    rows: Sequence[Row],
    active: Sequence[int],
    greedy: GreedyRules,
    n_steps: int,
    observe: Observer | None,
    draft_session: DraftSession | None,
) -> int:
    """Extend rows by some tokens in one call of the session; return the number of forward passes."""
    lengths = {row: len(rows[row].tokens) for row in active}
    picked = [
        PickedSoFar(tokens=row.tokens, left=row.limit - len(row.tokens), speech_end=row.speech_end)
        for row in (rows[number] for number in active)
    ]
    ids, logprobs = session.pick_best(greedy, picked, n_steps)
    for step in zip(ids.tolist(), logprobs.tolist(), strict=True):
        for number, token, logprob in zip(active, *step, strict=True):
            if not rows[number].ended:
                n_before = len(rows[number].tokens)
                rows[number].accept((token,), (logprob,), None)
                if observe is not None:
                    _report_steps(number, rows[number], n_before, observe)
    if draft_session is not None:
        new_tokens = {row: rows[row].tokens[length:] for row, length in lengths.items()}
        draft_session.record_accepted(new_tokens, (), n_steps=len(ids))
    session.rewind([rows[number].n_read for number in active])
    return len(ids)


def _drop_ended(
    session: Session, rows: Sequence[Row], active: list[int], capture: AttentionCapture
) -> list[int]:
    """Capture the attention of the rows that have ended, drop them from the session, and return those that are left."""
    for i, number in enumerate(active):
        if rows[number].ended:
            rows[number].attention = capture(i, len(rows[number].tokens))
    unfinished = [i for i, number in enumerate(active) if not rows[number].ended]
    if 0 < len(unfinished) < len(active):
        session.reorder(unfinished)
    return [active[i] for i in unfinished]


def _report_steps(number: int, row: Row, n_before: int, observe: Observer) -> None:
    """Report the tokens that a row has gained."""
    for index in range(n_before, len(row.tokens)):
        observe(Step(row=number, index=index, token=row.tokens[index], logprob=row.logprobs[index]))
