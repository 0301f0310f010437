"""How far behind a machine is, what it leaves out, and when it does everything again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harken.streaming import StreamingConfig
from harken.streaming.config import interpolated_presets, scale_window
from harken.streaming.load_shedding import (
    LOAD_LEVELS,
    RECOVERY_S,
    LoadLevel,
    LoadLevelChange,
    LoadMonitor,
    apply_load_level,
)
from harken.streaming.snr import CLEAN_WINDOW_FRAMES, NOISY_WINDOW_FRAMES

FIXED = StreamingConfig(window_frames=200, hop_frames=50)


def drive(
    load: LoadMonitor, compute_s: Callable[[StreamingConfig], float], until_s: float, from_s: float = 0.0
) -> list[tuple[float, int]]:
    """Have updates booked as they come due, and return when the level changed, and to what."""
    now_s, changes = from_s, []
    while now_s < until_s:
        setting = apply_load_level(load.level, FIXED)
        now_s += setting.hop_frames / 100
        if change := load.record(now_s, compute_s(setting)):
            assert change == LoadLevelChange(
                level=load.level, lag_s=load.lag_s, detail=LOAD_LEVELS[load.level].detail
            )
            changes.append((round(now_s, 3), change.level))
    return changes


# --- the queue ---------------------------------------------------------------------------------------------


def test_work_waits_for_the_work_before_it() -> None:
    load = LoadMonitor(FIXED)
    lags_s = []
    for arrival_s, compute_s in ((1.0, 0.4), (1.5, 0.7), (2.0, 0.1), (2.5, 0.1), (9.0, 0.2)):
        load.record(arrival_s, compute_s)
        lags_s.append(load.lag_s)
    assert lags_s == pytest.approx([0.4, 0.7, 0.3, 0.1, 0.2])


def test_where_time_stands_still_nothing_changes() -> None:
    load = LoadMonitor(FIXED)
    assert drive(load, lambda setting: 0.0, 3600) == []
    assert (load.level, load.lag_s) == (0, 0.0)


def test_a_machine_that_keeps_up_is_left_alone() -> None:
    assert drive(LoadMonitor(FIXED), lambda setting: 0.49, 600) == []


def test_one_late_update_changes_nothing_and_two_do() -> None:
    load = LoadMonitor(FIXED)
    assert load.record(1.0, 0.8) is None
    assert load.record(1.5, 0.1) is None, "it is early again"
    assert load.record(2.0, 0.8) is None
    change = load.record(2.5, 0.5)
    assert change == LoadLevelChange(level=1, lag_s=pytest.approx(0.8), detail="half as many updates")


def test_it_goes_down_a_level_at_a_time_and_ends_at_the_last() -> None:
    load = LoadMonitor(FIXED)
    changes = drive(load, lambda setting: 3.0, 60)
    assert [level for _, level in changes] == [1, 2, 3]
    assert load.lag_s > 30, "nothing is left out to hide that"


def test_finals_that_are_not_exact_leave_one_level_less() -> None:
    load = LoadMonitor(FIXED, max_level=2)
    assert [level for _, level in drive(load, lambda setting: 3.0, 60)] == [1, 2]


# --- and back ----------------------------------------------------------------------------------------------


def test_a_level_that_suffices_is_kept() -> None:
    load = LoadMonitor(FIXED)
    assert drive(load, lambda setting: 0.6, 600) == [(1.0, 1)], "at level 0 it would be late again"


def test_all_is_done_again_some_seconds_after_it_could_have_been() -> None:
    load = LoadMonitor(FIXED)
    assert [level for _, level in drive(load, lambda setting: 3.0, 20)] == [1, 2, 3]
    behind_s = load.lag_s
    changes = drive(load, lambda setting: 0.1, 200, from_s=20.0)
    assert [level for _, level in changes] == [2, 1, 0]
    assert changes[0][0] >= 20 + behind_s + RECOVERY_S - 1
    assert changes[1][0] - changes[0][0] == pytest.approx(RECOVERY_S + 1), "an update a second"
    assert changes[2][0] - changes[1][0] == pytest.approx(RECOVERY_S + 1)


def test_calm_has_to_last() -> None:
    load = LoadMonitor(FIXED)
    for arrival_s in (0.5, 1.0):
        load.record(arrival_s, 0.9)
    assert load.level == 1
    for second in range(3, 60):
        compute_s = 0.6 if second % 4 == 0 else 0.05  # more than half of a hop of level 0
        assert load.record(float(second), compute_s) is None
    assert load.level == 1


# --- what is left out --------------------------------------------------------------------------------------


def test_what_stays_is_left_out_last() -> None:
    assert LOAD_LEVELS[0] == LoadLevel(detail="all that was asked for")
    assert [level.exact_finals for level in LOAD_LEVELS] == [True, True, True, False]
    assert [level.shortest_window for level in LOAD_LEVELS] == [False, False, True, True]


@pytest.mark.parametrize("window_frames", [CLEAN_WINDOW_FRAMES, NOISY_WINDOW_FRAMES])
@pytest.mark.parametrize("setting", interpolated_presets())
def test_each_level_encodes_less_sound_a_second_and_holds_words_as_before(
    setting: StreamingConfig, window_frames: int
) -> None:
    setting = scale_window(setting, window_frames)
    levels = [apply_load_level(level, setting) for level in range(len(LOAD_LEVELS))]
    encoded = [level.window_frames / level.hop_frames for level in levels]
    beginnings = [level.max_window_frames / level.hop_frames for level in levels]
    assert levels[0] == setting
    assert encoded[0] > encoded[1] >= encoded[2] == encoded[3]
    assert beginnings[0] > beginnings[1] >= beginnings[2] == beginnings[3]
    for level in levels[1:]:
        assert level.hop_frames == 2 * setting.hop_frames
        assert level.look_ahead_frames >= min(50, setting.look_ahead_frames)
        assert (level.commit_delay_frames, level.local_agreement) == (
            setting.commit_delay_frames,
            setting.local_agreement,
        )


def test_in_frames() -> None:
    assert [
        (apply_load_level(level, FIXED).window_frames, apply_load_level(level, FIXED).hop_frames)
        for level in range(4)
    ] == [
        (200, 50),
        (200, 100),
        (150, 100),
        (150, 100),
    ]


@pytest.mark.parametrize(
    ("window", "hop", "wide", "doubled"),
    [(60, 60, 120, 120), (1000, 600, 1000, 950), (1000, 1000, 1000, 1000), (10, 10, 20, 20)],
)
def test_settings_at_the_edge_of_what_is_allowed(window: int, hop: int, wide: int, doubled: int) -> None:
    level = apply_load_level(1, StreamingConfig(window_frames=window, hop_frames=hop))
    assert (level.window_frames, level.hop_frames) == (wide, doubled)
