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

MIN_MEASUREMENTS = 3
PLAIN_STEP_INTERVAL = 50
"""Steps with a draft after which there is one without, so that what plain decoding takes is known, not supposed."""
BUDGET_STEPS = 30
BUDGET_REFILL_RATE = 0.01
DECAY, PLAIN_DECAY = 0.98, 0.9
PRIOR_SLOPE = 0.1
PRIOR_WEIGHT_TOKENS = 8.0
"""Weight, in tokens, of what all rows have shown against what one row shows."""


@dataclass(slots=True)
class LinearCost:
    """A cost as a straight line over tokens, fitted to what was measured.

    Parameters
    ----------
    memory : float
        Weight that a measurement keeps when the next one comes.
    """

    decay: float = DECAY
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    measurements: int = 0

    def add(self, tokens: int, cost: float) -> float:
        """Add a measurement and return it; one that is far off, as when the machine was busy elsewhere, as less."""
        if self.measurements >= MIN_MEASUREMENTS:
            cost = min(cost, 2 * self.predict(tokens))
        self._weight = self.decay * self._weight + 1
        self._x = self.decay * self._x + tokens
        self._y = self.decay * self._y + cost
        self._xx = self.decay * self._xx + tokens * tokens
        self._xy = self.decay * self._xy + tokens * cost
        self.measurements += 1
        return cost

    @property
    def slope(self) -> float:
        """Cost of one more token."""
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        prior = PRIOR_SLOPE * y / (1 + PRIOR_SLOPE * (x - 1))
        if variance < 0.25:
            return prior
        return max((self._xy / self._weight - x * y) / variance, 0.0)

    def predict(self, tokens: float) -> float:
        """Cost of so many tokens."""
        return max(self._y / self._weight + self.slope * (tokens - self._x / self._weight), 1e-9)


@dataclass(slots=True)
class AcceptanceCounter:
    """How many proposed tokens were expected to be accepted, and how many were."""

    expected: float = 0.0
    accepted: float = 0.0

    def add(self, expected: float, accepted: float) -> None:
        self.decay()
        self.expected += expected
        self.accepted += accepted

    def decay(self) -> None:
        """Forget a little: a draft that is no longer trusted is to be tried again some time."""
        self.expected *= DECAY
        self.accepted *= DECAY

    def calibration(self, prior: float = 1.0) -> float:
        """Ratio of the two, with some weight on what is known from elsewhere."""
        return (self.accepted + PRIOR_WEIGHT_TOKENS * prior) / (self.expected + PRIOR_WEIGHT_TOKENS)


@dataclass(slots=True)
class DraftController:
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
    plain_cost: LinearCost = field(default_factory=lambda: LinearCost(PLAIN_DECAY))
    verify_cost: LinearCost = field(default_factory=LinearCost)
    draft_cost: LinearCost = field(default_factory=LinearCost)
    setup_cost: float = 0.0
    budget: float | None = None
    _steps_since_plain: int = 0
    _warmed_up: bool = False

    def may_draft(self, *, set_up: bool) -> bool:
        """Whether the account covers a try, the encoder of an assistant included if it has not heard this window.

        Now and then the answer is no, only to see what plain decoding takes.
        """
        if self.plain_cost.measurements < MIN_MEASUREMENTS or self._steps_since_plain >= PLAIN_STEP_INTERVAL:
            return False
        if self.budget is None:
            self.budget = self._max_budget
        return self.budget > (0.0 if set_up else self.setup_cost)

    def draft_threshold(self, n_rows: int) -> float:
        """Chance of being accepted above which thinking of one more token in each of some rows pays."""
        draft_step = self.draft_cost.predict(n_rows) if self.draft_cost.measurements else 0.0
        return draft_step / self._plain_step_cost(n_rows) + self.verify_threshold(n_rows)

    def verify_threshold(self, n_rows: int) -> float:
        """Chance of being accepted above which verifying one more token in each of some rows pays."""
        return self.verify_cost.slope * n_rows / self._plain_step_cost(n_rows)

    def record_step(
        self, *, n_rows: int, width: int, n_new_tokens: int, verify_s: float, draft_s: float
    ) -> None:
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
            self.plain_cost.add(n_rows, verify_s)
        self._steps_since_plain = self._steps_since_plain + 1 if width > 1 else 0
        verified = self._in_plain_steps(verify_s)
        if width > 1 or self.verify_cost.measurements < MIN_MEASUREMENTS:
            verified = self.verify_cost.add(n_rows * width, verified)
        if self.budget is None:
            return
        plain = self._plain_step_cost(n_rows) * n_new_tokens / n_rows
        gain = plain - verified if width > 1 else BUDGET_REFILL_RATE * plain
        self.budget = min(self.budget + gain - self._in_plain_steps(draft_s), self._max_budget)

    def record_draft(self, forwards: int, seconds: float, n_rows: int) -> None:
        """Note what one proposal took, in forward passes of the draft and seconds, for some rows together."""
        self.draft_cost.add(n_rows, self._in_plain_steps(seconds) / forwards)

    def record_setup(self, seconds: float) -> None:
        """Note what it took until an assistant had heard a window and read its prompt.

        The first time is not held against it: then its memory is touched for the first time too, which takes several
        times as long.
        """
        setup = self._in_plain_steps(seconds)
        if self.budget is not None and not self._warmed_up:
            self._warmed_up = True
            self.budget += setup
            return
        self.setup_cost = (
            setup if not self.setup_cost else 0.5 * (self.setup_cost + min(setup, 4 * self.setup_cost))
        )

    def _in_plain_steps(self, seconds: float) -> float:
        return seconds / self.plain_cost.predict(1)

    def _plain_step_cost(self, n_rows: int) -> float:
        """A step of some rows without a draft."""
        return self._in_plain_steps(self.plain_cost.predict(n_rows))

    @property
    def _max_budget(self) -> float:
        return max(BUDGET_STEPS, 2 * self.setup_cost)
