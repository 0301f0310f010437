"""When drafting pays, and how far: measured costs, measured acceptance, and an account that may not be overdrawn.

A token that is accepted saves its row's share of a forward pass; one that is proposed costs a step of the draft and
makes verification a little dearer. So a token is worth proposing while its chance of being accepted is above the ratio
of the two. Whether drafting as a whole pays is not predicted but booked: every step pays in what plain decoding would
have taken for the tokens that came out of it, and pays out what it did take. When the account is empty there is plain
decoding until a hundredth of it has filled the account again.

The expected gain is that of Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding",
section 3.3) for chances that differ from token to token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MEASURED_STEPS = 3
PLAIN_EVERY = 50
"""Steps with a draft after which there is one without, so that what plain decoding takes is known, not supposed."""
CREDIT_STEPS = 30
REFILL = 0.01
MEMORY, PLAIN_MEMORY = 0.98, 0.9
PRIOR_SLOPE = 0.1
PATIENCE = 8.0
"""Weight, in tokens, of what all rows have shown against what one row shows."""


@dataclass(slots=True)
class Line:
    """A cost as a straight line over tokens, fitted to what was measured.

    Parameters
    ----------
    memory : float
        Weight that a measurement keeps when the next one comes.
    """

    memory: float = MEMORY
    _n: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    measured: int = 0

    def add(self, tokens: int, cost: float) -> float:
        """Add a measurement and return it; one that is far off, as when the machine was busy elsewhere, as less."""
        if self.measured >= MEASURED_STEPS:
            cost = min(cost, 2 * self.at(tokens))
        self._n = self.memory * self._n + 1
        self._x = self.memory * self._x + tokens
        self._y = self.memory * self._y + cost
        self._xx = self.memory * self._xx + tokens * tokens
        self._xy = self.memory * self._xy + tokens * cost
        self.measured += 1
        return cost

    @property
    def slope(self) -> float:
        """Cost of one more token."""
        x, y = self._x / self._n, self._y / self._n
        spread = self._xx / self._n - x * x
        prior = PRIOR_SLOPE * y / (1 + PRIOR_SLOPE * (x - 1))
        if spread < 0.25:
            return prior
        return max((self._xy / self._n - x * y) / spread, 0.0)

    def at(self, tokens: float) -> float:
        """Cost of so many tokens."""
        return max(self._y / self._n + self.slope * (tokens - self._x / self._n), 1e-9)


@dataclass(slots=True)
class Tally:
    """How many proposed tokens were expected to be accepted, and how many were."""

    expected: float = 0.0
    accepted: float = 0.0

    def add(self, expected: float, accepted: float) -> None:
        self.fade()
        self.expected += expected
        self.accepted += accepted

    def fade(self) -> None:
        """Forget a little: a draft that is no longer trusted is to be tried again some time."""
        self.expected *= MEMORY
        self.accepted *= MEMORY

    def trust(self, prior: float = 1.0) -> float:
        """Ratio of the two, with some weight on what is known from elsewhere."""
        return (self.accepted + PATIENCE * prior) / (self.expected + PATIENCE)


@dataclass(slots=True)
class Pace:
    """What drafting has cost and brought so far, for one pair of a model and a draft.

    All costs are kept in plain steps, steps of one row without a draft, as these took at the time: a machine that was
    busy while something was measured was busy with both.

    Parameters
    ----------
    clock : callable
        Seconds, from wherever.
    plain : Line
        Seconds of steps without a draft, over rows. They are measured for themselves: where a pass over two tokens
        takes much more than one over one token, no line through passes over many tells what one takes.
    verify : Line
        Steps with a draft, over tokens in all rows; plain ones only until there are any.
    draft : Line
        A step of the draft, over rows.
    setup : float
        Until an assistant has heard a window and read its prompt.
    balance : float or None
        What is on the account; None before anything was measured.
    """

    clock: Callable[[], float]
    plain: Line = field(default_factory=lambda: Line(PLAIN_MEMORY))
    verify: Line = field(default_factory=Line)
    draft: Line = field(default_factory=Line)
    setup: float = 0.0
    balance: float | None = None
    _since_plain: int = 0
    _warm: bool = False

    def may_draft(self, *, set_up: bool) -> bool:
        """Whether the account covers a try, the encoder of an assistant included if it has not heard this window.

        Now and then the answer is no, only to see what plain decoding takes.
        """
        if self.plain.measured < MEASURED_STEPS or self._since_plain >= PLAIN_EVERY:
            return False
        if self.balance is None:
            self.balance = self._most
        return self.balance > (0.0 if set_up else self.setup)

    def floor(self, rows: int) -> float:
        """Chance of being accepted above which thinking of one more token in each of some rows pays."""
        step = self.draft.at(rows) if self.draft.measured else 0.0
        return step / self._plain_steps(rows) + self.least(rows)

    def least(self, rows: int) -> float:
        """Chance of being accepted above which verifying one more token in each of some rows pays."""
        return self.verify.slope * rows / self._plain_steps(rows)

    def book(self, *, rows: int, width: int, produced: int, verify_s: float, draft_s: float) -> None:
        """Book one step.

        Parameters
        ----------
        rows : int
            Rows that took part.
        width : int
            Most new tokens that the model read in a row.
        produced : int
            Tokens that came out, in all rows.
        verify_s, draft_s : float
            Seconds that the model and the draft took.
        """
        if width == 1:
            self.plain.add(rows, verify_s)
        self._since_plain = self._since_plain + 1 if width > 1 else 0
        verified = self._steps(verify_s)
        if width > 1 or self.verify.measured < MEASURED_STEPS:
            verified = self.verify.add(rows * width, verified)
        if self.balance is None:
            return
        plain = self._plain_steps(rows) * produced / rows
        gain = plain - verified if width > 1 else REFILL * plain
        self.balance = min(self.balance + gain - self._steps(draft_s), self._most)

    def drafted(self, forwards: int, seconds: float, rows: int) -> None:
        """Note what one proposal took, in forward passes of the draft and seconds, for some rows together."""
        self.draft.add(rows, self._steps(seconds) / forwards)

    def prepared(self, seconds: float) -> None:
        """Note what it took until an assistant had heard a window and read its prompt.

        The first time is not held against it: then its memory is touched for the first time too, which takes several
        times as long.
        """
        setup = self._steps(seconds)
        if self.balance is not None and not self._warm:
            self._warm = True
            self.balance += setup
            return
        self.setup = setup if not self.setup else 0.5 * (self.setup + min(setup, 4 * self.setup))

    def _steps(self, seconds: float) -> float:
        return seconds / self.plain.at(1)

    def _plain_steps(self, rows: int) -> float:
        """A step of some rows without a draft."""
        return self._steps(self.plain.at(rows))

    @property
    def _most(self) -> float:
        return max(CREDIT_STEPS, 2 * self.setup)
