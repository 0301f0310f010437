"""Control of drafting: how many tokens to draft, and whether to draft at all, from measured costs and acceptance.

An accepted token saves its row's share of a forward pass; a proposed one costs a step of the generator and makes
verification a little slower. So a token is worth proposing while the probability that it is accepted is above the ratio
of the two. Whether drafting as a whole pays is not predicted but measured against a time budget: every step adds the
time that plain decoding would have taken for its tokens, and subtracts the time that it did take. When the budget is
used up, decoding is plain, and each plain step adds a hundredth of its time to the budget.

An assistant that encodes windows itself costs much before it gains anything. So that is predicted: it encodes a window
where the expected gain, or the budget, exceeds the cost.

The expected gain is that of Leviathan et al. 2023 ("Fast Inference from Transformers via Speculative Decoding",
section 3.3) for acceptance probabilities that differ from token to token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MIN_MEASUREMENTS = 3
PLAIN_STEP_INTERVAL = 50
"""Steps with a draft after which there is one without, to measure the cost of plain decoding."""
BUDGET_STEPS = 30
START_BUDGET_STEPS = 5
"""Plain steps that drafting may lose before it has gained any: a short recording has 15 to 40 tokens."""
BUDGET_REFILL_RATE = 0.01
PRIOR_GAIN = 0.25
"""Share of the time of plain decoding that drafts are expected to save, until it is measured."""
DECAY, PLAIN_DECAY = 0.98, 0.9
PRIOR_SLOPE = 0.1
PRIOR_WEIGHT_TOKENS = 8.0
"""Weight, in tokens, of the calibration over all rows against that of one row."""


@dataclass(slots=True)
class LinearCost:
    """A cost as a linear function of the number of tokens, fitted by least squares to recent measurements.

    Parameters
    ----------
    decay : float
        Factor by which the weight of every measurement falls when the next one comes.
    slope : float
        Cost of one more token.
    measurements : int
    """

    decay: float = DECAY
    slope: float = 0.0
    measurements: int = 0
    _sums: tuple[float, ...] = (0.0,) * 5  # of weights, and of tokens, costs, and their products by weight
    _mean_tokens: float = 0.0
    _mean_cost: float = 0.0

    def add(self, tokens: int, cost: float) -> float:
        """Add a measurement and return it, limited to twice the prediction as the machine may have been busy."""
        if self.measurements >= MIN_MEASUREMENTS:
            cost = min(cost, 2 * self.predict(tokens))
        measured = 1, tokens, cost, tokens * tokens, tokens * cost
        self._sums = tuple(self.decay * sum_ + new for sum_, new in zip(self._sums, measured, strict=True))
        self.measurements += 1
        # The line is fitted here, since it is read several times between measurements.
        weight, *sums = self._sums
        x, y, xx, xy = (sum_ / weight for sum_ in sums)
        self._mean_tokens, self._mean_cost = x, y
        variance = xx - x * x
        if variance < 0.25:
            self.slope = PRIOR_SLOPE * y / (1 + PRIOR_SLOPE * (x - 1))
        else:
            self.slope = max((xy - x * y) / variance, 0.0)
        return cost

    def predict(self, tokens: float) -> float:
        """Return the cost of so many tokens."""
        return max(self._mean_cost + self.slope * (tokens - self._mean_tokens), 1e-9)


@dataclass(slots=True)
class AcceptanceCounter:
    """A count of the draft tokens expected to be accepted, and of those accepted, both decaying."""

    expected: float = 0.0
    accepted: float = 0.0

    def add(self, expected: float, accepted: float) -> None:
        """Add the counts of one draft."""
        self.decay()
        self.expected += expected
        self.accepted += accepted

    def decay(self) -> None:
        """Reduce the weight of the past, so that a generator that failed is tried again some time."""
        self.expected *= DECAY
        self.accepted *= DECAY

    def calibration(self, prior: float = 1.0) -> float:
        """Return the ratio of accepted to expected tokens, smoothed towards a prior."""
        return (self.accepted + PRIOR_WEIGHT_TOKENS * prior) / (self.expected + PRIOR_WEIGHT_TOKENS)


@dataclass(slots=True)
class DraftController:
    """The measured costs and acceptance of a model and its drafts, and the time budget for drafting.

    The unit of cost is a plain step, a step of one row without a draft, as measured at the same time: if the machine is
    busy, both are slow.

    Parameters
    ----------
    clock : callable
        Returns seconds since any fixed time.
    plain_cost : LinearCost
        Seconds of a step without a draft, by rows. They are measured apart: where a pass over two tokens takes much
        longer than one over a single token, a line through wide passes does not predict the single one.
    verify_cost : LinearCost
        Cost of a step with a draft, by tokens in all rows; of plain steps until there are any others.
    draft_cost : LinearCost
        Cost of a step of the generator, by rows.
    setup_cost : float
        Cost of encoding a window with the assistant and reading its prompt.
    gain : AcceptanceCounter
        Time of plain decoding and what drafts saved of it, the setup left out.
    budget : float or None
        Plain steps that drafting may still lose; None before the first measurements.
    previous_hypothesis, ngram, assistant : AcceptanceCounter
        Tokens of each source of drafts.
    speech : AcceptanceCounter
        Seconds of audio, and the tokens in them.
    """

    clock: Callable[[], float]
    plain_cost: LinearCost = field(default_factory=lambda: LinearCost(PLAIN_DECAY))
    verify_cost: LinearCost = field(default_factory=LinearCost)
    draft_cost: LinearCost = field(default_factory=LinearCost)
    setup_cost: float = 0.0
    gain: AcceptanceCounter = field(default_factory=AcceptanceCounter)
    budget: float | None = None
    previous_hypothesis: AcceptanceCounter = field(default_factory=AcceptanceCounter)
    ngram: AcceptanceCounter = field(default_factory=AcceptanceCounter)
    assistant: AcceptanceCounter = field(default_factory=AcceptanceCounter)
    speech: AcceptanceCounter = field(default_factory=AcceptanceCounter)
    _steps_since_plain: int = 0
    _setup_in_step: float = 0.0
    _setup_measured: bool = False
    _warmed_up: bool = False

    def may_draft(self) -> bool:
        """Return whether the budget allows a draft; now and then it is no, only to measure a plain step."""
        if self.plain_cost.measurements < MIN_MEASUREMENTS or self._steps_since_plain >= PLAIN_STEP_INTERVAL:
            return False
        if self.budget is None:
            self.budget = START_BUDGET_STEPS
        return self.budget > 0.0

    @property
    def plain_steps(self) -> int:
        """Number of steps without a draft before there may be one, where there is none now."""
        if self.plain_cost.measurements < MIN_MEASUREMENTS:
            return MIN_MEASUREMENTS - self.plain_cost.measurements
        debt = -min(self.budget or 0.0, 0.0)
        return 1 + int(debt / BUDGET_REFILL_RATE)

    def may_set_up(self, *, setup_s: float, n_rows: int, n_tokens: float) -> bool:
        """Return whether an assistant may encode a window: it has to pay in this window, or the budget has to cover it.

        Parameters
        ----------
        setup_s : float
            Estimate of the seconds, used until they are measured.
        n_rows : int
        n_tokens : float
            Tokens expected in each row.
        """
        if not self._setup_measured:
            self.setup_cost = self._in_plain_steps(setup_s)
        expected_gain = self.gain.calibration(PRIOR_GAIN) * n_tokens * self._plain_step_cost(n_rows)
        assert self.budget is not None, "drafts may be made"
        return self.setup_cost < max(expected_gain, self.budget)

    def draft_threshold(self, n_rows: int) -> float:
        """Return the acceptance probability above which drafting one more token in each row pays."""
        draft_step = self.draft_cost.predict(n_rows) if self.draft_cost.measurements else 0.0
        return draft_step / self._plain_step_cost(n_rows) + self.verify_threshold(n_rows)

    def verify_threshold(self, n_rows: int) -> float:
        """Return the acceptance probability above which verifying one more token in each row pays."""
        return self.verify_cost.slope * n_rows / self._plain_step_cost(n_rows)

    def verify_s(self, n_tokens: int) -> float:
        """Return the seconds that a step with drafts takes, of so many tokens in all rows."""
        return self.verify_cost.predict(n_tokens) * self.plain_cost.predict(1)

    def record_step(
        self, *, n_rows: int, width: int, n_new_tokens: float, verify_s: float, draft_s: float
    ) -> None:
        """Record one step in the costs and the budget.

        Parameters
        ----------
        n_rows : int
            Rows that took part.
        width : int
            Most new tokens that the model read in a row.
        n_new_tokens : float
            Tokens picked in all rows.
        verify_s, draft_s : float
            Seconds that the model and the generators took.
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
        drafting = self._in_plain_steps(draft_s)
        if width > 1:
            gain = plain - verified
            self.gain.add(plain, gain - max(drafting - self._setup_in_step, 0.0))
        else:
            gain = BUDGET_REFILL_RATE * plain
        self._setup_in_step = 0.0
        self.budget = min(self.budget + gain - drafting, max(BUDGET_STEPS, 2 * self.setup_cost))

    def record_draft(self, forwards: int, seconds: float, n_rows: int) -> None:
        """Record the cost of one draft for some rows together: forward passes of the generator, and seconds."""
        self.draft_cost.add(n_rows, self._in_plain_steps(seconds) / forwards)

    def record_setup(self, seconds: float) -> None:
        """Record the cost of encoding a window with the assistant and reading its prompt.

        The first time does not count: the assistant's memory is touched for the first time then, which takes several
        times as long.
        """
        setup = self._in_plain_steps(seconds)
        self._setup_in_step = setup
        if self.budget is not None and not self._warmed_up:
            self._warmed_up = True
            self.budget += setup
            return
        self.setup_cost = (
            0.5 * (self.setup_cost + min(setup, 4 * self.setup_cost)) if self._setup_measured else setup
        )
        self._setup_measured = True

    def _in_plain_steps(self, seconds: float) -> float:
        return seconds / self.plain_cost.predict(1)

    def _plain_step_cost(self, n_rows: int) -> float:
        """Return the cost of a step of some rows without a draft."""
        return 1.0 if n_rows == 1 else self._in_plain_steps(self.plain_cost.predict(n_rows))
