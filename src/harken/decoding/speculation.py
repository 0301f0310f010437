"""Speculative decoding: draft, verify in one forward pass, keep what is right, and know when to leave it.

A `Speculator` lives as long as a model: it knows what drafting has cost and brought. For windows that are encoded
together it makes a `Drafter`, for each decode of them that makes a `Speculation`, which `harken.decoding.greedy.follow`
asks for drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from harken.contract import Features, Floats
from harken.decoding.assistant import Assistant, AssistantDraft
from harken.decoding.drafts import Ask, Draft, Proposal, common
from harken.decoding.hypothesis import DecodeStats
from harken.decoding.lookup import Lookup
from harken.decoding.pace import Pace, Tally
from harken.decoding.rules import Rules

MOST_DRAFTED = 12
"""Tokens that a model drafts at most before they are verified."""
MOST_LOOKED_UP = 15
"""Tokens of an earlier hypothesis: one fewer than the CPU engine computes each as if it were alone."""
NEAR_TIE = 1e-3
"""In log-probability: a margin between the best two tokens that rounding may turn round."""


@dataclass(slots=True)
class Experience:
    """What drafting has cost and brought in one kind of decoding, and how far each source is to be trusted in it."""

    pace: Pace
    previous: Tally = field(default_factory=Tally)
    ngram: Tally = field(default_factory=Tally)
    assistant: Tally = field(default_factory=Tally)


class Speculator:
    """What a model drafts with, and what that has cost and brought so far.

    Parameters
    ----------
    clock : callable
        Seconds, to measure what pays.
    assistant : Assistant or None
        A model that drafts.
    ngram : bool
        Whether text that was there before is looked up.
    """

    def __init__(
        self, clock: Callable[[], float], *, assistant: Assistant | None = None, ngram: bool = False
    ) -> None:
        self.assistant, self.ngram = assistant, ngram
        # Samples are harder to guess, and several are drawn at a time: what is lost there says nothing of the rest.
        self.greedy, self.sampling = Experience(Pace(clock)), Experience(Pace(clock))

    def listen(self, mel: Floats, features: Features) -> Drafter:
        """Prepare to draft for windows that are encoded together.

        Parameters
        ----------
        mel : ndarray of shape (audios, n_mels, frames), float32
        features : Features
            What the model made of them.
        """
        return Drafter(self, mel, features)


@dataclass(eq=False)
class Drafter:
    """Some windows as they can be drafted for; an assistant hears them when it is first needed."""

    speculator: Speculator
    mel: Floats
    main_features: Features

    @cached_property
    def features(self) -> Features:
        """The windows as the assistant hears them."""
        assert self.speculator.assistant, "only an assistant listens"
        return self.speculator.assistant.listen(self.mel, self.main_features)

    def open(
        self,
        audios: Sequence[int],
        prompts: Sequence[Sequence[int]],
        previous: Sequence[Sequence[int]],
        rules: Rules,
        *,
        sampling: bool = False,
    ) -> Speculation:
        """Prepare to draft for rows.

        Parameters
        ----------
        audios : sequence of int
            Window of each row.
        prompts : sequence of sequence of int
            Prompt of each row.
        previous : sequence of sequence of int
            An earlier hypothesis of each row; empty where there is none.
        rules : Rules
        sampling : bool
            Whether tokens are drawn, and not the best ones taken.
        """
        its = self.speculator
        experience = its.sampling if sampling else its.greedy
        sources = []
        if any(previous):
            lookup = Lookup(
                previous,
                same_audio=True,
                shortest_match=1,
                claim=0.9,
                allows=rules.allows,
                timestamp_begin=rules.timestamp_begin,
            )
            sources.append(_Source(lookup, experience.previous, len(audios), most=MOST_LOOKED_UP))
        if its.ngram:
            sources.append(_Source(Lookup(prompts, allows=rules.allows), experience.ngram, len(audios)))
        if its.assistant:
            draft = AssistantDraft(its.assistant.backend, lambda: self.features, audios, prompts, rules)
            sources.append(_Source(draft, experience.assistant, len(audios)))
        return Speculation(experience.pace, sources)


class _Source:
    """One draft, and how far it is trusted in each row."""

    def __init__(self, draft: Draft, tally: Tally, rows: int, *, most: int = MOST_DRAFTED) -> None:
        self.draft, self.tally, self.most = draft, tally, most
        self.rows = [Tally() for _ in range(rows)]

    def trust(self, row: int) -> float:
        return self.rows[row].trust(self.tally.trust())

    def learn(self, row: int, expected: float, accepted: int) -> None:
        self.tally.add(expected, accepted)
        self.rows[row].add(expected, accepted)


@dataclass(slots=True)
class _Drafted:
    """What was proposed for a row, and by whom."""

    proposal: Proposal
    source: _Source


@dataclass(slots=True, eq=False)
class Speculation:
    """Drafting for the rows of one decode.

    Parameters
    ----------
    pace : Pace
    sources : list
        Who drafts; each is asked for the rows for which those before it have nothing to propose.
    """

    pace: Pace
    sources: list[_Source]
    _counts: Counter[str] = field(default_factory=Counter)
    _near_ties: list[float] = field(default_factory=list)
    _drafted: dict[int, _Drafted] = field(default_factory=dict)
    _draft_s: float = 0.0
    _total_draft_s: float = 0.0
    _since: float | None = None
    _set_up: bool = False

    @property
    def stats(self) -> DecodeStats:
        """What drafting has done so far."""
        return DecodeStats(**self._counts, near_ties=tuple(self._near_ties), draft_s=self._total_draft_s)

    def propose(
        self, prefixes: Mapping[int, Sequence[int]], room: Mapping[int, int]
    ) -> dict[int, tuple[int, ...]]:
        """Guess what comes next in some rows.

        Parameters
        ----------
        prefixes : mapping of int to sequence of int
            Tokens sampled so far, for every row that goes on.
        room : mapping of int to int
            Most tokens to guess for each.
        """
        began = self.pace.clock()
        self._drafted = {}
        if self.pace.may_draft(set_up=self._set_up):
            self._ask(prefixes, room)
        else:
            self._counts["rested"] += 1
        self._since = self.pace.clock()
        self._draft_s = self._since - began
        self._total_draft_s += self._draft_s
        return {row: its.proposal.tokens for row, its in self._drafted.items()}

    def learn(self, taken: Mapping[int, Sequence[int]], margins: Sequence[float]) -> None:
        """Take note of what became of the last proposals.

        Parameters
        ----------
        taken : mapping of int to sequence of int
            Tokens that came out of the step, for every row that took part.
        margins : sequence of float
            By how much each token that was verified together with others was better than the next best.
        """
        if self._since is None:
            return
        for row, its in self._drafted.items():
            guessed = its.proposal.tokens
            accepted = common(guessed, taken[row])
            tested = min(accepted + 1, len(taken[row]), len(guessed))
            its.source.learn(row, sum(its.proposal.claimed[:tested]), accepted)
            self._counts["drafted"] += len(guessed)
            self._counts["accepted"] += accepted
        self._near_ties += [margin for margin in margins if margin < NEAR_TIE]
        self.pace.book(
            rows=len(taken),
            width=1 + max((len(its.proposal.tokens) for its in self._drafted.values()), default=0),
            produced=sum(map(len, taken.values())),
            verify_s=self.pace.clock() - self._since,
            draft_s=self._draft_s,
        )

    def _ask(self, prefixes: Mapping[int, Sequence[int]], room: Mapping[int, int]) -> None:
        floor, least = self.pace.floor(len(prefixes)), self.pace.least(len(prefixes))
        for source in self.sources:
            asks = [
                Ask(
                    row=row,
                    prefix=prefix,
                    limit=0 if row in self._drafted else min(source.most, room[row]),
                    trust=source.trust(row),
                    floor=floor,
                    least=least,
                )
                for row, prefix in prefixes.items()
            ]
            began, before = self.pace.clock(), source.draft.forwards
            proposals = source.draft.propose(asks)
            forwards = source.draft.forwards - before
            if forwards:
                self._measure(forwards, self.pace.clock() - began, len(prefixes))
            for ask, proposal in zip(asks, proposals, strict=True):
                if proposal.tokens:
                    self._drafted[ask.row] = _Drafted(proposal, source)
                elif ask.limit:
                    source.tally.fade()

    def _measure(self, forwards: int, seconds: float, rows: int) -> None:
        """Note what an assistant took; the first time it hears the window and reads the prompt."""
        self._counts["draft_forwards"] += forwards
        if self._set_up:
            self.pace.drafted(forwards, seconds, rows)
        else:
            self.pace.prepared(seconds)
            self._set_up = True
