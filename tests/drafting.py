"""Drafts and models to test speculative decoding with: some know it all, some know nothing, all at a known price."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harken.backends.host_logits import HostLogits
from harken.contract import Capabilities, Floats, Ints
from harken.decoding.candidate_generator import CandidateGenerator, DraftRequest, DraftTokens
from harken.decoding.draft_controller import MIN_MEASUREMENTS, AcceptanceCounter, DraftController
from harken.decoding.logit_rules import LogitRules
from harken.decoding.speculation import MAX_DRAFT_TOKENS, DraftSession, _CalibratedGenerator
from models import DIMS
from scripted import Script

VOCABULARY = 8
EOT = VOCABULARY - 1


def free_rules(suppressed: Sequence[int] = ()) -> LogitRules:
    """Make rules over a vocabulary of a few tokens, of which the last ends a text; nothing else is forbidden."""
    return LogitRules(
        eot=EOT,
        timestamp_begin=VOCABULARY,
        suppressed=np.array(suppressed, np.int64),
        first_banned=(),
        timestamps=False,
        max_initial_timestamp=None,
    )


@dataclass
class Clock:
    """Seconds that pass only when they are spent, and a little at each look.

    Parameters
    ----------
    tick_s : float
        What a look takes, as it does in reality.
    """

    tick_s: float = 0.0
    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds


def eager_pace(clock: Callable[[], float] = float) -> DraftController:
    """Make a pace that has measured what it needs; on a clock that stands still it always drafts."""
    pace = DraftController(clock)
    for _ in range(MIN_MEASUREMENTS):
        pace.record_step(n_rows=1, width=1, n_new_tokens=1, verify_s=0.0, draft_s=0.0)
    return pace


class Knowing:
    """`harken.decoding.candidate_generator.Draft` that knows how every row goes on, and may lie.

    Parameters
    ----------
    texts : sequence of sequence of int
        What is to come in each row, the end of text included.
    right : callable
        Whether the guess at an index of a row is the truth; a wrong guess is a neighbour of it.
    claim : float
        Probability that it states for every guess.
    clock, step_s, setup_s
        What a forward pass takes, and the first one besides, on a clock.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        right: Callable[[int, int], bool] = lambda row, index: True,
        *,
        claim: float = 0.95,
        clock: Clock | None = None,
        step_s: float = 0.0,
        setup_s: float = 0.0,
    ) -> None:
        self.texts, self.right, self.claim = texts, right, claim
        self.clock, self.step_s, self.setup_s = clock, step_s, setup_s
        self.forwards = 0
        self.asked: list[list[DraftRequest]] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        self.asked.append([replace(ask, prefix=tuple(ask.prefix)) for ask in requests])
        proposals = [self._propose(ask) for ask in requests]
        if self.clock and any(ask.max_tokens for ask in requests):
            # A token that turns out not to be worth it has been computed all the same.
            forwards = max(
                min(len(its.tokens) + 1, ask.max_tokens) for ask, its in zip(requests, proposals, strict=True)
            )
            self.clock.spend(forwards * self.step_s + (0.0 if self.forwards else self.setup_s))
            self.forwards += forwards
        return proposals

    def _propose(self, ask: DraftRequest) -> DraftTokens:
        reach, tokens = 1.0, []
        text = self.texts[ask.row]
        for index in range(len(ask.prefix), min(len(text), len(ask.prefix) + ask.max_tokens)):
            reach *= ask.acceptance_prob(self.claim)
            if reach < ask.draft_threshold:
                break
            tokens.append(text[index] if self.right(ask.row, index) else text[index] ^ 1)
        return DraftTokens(tuple(tokens), (self.claim,) * len(tokens))


def always_wrong(row: int, index: int) -> bool:
    """Never right."""
    return False


def by_chance(share: float, seed: int = 0) -> Callable[[int, int], bool]:
    """Right in some share of all places, always the same ones."""
    return lambda row, index: bool(np.random.default_rng((seed, row, index)).random() < share)


@dataclass
class Drafts:
    """Stands where `harken.decoding.Drafter` stands, with drafts of a test's own.

    Parameters
    ----------
    make : callable
        Makes the drafts for rows, given their number; those that come first are asked first.
    pace : Pace
    tallies : list of Tally
        How far each draft is trusted, by their order; kept from one decode to the next.
    """

    make: Callable[[int], Sequence[CandidateGenerator]]
    pace: DraftController = field(default_factory=eager_pace)
    tallies: list[AcceptanceCounter] = field(default_factory=lambda: [AcceptanceCounter() for _ in range(4)])
    most: int = MAX_DRAFT_TOKENS

    def open_draft_session(
        self,
        row_windows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        previous_hypotheses: Sequence[Sequence[int]],
        logit_rules: LogitRules,
        *,
        sampling: bool = False,
    ) -> DraftSession:
        drafts = self.make(len(row_windows))
        sources = [
            _CalibratedGenerator(draft, tally, len(row_windows), max_tokens=self.most)
            for draft, tally in zip(drafts, self.tallies, strict=False)
        ]
        return DraftSession(self.pace, sources)


@dataclass(frozen=True, slots=True)
class Windows:
    """`harken.contract.Features` of a model that hears nothing."""

    n_windows: int


class Table:
    """`harken.contract.Backend` that looks its logits up, and can be slow.

    Parameters
    ----------
    script : callable
    n_text_ctx : int
    vocabulary : ndarray of int64, or None
        Ids that logits cover.
    clock : Clock or None
    cost : callable
        Seconds of a forward pass over so many rows of at most so many new tokens.

    Attributes
    ----------
    sessions : list of TableSession
    """

    def __init__(
        self,
        script: Script,
        n_text_ctx: int = DIMS.n_text_ctx,
        *,
        vocabulary: Ints | None = None,
        clock: Clock | None = None,
        cost: Callable[[int, int], float] = lambda rows, width: 0.0,
    ) -> None:
        self.dims = replace(DIMS, n_text_ctx=n_text_ctx)
        self.capabilities = Capabilities(name="table", precision="exact", device="none", detail="looked up")
        self.script, self.vocabulary, self.clock, self.cost = script, vocabulary, clock, cost
        self.sessions: list[TableSession] = []

    def encode(self, mel: Floats) -> Windows:
        return Windows(len(mel))

    def reuse_encoder_output(self, features: Windows) -> Windows:
        return features

    def open_session(
        self, features: Windows, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> TableSession:
        self.sessions.append(TableSession(self, row_windows, capacity))
        return self.sessions[-1]


class TableSession:
    """`harken.contract.Session` that keeps account of what it is given to read.

    Attributes
    ----------
    read : list of list of tuple of int
        What each forward pass brought, one sequence a row.
    """

    def __init__(self, backend: Table, windows: Sequence[int], capacity: int) -> None:
        self._backend, self._capacity = backend, capacity
        self.rows: list[tuple[int, tuple[int, ...]]] = [(window, ()) for window in windows]
        self.read: list[list[tuple[int, ...]]] = []

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(tokens) for _, tokens in self.rows)

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        backend = self._backend
        self.read.append([tuple(new) for new in tokens])
        if backend.clock:
            backend.clock.spend(backend.cost(len(tokens), max(map(len, tokens))))
        logits = []
        for row, ((window, seen), new) in enumerate(zip(self.rows, tokens, strict=True)):
            whole = (*seen, *new)
            assert len(whole) <= self._capacity, "a row has outgrown the session"
            self.rows[row] = (window, whole)
            first = max(len(whole) - last_n, len(seen)) + 1
            logits += [backend.script(window, whole[:end]) for end in range(first, len(whole) + 1)]
        values, part = np.array(logits, np.float32), backend.vocabulary
        return HostLogits(values if part is None else values.take(part, axis=1), part)

    def rewind(self, lengths: Sequence[int]) -> None:
        for (_, seen), length in zip(self.rows, lengths, strict=True):
            assert length <= len(seen), "only what has been read can be forgotten"
        self.rows = [(window, seen[:n]) for (window, seen), n in zip(self.rows, lengths, strict=True)]

    def reorder(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]

    def attention(self, row: int) -> Floats:
        window, seen = self.rows[row]
        return np.array([[[hash((window, seen[: n + 1])) % 997] for n in range(len(seen))]], np.float32)


def saying(texts: Sequence[Sequence[int]], prompt: int = 1, vocabulary: int = VOCABULARY) -> Script:
    """Make a script in which each window has a text that it says, whatever was said before it."""

    def script(window: int, seen: tuple[int, ...]) -> Floats:
        logits = np.zeros(vocabulary, np.float32)
        text, place = texts[window], len(seen) - prompt
        logits[text[place] if 0 <= place < len(text) else vocabulary - 1] = 12
        return logits

    return script


def babbling(share: float = 0.0, *, vocabulary: int = DIMS.n_vocab) -> Script:
    """Make a random model: what follows depends on the window, the last two tokens and the length.

    Parameters
    ----------
    share : float
        How much of another such model is mixed in: a draft that is more or less akin.
    """
    one, other = (
        np.random.default_rng(seed).standard_normal((3, 64, vocabulary), np.float32) for seed in (0, 5)
    )
    tables = np.float32(3 * (1 - share)) * one + np.float32(3 * share) * other

    def script(window: int, seen: tuple[int, ...]) -> Floats:
        places = (seen[-1] % 64, hash(seen[-2:-1]) % 64, (window * 7 + len(seen)) % 64)
        logits: Floats = tables[0, places[0]] + tables[1, places[1]] + tables[2, places[2]]
        return logits

    return script
