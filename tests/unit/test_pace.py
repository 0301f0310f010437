"""When drafting pays: what is measured, what is booked, and what it comes to over long decodes at known prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from fakes.backends import EOT, ScriptedBackend, logits_of_texts
from fakes.clock import FakeClock
from fakes.drafts import (
    FakeCandidateGenerator,
    FakeDraftContext,
    always_wrong,
    correct_with_probability,
    unrestricted_rules,
)
from harken.decoding import DecodeStats
from harken.decoding.draft_controller import (
    BUDGET_REFILL_RATE,
    BUDGET_STEPS,
    MIN_MEASUREMENTS,
    PLAIN_STEP_INTERVAL,
    AcceptanceCounter,
    DraftController,
    LinearCost,
)
from harken.decoding.generate import generate, pick_best

# --- the line ----------------------------------------------------------------------------------------------


def fitted(*points: tuple[int, float]) -> LinearCost:
    line = LinearCost()
    for tokens, seconds in points:
        line.add(tokens, seconds)
    return line


def test_a_line_finds_the_line() -> None:
    line = fitted(*[(tokens, 2 + 0.3 * tokens) for tokens in (1, 5, 3, 13, 2, 8)] * 4)
    assert line.slope == pytest.approx(0.3)
    assert line.predict(1) == pytest.approx(2.3)
    assert line.predict(20) == pytest.approx(8)


def test_without_a_spread_a_token_more_is_taken_for_a_tenth_of_the_first() -> None:
    assert fitted((1, 2.0), (1, 2.0)).slope == pytest.approx(0.2)
    wide = fitted((11, 4.0), (11, 4.0))
    assert wide.slope == pytest.approx(0.1 * wide.predict(1))
    assert wide.predict(11) == pytest.approx(4)


def test_a_line_never_falls_and_nothing_is_free() -> None:
    falling = fitted(*[(1, 3.0), (9, 1.0)] * 3)
    assert falling.slope == 0
    assert falling.predict(1) == falling.predict(9) > 0
    assert fitted((1, 0.0), (9, 0.0)).predict(3) > 0


def test_what_is_far_off_counts_as_twice_what_was_expected() -> None:
    line = fitted(*[(1, 1.0)] * MIN_MEASUREMENTS)
    assert line.add(1, 100.0) == pytest.approx(2.0)
    assert line.predict(1) == pytest.approx(1.25, rel=0.02)
    assert fitted((1, 100.0)).predict(1) == 100.0, "the first ones are taken as they come"


def test_what_is_old_fades() -> None:
    line = fitted(*[(1, 1.0)] * 50, *[(1, 2.0)] * 200)
    assert line.predict(1) == pytest.approx(2.0, rel=0.02)
    assert line.measurements == 250


# --- the tally ---------------------------------------------------------------------------------------------


def test_a_tally_trusts_as_it_was_told_until_it_knows_better() -> None:
    tally = AcceptanceCounter()
    assert tally.calibration() == 1
    assert tally.calibration(0.3) == pytest.approx(0.3)
    for _ in range(400):
        tally.add(0.8, 0.4)
    assert tally.calibration() == pytest.approx(0.5, abs=0.1)
    assert tally.calibration(0.3) < tally.calibration(1.0)


def test_a_tally_forgives() -> None:
    tally = AcceptanceCounter()
    for _ in range(100):
        tally.add(1.0, 0.0)
    lost = tally.calibration()
    assert lost < 0.2
    for _ in range(200):
        tally.decay()
    assert tally.calibration() > 0.9


# --- the account -------------------------------------------------------------------------------------------


def book(
    pace: DraftController, *, width: int = 1, produced: int = 1, verify_s: float = 1.0, draft_s: float = 0.0
) -> None:
    pace.record_step(n_rows=1, width=width, n_new_tokens=produced, verify_s=verify_s, draft_s=draft_s)


def measured_pace() -> DraftController:
    pace = DraftController(FakeClock())
    for _ in range(MIN_MEASUREMENTS):
        assert not pace.may_draft(set_up=False)
        book(pace)
    return pace


def test_drafting_begins_when_plain_decoding_has_been_measured() -> None:
    pace = measured_pace()
    assert pace.may_draft(set_up=False)
    assert pace.budget == pytest.approx(BUDGET_STEPS)


def test_gains_and_losses_are_booked_and_the_account_has_a_ceiling() -> None:
    pace = measured_pace()
    assert pace.may_draft(set_up=False)
    book(pace, width=4, produced=1, verify_s=1.0, draft_s=9.0)
    assert pace.budget == pytest.approx(BUDGET_STEPS - 9)
    book(pace, width=4, produced=4, verify_s=1.0, draft_s=1.0)
    assert pace.budget == pytest.approx(BUDGET_STEPS - 7)
    book(pace)
    assert pace.budget == pytest.approx(BUDGET_STEPS - 7 + BUDGET_REFILL_RATE)
    book(pace, width=13, produced=13, verify_s=1.0)
    assert pace.budget == pytest.approx(BUDGET_STEPS)


def test_looking_in_vain_costs_what_it_costs() -> None:
    pace = measured_pace()
    assert pace.may_draft(set_up=False)
    book(pace, draft_s=0.5)
    assert pace.budget == pytest.approx(BUDGET_STEPS + BUDGET_REFILL_RATE - 0.5)


def test_an_empty_account_is_filled_by_plain_decoding() -> None:
    pace = measured_pace()
    assert pace.may_draft(set_up=False)
    book(pace, width=2, draft_s=BUDGET_STEPS + 0.5)
    steps = 0
    while not pace.may_draft(set_up=False):
        book(pace)
        steps += 1
    assert steps == pytest.approx(0.5 / BUDGET_REFILL_RATE, abs=2)


def test_a_dear_beginning_has_to_be_covered() -> None:
    pace = measured_pace()
    pace.record_setup(40.0)
    assert pace.may_draft(set_up=False)
    assert pace.budget == pytest.approx(80)
    book(pace, width=2, draft_s=45)
    assert not pace.may_draft(set_up=False)
    assert pace.may_draft(set_up=True)


def test_one_step_in_so_many_is_plain() -> None:
    pace = measured_pace()
    for _ in range(2):
        for _ in range(PLAIN_STEP_INTERVAL):
            assert pace.may_draft(set_up=True)
            book(pace, width=3, produced=3)
        assert not pace.may_draft(set_up=True)
        book(pace)


def test_the_floor_is_what_a_token_costs_beside_what_it_saves() -> None:
    pace = measured_pace()
    pace.record_draft(4, 1.2, 1)
    assert pace.draft_cost.predict(1) == pytest.approx(0.3)
    assert pace.draft_threshold(1) == pytest.approx(0.3 + 0.1)
    assert pace.may_draft(set_up=True)
    for width in (2, 8) * 20:
        book(pace, width=width, produced=width, verify_s=1 + 0.02 * (width - 1))
    assert pace.draft_threshold(1) == pytest.approx(0.32, abs=0.01)
    for rows in (1, 4) * 9:
        pace.record_draft(1, 0.3, rows)
    assert pace.draft_threshold(4) < pace.draft_threshold(1) + 3 * 0.02 + 0.01, "rows share the draft's step"


# --- long decodes at known prices --------------------------------------------------------------------------

LENGTH = 150
Cost = Callable[[int, int], float]
Right = Callable[[int, int], bool]


@dataclass(frozen=True)
class Course:
    """How long windows took, in passes of plain decoding, the work of the first ones apart.

    Parameters
    ----------
    ratios : ndarray of shape (windows,)
        Time of each with drafts, over what it takes without any.
    stats : list of DecodeStats
    """

    ratios: np.ndarray
    stats: list[DecodeStats]

    @property
    def excess(self) -> float:
        """Passes lost in all, where one in a hundred is allowed for."""
        return float((self.ratios - 1.01).sum() * LENGTH)


def cheap(rows: int, width: int) -> float:
    """A pass over many tokens costs little more than over one."""
    return 1 + 0.05 * (rows * width - 1)


def jumpy(rows: int, width: int) -> float:
    """A pass over one token is another kernel's."""
    return 1.0 if rows * width == 1 else 1.5 + 0.01 * rows * width


def steep(rows: int, width: int) -> float:
    """A pass over many tokens brings nothing at all."""
    return float(rows * width)


def decode(
    right: Callable[[int], Right],
    *,
    cost: Cost = cheap,
    windows: int = 18,
    rows: int = 1,
    step_s: float = 0.1,
    setup_s: float = 0.0,
    noise: Callable[[int], float] = lambda step: 1.0,
) -> Course:
    """Decode windows one after another with a draft that is right as a function of the window says."""
    clock, steps = FakeClock(tick_s=1e-6), 0

    def takes(rows: int, width: int) -> float:
        nonlocal steps
        steps += 1
        return cost(rows, width) * noise(steps)

    rng = np.random.default_rng(0)
    pace, ratios, stats = DraftController(clock), [], []
    drafts = FakeDraftContext(lambda rows: [], pace)
    for window in range(windows):
        texts = [[*rng.integers(0, EOT, LENGTH).tolist(), EOT] for _ in range(rows)]
        session = ScriptedBackend(logits_of_texts(texts), 2 * LENGTH, clock=clock, cost=takes).open_session(
            None, range(rows), 2 * LENGTH
        )
        logits = session.extend([[0]] * rows)
        draft = FakeCandidateGenerator(
            texts, right(window), claim=0.9, clock=clock, step_s=step_s, setup_s=setup_s
        )
        drafts.make = lambda rows, draft=draft: [draft]
        speculation = drafts.open_draft_session(range(rows), [[0]] * rows, [[]] * rows, unrestricted_rules())
        began = clock.now_s
        found = generate(
            session, logits, unrestricted_rules(), pick_best, [LENGTH + 1] * rows, lambda step: None,
            draft_session=speculation,
        )  # fmt: skip
        assert [[*its.tokens, EOT] for its in found] == texts
        ratios.append((clock.now_s - began) / (LENGTH * cost(rows, 1)))
        stats.append(speculation.stats)
    return Course(np.array(ratios), stats)


def rested(stats: list[DecodeStats]) -> float:
    """Share of the steps without a draft."""
    return sum(its.skipped_steps for its in stats) / (len(stats) * LENGTH)


@pytest.mark.parametrize(
    ("right", "prices"),
    [
        (always_wrong, {}),
        (always_wrong, {"step_s": 0.0}),
        (always_wrong, {"step_s": 3.0}),
        (always_wrong, {"setup_s": 20.0}),
        (always_wrong, {"rows": 3, "windows": 8}),
        (correct_with_probability(0.9), {"step_s": 1.2}),
        (correct_with_probability(0.9), {"setup_s": 300.0}),
        (correct_with_probability(0.4), {"step_s": 0.3}),
        (correct_with_probability(0.3), {"cost": jumpy}),
        (correct_with_probability(0.3), {"cost": jumpy, "step_s": 0.0}),
        (correct_with_probability(0.5), {"cost": steep, "step_s": 0.0}),
        (correct_with_probability(0.95), {"cost": steep, "step_s": 0.0}),
    ],
)
def test_a_draft_that_does_not_pay_costs_no_more_than_it_may(right: Right, prices: dict[str, float]) -> None:
    """Three parts of a hundred over a long decode, and at its beginning what is staked on finding that out."""
    course = decode(lambda window: right, **prices)
    windows = len(course.ratios)
    stake = BUDGET_STEPS + 2 * prices.get("setup_s", 0.0)
    assert course.ratios.sum() * LENGTH <= 1.03 * windows * LENGTH + stake
    assert course.ratios[windows // 2 :].mean() <= 1.03
    assert rested(course.stats) > 0


@pytest.mark.parametrize(
    ("prices", "most"),
    [({}, 0.45), ({"step_s": 0.0}, 0.3), ({"setup_s": 20.0}, 0.6), ({"cost": jumpy}, 0.6)],
)
def test_a_good_draft_is_used(prices: dict[str, float], most: float) -> None:
    course = decode(lambda window: correct_with_probability(0.9), windows=8, **prices)
    assert course.ratios.mean() < most
    assert rested(course.stats) < 0.05


def test_a_draft_that_turns_bad_is_left() -> None:
    course = decode(lambda window: correct_with_probability(0.9) if window < 8 else always_wrong)
    assert course.ratios[:8].mean() < 0.45
    assert course.ratios[8:].sum() * LENGTH < 12 * LENGTH * 1.02 + BUDGET_STEPS


def test_a_draft_that_turns_good_is_found_again() -> None:
    course = decode(lambda window: always_wrong if window < 8 else correct_with_probability(0.9), windows=24)
    assert course.ratios[:8].mean() < 1.06
    assert course.ratios[20:].mean() < 0.45


def test_noise_does_not_drive_a_good_draft_away() -> None:
    rng = np.random.default_rng(1)
    noise = np.where(rng.random(10**5) < 0.05, 5.0, 1.0) * rng.uniform(0.9, 1.1, 10**5)
    course = decode(lambda window: correct_with_probability(0.8), noise=noise.__getitem__)
    assert rested(course.stats) < 0.05
    assert course.ratios.mean() < 0.75


def test_noise_does_not_keep_a_bad_one() -> None:
    rng = np.random.default_rng(1)
    noise = np.where(rng.random(10**5) < 0.05, 5.0, 1.0)
    course = decode(lambda window: always_wrong, noise=noise.__getitem__)
    assert rested(course.stats) > 0.8
    assert course.ratios.mean() < 1.03 * 1.2 + 0.02, "one in twenty takes five times as long"


def test_a_machine_that_gets_slower_or_faster_is_followed() -> None:
    for change in (0.4, 2.0):
        factor = lambda step, change=change: 1.0 if step < 500 else change  # noqa: E731
        course = decode(lambda window: correct_with_probability(0.85), noise=factor, windows=24)
        assert course.ratios[-4:].mean() < 0.9 * change
