"""Tests of the draft controller: measured costs, the budget, and long decodes at known costs."""

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
    START_BUDGET_STEPS,
    AcceptanceCounter,
    DraftController,
    LinearCost,
)
from harken.decoding.generate import EotOrLimit, Row, generate, pick_best

# --- linear cost -------------------------------------------------------------------------------------------


def fitted(*points: tuple[int, float]) -> LinearCost:
    line = LinearCost()
    for tokens, seconds in points:
        line.add(tokens, seconds)
    return line


def test_linear_cost_fits_a_line() -> None:
    line = fitted(*[(tokens, 2 + 0.3 * tokens) for tokens in (1, 5, 3, 13, 2, 8)] * 4)
    assert line.slope == pytest.approx(0.3)
    assert line.predict(1) == pytest.approx(2.3)
    assert line.predict(20) == pytest.approx(8)


def test_linear_cost_without_spread_assumes_the_prior_slope() -> None:
    assert fitted((1, 2.0), (1, 2.0)).slope == pytest.approx(0.2)
    wide = fitted((11, 4.0), (11, 4.0))
    assert wide.slope == pytest.approx(0.1 * wide.predict(1))
    assert wide.predict(11) == pytest.approx(4)


def test_linear_cost_is_never_negative_or_falling() -> None:
    falling = fitted(*[(1, 3.0), (9, 1.0)] * 3)
    assert falling.slope == 0
    assert falling.predict(1) == falling.predict(9) > 0
    assert fitted((1, 0.0), (9, 0.0)).predict(3) > 0


def test_outlier_counts_as_twice_the_prediction() -> None:
    line = fitted(*[(1, 1.0)] * MIN_MEASUREMENTS)
    assert line.add(1, 100.0) == pytest.approx(2.0)
    assert line.predict(1) == pytest.approx(1.25, rel=0.02)
    assert fitted((1, 100.0)).predict(1) == 100.0, "the first ones are taken as they come"


def test_old_measurements_decay() -> None:
    line = fitted(*[(1, 1.0)] * 50, *[(1, 2.0)] * 200)
    assert line.predict(1) == pytest.approx(2.0, rel=0.02)
    assert line.measurements == 250


# --- the tally ---------------------------------------------------------------------------------------------


def test_calibration_moves_from_prior_to_measured() -> None:
    counter = AcceptanceCounter()
    assert counter.calibration() == 1
    assert counter.calibration(0.3) == pytest.approx(0.3)
    for _ in range(400):
        counter.add(0.8, 0.4)
    assert counter.calibration() == pytest.approx(0.5, abs=0.1)
    assert counter.calibration(0.3) < counter.calibration(1.0)


def test_calibration_recovers_by_decay() -> None:
    counter = AcceptanceCounter()
    for _ in range(100):
        counter.add(1.0, 0.0)
    lost = counter.calibration()
    assert lost < 0.2
    for _ in range(200):
        counter.decay()
    assert counter.calibration() > 0.9


# --- the budget --------------------------------------------------------------------------------------------


def record(
    controller: DraftController,
    *,
    width: int = 1,
    produced: int = 1,
    verify_s: float = 1.0,
    draft_s: float = 0.0,
) -> None:
    controller.record_step(n_rows=1, width=width, n_new_tokens=produced, verify_s=verify_s, draft_s=draft_s)


def measured_controller() -> DraftController:
    controller = DraftController(FakeClock())
    for _ in range(MIN_MEASUREMENTS):
        assert not controller.may_draft()
        record(controller)
    return controller


def test_drafting_waits_for_plain_measurements() -> None:
    controller = measured_controller()
    assert controller.may_draft()
    assert controller.budget == pytest.approx(START_BUDGET_STEPS)


def test_budget_follows_gains_and_losses_up_to_its_maximum() -> None:
    controller = measured_controller()
    assert controller.may_draft()
    record(controller, width=4, produced=1, verify_s=1.0, draft_s=9.0)
    assert controller.budget == pytest.approx(START_BUDGET_STEPS - 9)
    record(controller, width=4, produced=4, verify_s=1.0, draft_s=1.0)
    assert controller.budget == pytest.approx(START_BUDGET_STEPS - 7)
    record(controller)
    assert controller.budget == pytest.approx(START_BUDGET_STEPS - 7 + BUDGET_REFILL_RATE)
    for _ in range(3):
        record(controller, width=13, produced=13, verify_s=1.0)
    assert controller.budget == pytest.approx(BUDGET_STEPS)


def test_fruitless_drafting_reduces_the_budget() -> None:
    controller = measured_controller()
    assert controller.may_draft()
    record(controller, draft_s=0.5)
    assert controller.budget == pytest.approx(START_BUDGET_STEPS + BUDGET_REFILL_RATE - 0.5)


def test_plain_steps_refill_an_empty_budget() -> None:
    controller = measured_controller()
    assert controller.may_draft()
    record(controller, width=2, draft_s=START_BUDGET_STEPS + 0.5)
    steps = 0
    while not controller.may_draft():
        record(controller)
        steps += 1
    assert steps == pytest.approx(0.5 / BUDGET_REFILL_RATE, abs=2)


def test_setup_has_to_pay_in_its_window_or_be_covered_by_the_budget() -> None:
    controller = measured_controller()
    assert controller.may_draft()

    def may_set_up(setup_s: float, n_tokens: float) -> bool:
        return controller.may_set_up(setup_s=setup_s, n_rows=1, n_tokens=n_tokens)

    assert may_set_up(START_BUDGET_STEPS - 1, 0), "the budget covers it"
    assert not may_set_up(20, 60), "the gain expected at first is too small"
    assert may_set_up(20, 90)
    for _ in range(40):
        record(controller, width=4, produced=3, verify_s=1.0, draft_s=0.5)
    assert controller.gain.calibration() == pytest.approx(0.5, abs=0.05)
    assert may_set_up(20, 0), "the budget has grown"
    record(controller, width=2, draft_s=100)
    assert not controller.may_draft()
    assert not may_set_up(20, 0)


def test_measured_setup_replaces_the_estimate() -> None:
    controller = measured_controller()
    assert controller.may_draft()
    assert controller.may_set_up(setup_s=4, n_rows=1, n_tokens=0)
    for seconds in (90, 40):  # the first time does not count
        controller.record_setup(seconds)
        record(controller, width=2, produced=2, draft_s=seconds)
    assert not controller.may_set_up(setup_s=4, n_rows=1, n_tokens=0)
    assert controller.setup_cost == pytest.approx(40)


def test_setup_is_no_part_of_the_expected_gain() -> None:
    controller = measured_controller()
    assert controller.may_draft()
    controller.record_setup(5)
    record(controller, width=4, produced=4, draft_s=6)
    assert controller.gain.accepted == pytest.approx(4 - 1 - 1)


def test_one_step_per_interval_is_plain() -> None:
    controller = measured_controller()
    for _ in range(2):
        for _ in range(PLAIN_STEP_INTERVAL):
            assert controller.may_draft()
            record(controller, width=3, produced=3)
        assert not controller.may_draft()
        record(controller)


def test_thresholds_are_cost_over_savings() -> None:
    controller = measured_controller()
    controller.record_draft(4, 1.2, 1)
    assert controller.draft_cost.predict(1) == pytest.approx(0.3)
    assert controller.draft_threshold(1) == pytest.approx(0.3 + 0.1)
    assert controller.may_draft()
    for width in (2, 8) * 20:
        record(controller, width=width, produced=width, verify_s=1 + 0.02 * (width - 1))
    assert controller.draft_threshold(1) == pytest.approx(0.32, abs=0.01)
    for rows in (1, 4) * 9:
        controller.record_draft(1, 0.3, rows)
    assert controller.draft_threshold(4) < controller.draft_threshold(1) + 3 * 0.02 + 0.01, (
        "rows share the draft's step"
    )


# --- long decodes at known costs ---------------------------------------------------------------------------

LENGTH = 150
Cost = Callable[[int, int], float]
Right = Callable[[int, int], bool]


@dataclass(frozen=True)
class Timing:
    """The times of windows, relative to plain decoding.

    Parameters
    ----------
    ratios : ndarray of shape (windows,)
        Time of each with drafts over its time without.
    stats : list of DecodeStats
    """

    ratios: np.ndarray
    stats: list[DecodeStats]

    @property
    def excess(self) -> float:
        """Number of passes lost beyond one in a hundred."""
        return float((self.ratios - 1.01).sum() * LENGTH)


def cheap(rows: int, width: int) -> float:
    """Return the cost of a pass that is little higher for many tokens than for one."""
    return 1 + 0.05 * (rows * width - 1)


def jumpy(rows: int, width: int) -> float:
    """Return the cost of a pass that has a faster kernel for a single token."""
    return 1.0 if rows * width == 1 else 1.5 + 0.01 * rows * width


def steep(rows: int, width: int) -> float:
    """Return the cost of a pass that is proportional to its tokens."""
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
) -> Timing:
    """Decode windows one after another; `right` gives the accuracy of the draft in each."""
    clock, steps = FakeClock(tick_s=1e-6), 0

    def pass_s(rows: int, width: int) -> float:
        nonlocal steps
        steps += 1
        return cost(rows, width) * noise(steps)

    rng = np.random.default_rng(0)
    controller, ratios, stats = DraftController(clock), [], []
    drafts = FakeDraftContext(lambda rows: [], controller)
    for window in range(windows):
        texts = [[*rng.integers(0, EOT, LENGTH).tolist(), EOT] for _ in range(rows)]
        session = ScriptedBackend(logits_of_texts(texts), 2 * LENGTH, clock=clock, cost=pass_s).open_session(
            None, range(rows), 2 * LENGTH
        )
        logits = session.extend([[0]] * rows)
        draft = FakeCandidateGenerator(
            texts, right(window), claim=0.9, clock=clock, step_s=step_s, setup_s=setup_s
        )
        drafts.make = lambda rows, draft=draft: [draft]
        draft_session = drafts.open_draft_session(range(rows), [[0]] * rows, [[]] * rows, unrestricted_rules())
        start_s = clock.now_s
        active = [Row(1, LENGTH + 1, EotOrLimit(EOT)) for _ in range(rows)]
        generate(session, active, logits, unrestricted_rules(), pick_best, draft_session=draft_session)
        assert [row.tokens for row in active] == texts
        ratios.append((clock.now_s - start_s) / (LENGTH * cost(rows, 1)))
        stats.append(draft_session.stats)
    return Timing(np.array(ratios), stats)


def skipped_share(stats: list[DecodeStats]) -> float:
    """Return the share of steps without a draft."""
    return sum(window_stats.skipped_steps for window_stats in stats) / (len(stats) * LENGTH)


@pytest.mark.parametrize(
    ("right", "costs"),
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
def test_useless_draft_stays_within_the_budget(right: Right, costs: dict[str, float]) -> None:
    """At most 3 % over a long decode, and the budget at its start."""
    timing = decode(lambda window: right, **costs)
    windows = len(timing.ratios)
    startup_loss = BUDGET_STEPS + 2 * costs.get("setup_s", 0.0)
    assert timing.ratios.sum() * LENGTH <= 1.03 * windows * LENGTH + startup_loss
    assert timing.ratios[windows // 2 :].mean() <= 1.03
    assert skipped_share(timing.stats) > 0


@pytest.mark.parametrize(
    ("costs", "most"),
    [({}, 0.45), ({"step_s": 0.0}, 0.3), ({"setup_s": 20.0}, 0.6), ({"cost": jumpy}, 0.6)],
)
def test_good_draft_is_used(costs: dict[str, float], most: float) -> None:
    timing = decode(lambda window: correct_with_probability(0.9), windows=8, **costs)
    assert timing.ratios.mean() < most
    assert skipped_share(timing.stats) < 0.05


def test_draft_that_turns_bad_is_dropped() -> None:
    timing = decode(lambda window: correct_with_probability(0.9) if window < 8 else always_wrong)
    assert timing.ratios[:8].mean() < 0.45
    assert timing.ratios[8:].sum() * LENGTH < 12 * LENGTH * 1.02 + BUDGET_STEPS


def test_draft_that_turns_good_is_used_again() -> None:
    timing = decode(lambda window: always_wrong if window < 8 else correct_with_probability(0.9), windows=24)
    assert timing.ratios[:8].mean() < 1.06
    assert timing.ratios[20:].mean() < 0.45


def test_noise_does_not_stop_a_good_draft() -> None:
    rng = np.random.default_rng(1)
    noise = np.where(rng.random(10**5) < 0.05, 5.0, 1.0) * rng.uniform(0.9, 1.1, 10**5)
    timing = decode(lambda window: correct_with_probability(0.8), noise=noise.__getitem__)
    assert skipped_share(timing.stats) < 0.05
    assert timing.ratios.mean() < 0.75


def test_noise_does_not_keep_a_bad_draft() -> None:
    rng = np.random.default_rng(1)
    noise = np.where(rng.random(10**5) < 0.05, 5.0, 1.0)
    timing = decode(lambda window: always_wrong, noise=noise.__getitem__)
    assert skipped_share(timing.stats) > 0.8
    assert timing.ratios.mean() < 1.03 * 1.2 + 0.02, "one in twenty takes five times as long"


def test_controller_adapts_to_the_speed_of_the_machine() -> None:
    for change in (0.4, 2.0):
        factor = lambda step, change=change: 1.0 if step < 500 else change  # noqa: E731
        timing = decode(lambda window: correct_with_probability(0.85), noise=factor, windows=24)
        assert timing.ratios[-4:].mean() < 0.9 * change
