"""Drafting at known costs, over long decodes: a good draft is used, and a useless one costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fakes.backends import EOT, ScriptedBackend, logits_of_texts
from fakes.clock import FakeClock
from fakes.drafts import FakeCandidateGenerator, correct_with_probability, open_drafts, unrestricted_rules
from harken.decoding import DecodeStats
from harken.decoding.draft_controller import BUDGET_STEPS, AcceptanceCounter, DraftController
from harken.decoding.generate import Row, WindowEnd, generate, pick_best

LENGTH = 150
Cost = Callable[[int, int], float]
Right = Callable[[int, int], bool]
WRONG = correct_with_probability(0.0)


@dataclass(frozen=True)
class Timing:
    """The time of each window with drafts over its time without, and the statistics."""

    ratios: np.ndarray
    stats: list[DecodeStats]


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
    windows: int = 12,
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
    controller, counter = DraftController(clock), AcceptanceCounter()
    ratios: list[float] = []
    stats: list[DecodeStats] = []
    for window in range(windows):
        texts = [[*rng.integers(0, EOT, LENGTH).tolist(), EOT] for _ in range(rows)]
        backend = ScriptedBackend(logits_of_texts(texts), 2 * LENGTH, clock=clock, cost=pass_s)
        session = backend.open_session(None, range(rows), 2 * LENGTH)
        logits = session.extend([[0]] * rows)
        draft = FakeCandidateGenerator(
            texts, right(window), claim=0.9, clock=clock, step_s=step_s, setup_s=setup_s
        )
        drafts = open_drafts(draft, rows=rows, controller=controller, counters=[counter])
        start_s = clock.now_s
        active = [Row(1, LENGTH + 1, WindowEnd(EOT)) for _ in range(rows)]
        generate(session, active, logits, unrestricted_rules(), pick_best, draft_session=drafts)
        assert [row.tokens for row in active] == texts
        ratios.append((clock.now_s - start_s) / (LENGTH * cost(rows, 1)))
        stats.append(drafts.stats)
    return Timing(np.array(ratios), stats)


def skipped_share(stats: list[DecodeStats]) -> float:
    """Return the share of steps without a draft."""
    return sum(window_stats.skipped_steps for window_stats in stats) / (len(stats) * LENGTH)


@pytest.mark.parametrize(
    ("right", "costs"),
    [
        (WRONG, {}),
        (WRONG, {"setup_s": 20.0}),
        (WRONG, {"rows": 3, "windows": 8}),
        (correct_with_probability(0.9), {"setup_s": 300.0}),
        (correct_with_probability(0.95), {"cost": steep, "step_s": 0.0}),
    ],
)
def test_useless_draft_stays_within_the_budget(right: Right, costs: dict[str, Any]) -> None:
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
def test_good_draft_is_used(costs: dict[str, Any], most: float) -> None:
    timing = decode(lambda window: correct_with_probability(0.9), windows=8, **costs)
    assert timing.ratios.mean() < most
    assert skipped_share(timing.stats) < 0.05


def test_draft_that_turns_is_dropped_and_used_again() -> None:
    good = correct_with_probability(0.9)
    timing = decode(lambda window: WRONG if 4 <= window < 12 else good, windows=28)
    assert timing.ratios[:4].mean() < 0.45
    assert timing.ratios[4:12].sum() * LENGTH < 8 * LENGTH * 1.02 + BUDGET_STEPS
    assert timing.ratios[24:].mean() < 0.45


@pytest.mark.parametrize(
    ("right", "least_skipped", "most_skipped", "most"),
    [(correct_with_probability(0.8), 0.0, 0.05, 0.75), (WRONG, 0.8, 1.0, 1.03 * 1.2 + 0.02)],
    ids=["good", "bad"],
)
def test_noise_neither_stops_a_good_draft_nor_keeps_a_bad_one(
    right: Right, least_skipped: float, most_skipped: float, most: float
) -> None:
    """One in twenty passes takes five times as long."""
    rng = np.random.default_rng(1)
    noise = np.where(rng.random(10**5) < 0.05, 5.0, 1.0) * rng.uniform(0.9, 1.1, 10**5)
    timing = decode(lambda window: right, noise=noise.__getitem__)
    assert least_skipped <= skipped_share(timing.stats) < most_skipped
    assert timing.ratios.mean() < most


def test_controller_adapts_to_the_speed_of_the_machine() -> None:
    for change in (0.4, 2.0):
        factor = lambda step, change=change: 1.0 if step < 500 else change  # noqa: E731
        timing = decode(lambda window: correct_with_probability(0.85), noise=factor, windows=24)
        assert timing.ratios[-4:].mean() < 0.9 * change
