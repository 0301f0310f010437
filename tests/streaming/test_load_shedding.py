"""Load shedding: the lag, the levels, and the recovery."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harken.streaming import StreamingConfig
from harken.streaming.config import NOISY_WINDOW_FRAMES, interpolated_presets, scale_window
from harken.streaming.load_shedding import (
    CATCH_UP_S,
    FIRST_REPORTED_LAG_S,
    LOAD_LEVELS,
    RECOVERY_S,
    LoadMonitor,
    apply_load_level,
)

FIXED = StreamingConfig(window_frames=200, hop_frames=50)


def run_updates(
    monitor: LoadMonitor, compute_s: Callable[[StreamingConfig], float], until_s: float, from_s: float = 0.0
) -> list[tuple[float, int]]:
    """Record updates as they come due, and return the times and levels of all changes."""
    now_s, changes = from_s, []
    while now_s < until_s:
        config = apply_load_level(monitor.level, FIXED)
        now_s += config.hop_frames / 100
        if monitor.record(now_s, compute_s(config)):
            changes.append((round(now_s, 3), monitor.level))
    return changes


# --- the queue ----------------------------------------------------------------------------------------------


def test_request_waits_for_the_one_before() -> None:
    monitor = LoadMonitor(FIXED)
    requests = ((1.0, 0.4, 0.4), (1.5, 0.7, 0.7), (2.0, 0.1, 0.3), (2.5, 0.1, 0.1), (9.0, 0.2, 0.2))
    for arrival_s, compute_s, lag_s in requests:
        monitor.record(arrival_s, compute_s)
        assert monitor.lag_s == pytest.approx(lag_s)


def test_lag_at_the_highest_level_is_reported_each_time_that_it_has_doubled() -> None:
    for max_level in (2, 3):
        monitor = LoadMonitor(FIXED, level=max_level, max_level=max_level)
        lags_s = [monitor.lag_s for second in range(1, 1001) if monitor.record(float(second), 2.0)]
        assert lags_s == [FIRST_REPORTED_LAG_S * 2**n for n in range(7)]


def test_level_rises_only_if_the_lag_of_a_slow_final_pass_stays() -> None:
    falling, staying = LoadMonitor(FIXED), LoadMonitor(FIXED)
    assert not falling.record(10.0, 1.5)
    assert run_updates(falling, lambda config: 0.2, 60, from_s=10.0) == []
    assert not staying.record(10.0, 3.0)
    assert run_updates(staying, lambda config: 0.49, 20, from_s=10.0)[0] == (10.0 + CATCH_UP_S, 1)
    assert run_updates(LoadMonitor(FIXED), lambda config: 0.51, 60, from_s=10.0)[0][1] == 1


# --- recovery -----------------------------------------------------------------------------------------------


def test_levels_fall_some_seconds_after_the_lag_is_gone() -> None:
    monitor = LoadMonitor(FIXED)
    assert [level for _, level in run_updates(monitor, lambda config: 3.0, 5)] == [1, 2, 3]
    lag_s = monitor.lag_s
    changes = run_updates(monitor, lambda config: 0.1, 200, from_s=5.0)
    assert [level for _, level in changes] == [2, 1, 0]
    first, *others = (time_s for time_s, _ in changes)
    assert first >= 5 + lag_s + RECOVERY_S - 1
    assert others == pytest.approx([first + n * (RECOVERY_S + 1) for n in (1, 2)]), "one update a second"


def test_level_stays_unless_every_update_is_early() -> None:
    monitor = LoadMonitor(FIXED)
    for arrival_s in (0.5, 1.0):
        monitor.record(arrival_s, 0.9)
    assert monitor.level == 1
    for second in range(3, 60):
        compute_s = 0.6 if second % 4 == 0 else 0.05  # more than half of a hop of level 0
        assert not monitor.record(float(second), compute_s)
    assert monitor.level == 1


# --- levels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_frames", [100, NOISY_WINDOW_FRAMES])
def test_each_level_encodes_less_audio_with_the_same_commit_rules(window_frames: int) -> None:
    for preset in interpolated_presets():
        config = scale_window(preset, window_frames)
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
