"""Drafting at known costs, over long decodes: a good draft is used, and a useless one costs next to nothing."""

import numpy as np
import pytest

from fakes.backends import EOT, ScriptedBackend, logits_of_texts
from fakes.clock import FakeClock
from fakes.drafts import FakeCandidateGenerator, correct_with_probability, open_drafts, unrestricted_rules
from harken.decoding.draft_controller import BUDGET_STEPS, AcceptanceCounter, DraftController, LinearCost
from harken.decoding.generate import Row, WindowEnd, generate, pick_best

LENGTH = 150
WRONG = correct_with_probability(0.0)


COSTS = {
    # The cost of a pass, by its tokens in all rows: many cost little more than one,
    "cheap": lambda tokens: 1 + 0.05 * (tokens - 1),
    # or there is a faster kernel for a single one,
    "jumpy": lambda tokens: 1.0 if tokens == 1 else 1.5 + 0.01 * tokens,
    # or it is proportional to them.
    "steep": float,
}


def decode(right, *, cost="cheap", windows=12, rows=1, step_s=0.1, setup_s=0.0, noise=lambda step: 1.0):
    """Decode windows one after another; `right` gives the accuracy of the draft in each.

    Returns the time of each with drafts over its time without, and the share of steps that had no draft.
    """
    clock, steps = FakeClock(tick_s=1e-6), 0

    def pass_s(rows, width):
        nonlocal steps
        steps += 1
        return COSTS[cost](rows * width) * noise(steps)

    rng = np.random.default_rng(0)
    controller, counter = DraftController(clock), AcceptanceCounter()
    ratios, skipped = [], 0
    for window in range(windows):
        texts = [[*rng.integers(0, EOT, LENGTH).tolist(), EOT] for _ in range(rows)]
        backend = ScriptedBackend(logits_of_texts(texts), 2 * LENGTH, clock=clock, cost=pass_s)
        session = backend.open_session(None, range(rows), 2 * LENGTH)
        logits = session.extend([[0]] * rows)
        draft = FakeCandidateGenerator(
            texts, right(window), claim=0.9, clock=clock, step_s=step_s, setup_s=setup_s
        )
        drafts = open_drafts(draft, controller=controller, counters=[counter])
        start_s = clock.now_s
        active = [Row((0,), LENGTH + 1, WindowEnd(EOT)) for _ in range(rows)]
        generate(session, active, logits, unrestricted_rules(), pick_best, draft_session=drafts)
        assert [row.tokens for row in active] == texts
        ratios.append((clock.now_s - start_s) / (LENGTH * COSTS[cost](rows)))
        skipped += drafts.stats.skipped_steps
    return np.array(ratios), skipped / (windows * LENGTH)


def test_costs_are_on_the_line_through_what_was_measured_and_an_outlier_counts_as_twice_it():
    cost, falling, alike = LinearCost(), LinearCost(), LinearCost()
    for tokens in (1, 4, 2, 8, 3):
        cost.add(tokens, 3 + 0.5 * tokens)
        falling.add(tokens, 20 - tokens)
        alike.add(4, 13.0)
    assert [cost.predict(tokens) for tokens in (1, 10)] == pytest.approx([3.5, 8])
    assert (falling.slope, alike.predict(4)) == (0, pytest.approx(13))
    assert alike.predict(1) == pytest.approx(
        13 / 1.3
    )  # where the slope is unknown, a token costs a tenth of the first
    assert [cost.add(4, 1000.0), cost.add(4, 6.0)] == pytest.approx([10, 6])


@pytest.mark.parametrize(
    ("right", "costs"),
    [
        (WRONG, {}),
        (WRONG, {"setup_s": 20.0}),
        (WRONG, {"rows": 3, "windows": 8}),
        (correct_with_probability(0.9), {"setup_s": 300.0}),
        (correct_with_probability(0.95), {"cost": "steep", "step_s": 0.0}),
    ],
)
def test_useless_draft_stays_within_the_budget(right, costs):
    """At most 3 % over a long decode, and the budget at its start."""
    ratios, skipped = decode(lambda window: right, **costs)
    startup_loss = BUDGET_STEPS + 2 * costs.get("setup_s", 0.0)
    assert ratios.sum() * LENGTH <= 1.03 * len(ratios) * LENGTH + startup_loss
    assert ratios[len(ratios) // 2 :].mean() <= 1.03
    assert skipped > 0


@pytest.mark.parametrize(
    ("costs", "most"),
    [({}, 0.45), ({"step_s": 0.0}, 0.3), ({"setup_s": 20.0}, 0.6), ({"cost": "jumpy"}, 0.6)],
)
def test_good_draft_is_used(costs, most):
    ratios, skipped = decode(lambda window: correct_with_probability(0.9), windows=8, **costs)
    assert ratios.mean() < most
    assert 3 < skipped * 8 * LENGTH < 60, "plain steps are measured first, and now and then"


def test_draft_that_turns_is_dropped_and_used_again():
    good = correct_with_probability(0.9)
    ratios, _ = decode(lambda window: WRONG if 4 <= window < 12 else good, windows=28)
    assert max(ratios[:4].mean(), ratios[24:].mean()) < 0.45
    assert ratios[4:12].sum() * LENGTH < 8 * LENGTH * 1.02 + BUDGET_STEPS


@pytest.mark.parametrize(
    ("right", "least_skipped", "most_skipped", "most"),
    [(correct_with_probability(0.8), 0.0, 0.05, 0.75), (WRONG, 0.8, 1.0, 1.03 * 1.2 + 0.02)],
    ids=["good", "bad"],
)
def test_noise_neither_stops_a_good_draft_nor_keeps_a_bad_one(right, least_skipped, most_skipped, most):
    """One in twenty passes takes five times as long."""
    rng = np.random.default_rng(1)
    noise = np.where(rng.random(10**5) < 0.05, 5.0, 1.0) * rng.uniform(0.9, 1.1, 10**5)
    ratios, skipped = decode(lambda window: right, noise=noise.__getitem__)
    assert least_skipped <= skipped < most_skipped
    assert ratios.mean() < most


@pytest.mark.parametrize("change", [0.4, 2.0])
def test_controller_adapts_to_the_speed_of_the_machine(change):
    ratios, _ = decode(
        lambda window: correct_with_probability(0.85),
        noise=lambda step: 1.0 if step < 500 else change,
        windows=24,
    )
    assert ratios[-4:].mean() < 0.9 * change
