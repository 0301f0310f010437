"""Latency bounds, measured costs, presets, the choice of a configuration for a delay, and what load changes of it."""

import re
from dataclasses import asdict, replace

import numpy as np
import pytest

from fakes.clock import FakeClock
from harken.audio.mel import LogMel
from harken.errors import OptionError
from harken.streaming import StreamingConfig, StreamOptions, latency
from harken.streaming.config import DELAYS, PRESETS, config_in_noise, interpolated_presets, with_overrides
from harken.streaming.latency import LatencyPlanner, UpdateCost, measure_update_cost
from harken.streaming.load_shedding import (
    CATCH_UP_S,
    FIRST_REPORTED_LAG_S,
    LOAD_LEVELS,
    RECOVERY_S,
    LoadMonitor,
    apply_load_level,
    highest_level,
)
from harken.types import SAMPLE_RATE

FIXED = StreamingConfig(window_frames=200, hop_frames=50, history_frames=400, commit_delay_frames=90)
LAPTOP = UpdateCost(base_s=0.02, per_frame_s=0.0002, per_token_s=0.003)


def scaled(cost, factor):
    return UpdateCost(**{name: factor * seconds for name, seconds in asdict(cost).items()})


def planner(cost=LAPTOP, **changes):
    return LatencyPlanner(cost=cost, options=StreamOptions(**changes))


# --- waiting ------------------------------------------------------------------------------------------------


def window_times(config):
    """Yield the sample at which each window is complete and the sample at its end, feeding one sample at a time."""
    mel, frames, update = LogMel(), 0, 0
    for fed in range(1, 3 * SAMPLE_RATE):
        frames += mel.feed(np.zeros(1, np.float32)).shape[1]
        end = (update + 1) * config.hop_frames  # from the first hop on: windows grow
        if frames > end:  # the convolutions read one frame after the window
            yield fed, end * 160
            update += 1


@pytest.mark.parametrize("local_agreement", [1, 3])
@pytest.mark.parametrize("commit_delay_frames", [0, 37])
def test_bound_is_the_longest_wait_of_any_word(monkeypatch, commit_delay_frames, local_agreement):
    monkeypatch.setattr(latency, "ALIGNATT_THRESHOLD_FRAMES", 0)
    rules = {"commit_delay_frames": commit_delay_frames, "local_agreement": local_agreement}
    config = StreamingConfig(window_frames=40, hop_frames=20, history_frames=0, **rules)
    updates = [*window_times(config)]
    bound = LatencyPlanner(min_speech_s=0).bound(config)
    longest_commit, longest_interim = 0, 0
    for word_end in range(updates[0][1], updates[4][1]):
        committed_at = [fed for fed, end in updates if end >= word_end + commit_delay_frames * 160]
        longest_commit = max(longest_commit, committed_at[local_agreement - 1] - word_end)
        longest_interim = max(longest_interim, next(fed for fed, end in updates if end >= word_end) - word_end)
    # The longest wait is that of a word that ends one sample after a window.
    assert longest_commit == round(bound.wait_s * SAMPLE_RATE) - 1
    assert longest_interim == round(bound.interim_wait_s * SAMPLE_RATE) - 1


# --- computing ----------------------------------------------------------------------------------------------


def test_measured_cost_ignores_warm_up_and_outliers():
    """Updates take up to 5 % longer than they cost, the first and one outlier 10 times as long."""
    clock, calls = FakeClock(), 0

    def update(window_frames, tokens):
        nonlocal calls
        nth, calls = calls % 4, calls + 1
        clock.spend(LAPTOP.update_s(window_frames, tokens) * (10 if nth in (0, 2) else 1 + 0.01 * nth))

    cost = measure_update_cost(update, clock)
    for window_frames, tokens in ((100, 4), (300, 4), (600, 4), (1400, 4), (100, 24), (300, 12)):
        actual_s = LAPTOP.update_s(window_frames, tokens)
        assert actual_s <= cost.update_s(window_frames, tokens) <= 1.06 * actual_s


# --- presets ------------------------------------------------------------------------------------------------


def test_options_override_the_preset():
    assert with_overrides(FIXED, StreamOptions()) == FIXED
    fields = {"window_frames": 240, "hop_frames": 60, "history_frames": 500}
    fields |= {"commit_delay_frames": 70, "local_agreement": 3}
    assert with_overrides(FIXED, StreamOptions(**fields)) == StreamingConfig(**fields)
    for given in ({"window_frames": 40}, {"hop_frames": 300}):  # the other one follows
        both = dict.fromkeys(("window_frames", "hop_frames"), *given.values())
        assert with_overrides(FIXED, StreamOptions(**given)) == replace(FIXED, **both)


@pytest.mark.parametrize(
    ("options", "name", "allowed"),
    [
        *(({"window_frames": 41}, "window_frames", ""), ({"hop_frames": 251}, "hop_frames", "")),
        ({"local_agreement": 0}, "local_agreement", ""),
        # A delay is a name or milliseconds.
        *(
            ({"delay": delay}, "delay", "")
            for delay in ("0", "60001", "9" * 5000, "-5", "5.5", "", 0, True, None)
        ),
        # An error about two options names one that was given.
        ({"pause_s": 0.5}, "pause_s", "at least sentence_pause_s=0.8"),
        ({"sentence_pause_s": 2.0}, "sentence_pause_s", "pause_s=1.5"),
        ({"sentence_pause_s": 3.0, "pause_s": 2.0}, "pause_s", "at least sentence_pause_s=3"),
    ],
)
def test_error_names_the_option_that_is_not_allowed(options, name, allowed):
    with pytest.raises(OptionError, match=f"^{name}=.*: allowed is ") as error:
        with_overrides(FIXED, StreamOptions(**options))
    assert error.value.field == name
    assert allowed in error.value.allowed


# --- the choice of a configuration --------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0, 1, 2, 3, 4])
def test_delay_in_milliseconds_is_kept_and_longer_delays_get_longer_windows(factor):
    cost = scaled(LAPTOP, factor)
    delays_ms = range(lowest_delay_ms(cost), 6000, 350)
    plans = [planner(cost, delay=str(delay_ms)).choose() for delay_ms in delays_ms]
    for delay_ms, plan in zip(delays_ms, plans, strict=True):
        assert plan.bound.total_ms <= delay_ms
        assert plan.bound.sustainable
        assert plan.bound == planner(cost).bound(plan.config)
    windows = [plan.config.window_frames for plan in plans]
    assert windows == sorted(windows)
    assert plans[0].bound.total_s < plans[-1].bound.total_s


def lowest_delay_ms(cost):
    """Return the least milliseconds that the machine accepts, and check that it refuses one less."""
    with pytest.raises(OptionError, match="delay='1': allowed is at least ") as error:
        planner(cost, delay="1").choose()
    least_ms = int(re.findall(r"at least (\d+) ms", str(error.value))[0])
    with pytest.raises(OptionError, match=f"at least {least_ms} ms"):
        planner(cost, delay=str(least_ms - 1)).choose()
    return least_ms


def test_delay_in_milliseconds_gets_the_best_configuration_that_keeps_it():
    high = planner().bound(PRESETS["high"])
    assert planner(delay=str(high.total_ms)).choose().config == PRESETS["high"]
    assert planner(delay="60000").choose().config == PRESETS["high"]
    shorter = planner(delay=str(high.total_ms - 1)).choose().config
    assert PRESETS["medium"].window_frames < shorter.window_frames < PRESETS["high"].window_frames
    low = planner().bound(PRESETS["low"])
    chosen = planner(delay=str(low.total_ms + 100)).choose()
    assert chosen.config.window_frames >= PRESETS["low"].window_frames
    assert low.total_s < chosen.bound.total_s <= low.total_s + 0.1, "the commit delay uses the rest"


# --- the load level to start with ---------------------------------------------------------------------------


@pytest.mark.parametrize("finals", ["exact", "streamed"])
@pytest.mark.parametrize("name", DELAYS)
def test_named_delay_is_its_preset_at_the_first_level_that_the_machine_can_keep(name, finals):
    levels = []
    for factor in (0, 1, 2, 3, 4, 6, 8, 12, 100):
        machine = planner(scaled(LAPTOP, factor), delay=name, finals=finals)
        plan = machine.choose()
        assert plan.config == PRESETS[name]
        assert plan.bound == machine.bound(plan.config, plan.level)
        assert plan.bound.sustainable or plan.level == highest_level(finals)
        assert not any(machine.bound(plan.config, level).sustainable for level in range(plan.level))
        levels.append(plan.level)
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (0, highest_level(finals))
    assert planner(delay=name, commit_delay_frames=5).choose().config.commit_delay_frames == 5


def test_best_effort_starts_with_the_nearest_delay_that_the_machine_can_keep():
    """It leaves work out before it gives a longer delay."""
    assert planner(delay="200", best_effort=True).choose().config == PRESETS["minimal"]
    slow = scaled(LAPTOP, 4)
    nearest = planner(slow, delay="200", best_effort=True).choose()
    assert nearest.bound.sustainable
    assert nearest.bound.total_ms <= lowest_delay_ms(slow)
    for preset in PRESETS.values():
        for level in range(len(LOAD_LEVELS)):
            bound = planner(slow).bound(preset, level)
            assert not bound.sustainable or bound.total_s >= nearest.bound.total_s
    slow = scaled(LAPTOP, 5)
    with pytest.raises(OptionError):
        planner(slow, delay="4500").choose()
    plan = planner(slow, delay="4500", best_effort=True).choose()
    assert plan.level > 0
    assert plan.bound.sustainable
    assert 4400 < plan.bound.total_ms <= 4500


# --- the load of a session that goes on ----------------------------------------------------------------------

UNHURRIED = StreamingConfig(window_frames=200, hop_frames=50)


def run_updates(monitor, compute_s, until_s, from_s=0.0):
    """Record updates as they come due, and return the times and levels of all changes."""
    now_s, changes = from_s, []
    while now_s < until_s:
        config = apply_load_level(monitor.level, UNHURRIED)
        now_s += config.hop_frames / 100
        if monitor.record(now_s, compute_s(config)):
            changes.append((round(now_s, 3), monitor.level))
    return changes


def test_request_waits_for_the_one_before():
    monitor = LoadMonitor(UNHURRIED)
    requests = ((1.0, 0.4, 0.4), (1.5, 0.7, 0.7), (2.0, 0.1, 0.3), (2.5, 0.1, 0.1), (9.0, 0.2, 0.2))
    for arrival_s, compute_s, lag_s in requests:
        monitor.record(arrival_s, compute_s)
        assert monitor.lag_s == pytest.approx(lag_s)


def test_lag_at_the_highest_level_is_reported_each_time_that_it_has_doubled():
    for max_level in (2, 3):
        monitor = LoadMonitor(UNHURRIED, level=max_level, max_level=max_level)
        lags_s = [monitor.lag_s for second in range(1, 1001) if monitor.record(float(second), 2.0)]
        assert lags_s == [FIRST_REPORTED_LAG_S * 2**n for n in range(7)]


def test_level_rises_only_if_the_lag_of_a_slow_final_pass_stays():
    falling, staying = LoadMonitor(UNHURRIED), LoadMonitor(UNHURRIED)
    assert not falling.record(10.0, 1.5)
    assert run_updates(falling, lambda config: 0.2, 60, from_s=10.0) == []
    assert not staying.record(10.0, 3.0)
    assert run_updates(staying, lambda config: 0.49, 20, from_s=10.0)[0] == (10.0 + CATCH_UP_S, 1)
    assert run_updates(LoadMonitor(UNHURRIED), lambda config: 0.51, 60, from_s=10.0)[0][1] == 1


def test_levels_fall_some_seconds_after_the_lag_is_gone():
    monitor = LoadMonitor(UNHURRIED)
    assert [level for _, level in run_updates(monitor, lambda config: 3.0, 5)] == [1, 2, 3]
    lag_s = monitor.lag_s
    changes = run_updates(monitor, lambda config: 0.1, 200, from_s=5.0)
    assert [level for _, level in changes] == [2, 1, 0]
    first, *others = (time_s for time_s, _ in changes)
    assert first >= 5 + lag_s + RECOVERY_S - 1
    assert others == pytest.approx([first + n * (RECOVERY_S + 1) for n in (1, 2)]), "one update a second"


def test_level_stays_unless_every_update_is_early():
    monitor = LoadMonitor(UNHURRIED)
    for arrival_s in (0.5, 1.0):
        monitor.record(arrival_s, 0.9)
    assert monitor.level == 1
    for second in range(3, 60):
        compute_s = 0.6 if second % 4 == 0 else 0.05  # more than half of a hop of level 0
        assert not monitor.record(float(second), compute_s)
    assert monitor.level == 1


@pytest.mark.parametrize("noisy", [False, True])
def test_each_level_encodes_less_audio_with_the_same_commit_rules(noisy):
    for preset in interpolated_presets():
        config = config_in_noise(preset) if noisy else preset
        levels = [apply_load_level(level, config) for level in range(len(LOAD_LEVELS))]
        assert levels[0] == config
        for frames in ("window_frames", "max_window_frames"):  # of later updates, and of the first ones
            encoded = [getattr(level, frames) / level.hop_frames for level in levels]
            assert encoded[0] > encoded[1] >= encoded[2] == encoded[3]
        for level in levels[1:]:
            assert level.hop_frames == 2 * config.hop_frames
            assert level.look_ahead_frames >= min(50, config.look_ahead_frames)
            assert level.commit_delay_frames == config.commit_delay_frames
            assert level.local_agreement == config.local_agreement
