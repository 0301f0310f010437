"""What a word waits for, what a machine can keep, and what it says when it cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harken.audio.mel import LogMel
from harken.audio.vad import CHUNK_SAMPLES, RegionTracker, VadOptions
from harken.errors import OptionError
from harken.streaming import StreamingConfig, StreamOptions
from harken.streaming.config import (
    DELAYS,
    PRESETS,
    STEPS_BETWEEN_PRESETS,
    interpolated_presets,
    scale_window,
    with_overrides,
)
from harken.streaming.latency import (
    MAX_UTILISATION,
    LatencyBound,
    LatencyPlanner,
    UpdateCost,
    max_new_tokens,
    measure_update_cost,
    speech_detection_delay_s,
)
from harken.streaming.load_shedding import LOAD_LEVELS, apply_load_level
from harken.streaming.snr import CLEAN_WINDOW_FRAMES, NOISY_WINDOW_FRAMES, NORMAL_WINDOW_FRAMES
from harken.streaming.utterance import ALIGNATT_THRESHOLD_FRAMES
from harken.streaming.utterance import TRAILING_SILENCE_FRAMES as SILENCE_FRAMES
from harken.types import SAMPLE_RATE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")
FIXED = StreamingConfig(window_frames=200, hop_frames=50, history_frames=400, commit_delay_frames=90)
LAPTOP = UpdateCost(base_s=0.02, per_frame_s=0.0002, per_token_s=0.003)
STANDING_STILL = UpdateCost()


def times(cost: UpdateCost, factor: float) -> UpdateCost:
    return UpdateCost(
        base_s=cost.base_s * factor,
        per_frame_s=cost.per_frame_s * factor,
        per_token_s=cost.per_token_s * factor,
    )


def budget(cost: UpdateCost = LAPTOP, **changes: object) -> LatencyPlanner:
    return LatencyPlanner(cost=cost, options=StreamOptions(**changes))  # type: ignore[arg-type]


# --- what a word waits for ---------------------------------------------------------------------------------


def heard_at(setting: StreamingConfig) -> Iterator[tuple[int, int]]:
    """Sample at which each window can be heard, and the sample that it ends at, by feeding one at a time."""
    mel, frames, update = LogMel(), 0, 0
    for fed in range(1, 3 * SAMPLE_RATE):
        frames += mel.feed(np.zeros(1, np.float32)).shape[1]
        end = (update + 1) * setting.hop_frames  # from the first hop on: there windows grow
        if frames > end:  # one more than the window: what the convolutions see behind it
            yield fed, end * 160
            update += 1


@pytest.mark.parametrize("agreement", [1, 3])
@pytest.mark.parametrize("hold_frames", [0, 37])
def test_no_word_waits_longer_than_the_bound_and_one_waits_as_long(hold_frames: int, agreement: int) -> None:
    setting = StreamingConfig(
        window_frames=40,
        hop_frames=20,
        history_frames=0,
        commit_delay_frames=hold_frames,
        local_agreement=agreement,
    )
    updates = [*heard_at(setting)]
    bound = LatencyPlanner(min_speech_s=0, alignatt_threshold_frames=0).bound(setting)
    committing, showing = 0, 0
    for spoken in range(updates[0][1], updates[4][1]):  # where a word ends
        saying = [fed for fed, end in updates if end >= spoken + hold_frames * 160]
        committing = max(committing, saying[agreement - 1] - spoken)
        showing = max(showing, next(fed for fed, end in updates if end >= spoken) - spoken)
    # The longest wait is that of a word which ends one sample behind a window.
    assert committing == round(bound.wait_s * SAMPLE_RATE) - 1
    assert showing == round(bound.interim_wait_s * SAMPLE_RATE) - 1


def test_in_seconds() -> None:
    bound = LatencyPlanner().bound(FIXED)
    assert bound.interim_wait_s == pytest.approx(0.0125 + 0.5 + 0.16)
    assert bound.wait_s == pytest.approx(0.0125 + 0.5 + 0.9)
    assert LatencyPlanner().bound(replace(FIXED, local_agreement=3)).wait_s == pytest.approx(
        0.0125 + 3 * 0.5 + 0.9
    )


def test_a_word_near_the_edge_is_not_shown_yet_but_hold_covers_that() -> None:
    setting = StreamingConfig(hop_frames=50, commit_delay_frames=30)
    bound = LatencyPlanner(alignatt_threshold_frames=20).bound(setting)
    assert bound.interim_wait_s == pytest.approx(0.7125)
    assert bound.wait_s == pytest.approx(0.8125)
    assert LatencyPlanner(alignatt_threshold_frames=40).bound(setting).wait_s == pytest.approx(0.9125)


@pytest.mark.parametrize("min_speech_s", [0.0, 0.1, 0.128, 0.32, 1.0])
def test_an_utterance_begins_no_later_than_said(min_speech_s: float) -> None:
    regions, chunks = RegionTracker(VadOptions(min_speech_s=min_speech_s)), 0
    regions.feed([0.0] * 40)
    while regions.speaking_since is None:
        regions.feed([1.0])
        chunks += 1
    late_s = (
        CHUNK_SAMPLES / SAMPLE_RATE
    )  # speech began just after a chunk did, and did not suffice for that one
    assert speech_detection_delay_s(min_speech_s) == pytest.approx(
        chunks * CHUNK_SAMPLES / SAMPLE_RATE + late_s
    )


def test_the_beginning_of_an_utterance_counts_where_it_is_what_lasts_longest() -> None:
    quick = StreamingConfig(window_frames=20, hop_frames=10, commit_delay_frames=0)
    assert (
        LatencyPlanner(alignatt_threshold_frames=0).bound(quick).interim_wait_s
        == speech_detection_delay_s(0.1)
        == pytest.approx(0.16)
    )
    assert LatencyPlanner(alignatt_threshold_frames=0, min_speech_s=0).bound(
        quick
    ).interim_wait_s == pytest.approx(0.1125)
    assert LatencyPlanner(alignatt_threshold_frames=0).bound(FIXED).interim_wait_s == pytest.approx(0.5125)


# --- what is computed --------------------------------------------------------------------------------------


class Machine:
    """Takes as long as its cost says or a little longer, and much longer the first time and once more."""

    def __init__(self, cost: UpdateCost) -> None:
        self.cost, self.now_s, self.calls = cost, 0.0, 0
        self.windows: list[int] = []

    def clock(self) -> float:
        return self.now_s

    def update(self, window_frames: int, tokens: int) -> None:
        nth = self.calls % 6
        self.calls += 1
        self.windows.append(window_frames)
        self.now_s += self.cost.update_s(window_frames, tokens) * (10 if nth in (0, 3) else 1 + 0.01 * nth)


def test_a_machine_is_measured_by_its_usual_updates_and_not_by_its_first() -> None:
    machine = Machine(LAPTOP)
    cost = measure_update_cost(machine.update, machine.clock, repeats=5)
    assert machine.calls == 18
    for window_frames, tokens in ((100, 4), (300, 4), (600, 4), (1400, 4), (100, 24), (300, 12)):
        actual_s = LAPTOP.update_s(window_frames, tokens)
        assert actual_s <= cost.update_s(window_frames, tokens) <= 1.06 * actual_s


@pytest.mark.parametrize("name", DELAYS)
def test_the_longest_window_of_a_preset_lies_within_what_is_measured(name: str) -> None:
    machine = Machine(LAPTOP)
    measure_update_cost(machine.update, machine.clock)
    for frames in (CLEAN_WINDOW_FRAMES, NOISY_WINDOW_FRAMES):
        longest = scale_window(PRESETS[name], frames).max_window_frames
        assert min(machine.windows) <= longest <= max(machine.windows)


def test_between_two_windows_no_update_costs_more_than_said() -> None:
    now_s = 0.0

    def update(window_frames: int, tokens: int) -> None:
        nonlocal now_s
        now_s += 0.01 + 1e-7 * window_frames * (window_frames + 400) + 0.002 * tokens

    cost = measure_update_cost(update, lambda: now_s)
    for window_frames in range(100, 1401, 20):
        before_s = now_s
        update(window_frames, 10)
        assert now_s - before_s <= cost.update_s(window_frames, 10) + 1e-9


def test_nothing_falls_with_size_and_nothing_costs_anything_where_time_stands_still() -> None:
    ticks = iter(range(1000))
    falling = measure_update_cost(lambda window, tokens: None, lambda: -(float(next(ticks)) ** 2))
    assert falling.base_s >= 0
    assert falling.per_frame_s >= 0
    assert falling.per_token_s >= 0
    assert measure_update_cost(lambda window, tokens: None, float) == STANDING_STILL


def test_an_update_may_have_to_say_all_again_that_is_not_committed() -> None:
    assert max_new_tokens(FIXED) == 9  # 1.4 s at 6 tokens a second
    assert max_new_tokens(replace(FIXED, local_agreement=3)) == 15


def test_windows_that_adapt_are_budgeted_at_their_longest() -> None:
    still, adapting = (budget(adaptive=adaptive).bound(FIXED) for adaptive in (False, True))
    assert adapting.process_s - still.process_s == pytest.approx(LAPTOP.per_frame_s * 100)
    assert adapting.wait_s == still.wait_s
    assert budget(adaptive=False).bound(scale_window(FIXED, NOISY_WINDOW_FRAMES)) == adapting


def test_the_longest_window_is_that_of_a_beginning_and_it_is_what_is_budgeted() -> None:
    assert FIXED.max_window_frames == 600
    bound = budget(adaptive=False).bound(FIXED)
    assert bound.process_s == pytest.approx(LAPTOP.update_s(600, max_new_tokens(FIXED)))
    assert budget(adaptive=False).bound(replace(FIXED, history_frames=0)).process_s == pytest.approx(
        LAPTOP.update_s(200, max_new_tokens(FIXED))
    )


def test_a_bound_reads_as_a_line() -> None:
    bound = LatencyBound(wait_s=1.4125, interim_wait_s=0.5125, process_s=0.1, hop_s=0.5)
    assert str(bound) == (
        "shown within 0.61 s, committed within 1.51 s (1413 ms of waiting + 100 ms of computing)"
    )
    assert bound.total_s == pytest.approx(1.5125)
    assert bound.total_ms == 1513
    assert bound.utilisation == pytest.approx(0.2)
    assert bound.sustainable
    late = replace(bound, process_s=0.41)
    assert not late.sustainable
    assert late.overload_reason == "an update takes 410 ms, more than 80% of the 500 ms between two"


# --- presets -----------------------------------------------------------------------------------------------


def test_every_delay_has_a_preset() -> None:
    assert tuple(PRESETS) == DELAYS


def test_the_ladder_goes_down_step_by_step_through_the_presets() -> None:
    rungs = interpolated_presets()
    assert [rungs.index(preset) for preset in PRESETS.values()] == [
        3 * STEPS_BETWEEN_PRESETS,
        2 * STEPS_BETWEEN_PRESETS,
        STEPS_BETWEEN_PRESETS,
        0,
    ]
    waits_s = [LatencyPlanner().bound(rung).wait_s for rung in rungs]
    assert waits_s == sorted(waits_s, reverse=True)
    windows = [rung.window_frames for rung in rungs]
    assert windows == sorted(windows, reverse=True)


def test_what_options_say_replaces_what_the_delay_says() -> None:
    assert with_overrides(FIXED, StreamOptions()) == FIXED
    changed = with_overrides(
        FIXED,
        StreamOptions(
            window_frames=240, hop_frames=60, history_frames=500, commit_delay_frames=70, local_agreement=3
        ),
    )
    assert changed == StreamingConfig(
        window_frames=240, hop_frames=60, history_frames=500, commit_delay_frames=70, local_agreement=3
    )
    assert with_overrides(FIXED, StreamOptions(window_frames=40)) == replace(
        FIXED, window_frames=40, hop_frames=40
    )
    assert with_overrides(FIXED, StreamOptions(hop_frames=300)) == replace(
        FIXED, window_frames=300, hop_frames=300
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_frames", 0),
        ("window_frames", 41),
        ("window_frames", 2000),
        ("hop_frames", 0),
        ("hop_frames", 51),
        ("hop_frames", 251),
        ("hop_frames", 5000),
        ("history_frames", 3002),
        ("commit_delay_frames", -1),
        ("local_agreement", 0),
    ],
)
def test_an_option_that_is_not_allowed_is_named(name: str, value: int) -> None:
    with pytest.raises(OptionError, match=f"^{name}={value}: allowed is ") as error:
        with_overrides(FIXED, StreamOptions(**{name: value}))  # type: ignore[arg-type]
    assert error.value.field == name


@pytest.mark.parametrize("setting", interpolated_presets())
def test_windows_follow_the_noise_and_nothing_else_does(setting: StreamingConfig) -> None:
    quiet, usual, noisy = (
        scale_window(setting, frames)
        for frames in (CLEAN_WINDOW_FRAMES, NORMAL_WINDOW_FRAMES, NOISY_WINDOW_FRAMES)
    )
    assert usual == setting
    assert quiet.window_frames < setting.window_frames < noisy.window_frames
    assert min(window.look_ahead_frames for window in (quiet, noisy)) >= setting.hop_frames
    for window in (quiet, noisy):
        assert replace(window, window_frames=setting.window_frames) == setting


def test_windows_adapt_within_what_is_allowed() -> None:
    assert scale_window(FIXED, CLEAN_WINDOW_FRAMES).window_frames == 100
    assert scale_window(FIXED, NOISY_WINDOW_FRAMES).window_frames == 300
    tight = StreamingConfig(window_frames=60, hop_frames=60)
    assert scale_window(tight, CLEAN_WINDOW_FRAMES) == tight
    assert scale_window(StreamingConfig(window_frames=1000), NOISY_WINDOW_FRAMES).window_frames == 1000


# --- what can be kept --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DELAYS)
def test_a_name_stands_for_its_preset(name: str) -> None:
    plan = budget(delay=name).choose()
    assert plan.config == PRESETS[name]
    assert plan.bound == budget().bound(PRESETS[name])
    assert budget(delay=name, commit_delay_frames=5).choose().config.commit_delay_frames == 5


@pytest.mark.parametrize("factor", [0, 1, 2, 3, 4])
def test_milliseconds_are_kept_and_more_of_them_are_not_worse(factor: int) -> None:
    waits_s, windows = [], []
    least_ms = refused_at(times(LAPTOP, factor))
    for delay_ms in range(least_ms, 6000, 150):
        plan = budget(times(LAPTOP, factor), delay=str(delay_ms)).choose()
        assert plan.bound.total_ms <= delay_ms
        assert plan.bound.sustainable
        assert plan.bound == budget(times(LAPTOP, factor)).bound(plan.config)
        waits_s.append(plan.bound.total_s)
        windows.append(plan.config.window_frames)
    assert windows == sorted(windows)
    assert waits_s[0] < waits_s[-1]


def refused_at(cost: UpdateCost) -> int:
    """Milliseconds that the machine says it needs at least; it refuses one less."""
    with pytest.raises(OptionError, match="delay='1': allowed is at least ") as error:
        budget(cost, delay="1").choose()
    least_ms = int(re.findall(r"at least (\d+) ms", str(error.value))[0])
    with pytest.raises(OptionError, match=f"at least {least_ms} ms"):
        budget(cost, delay=str(least_ms - 1)).choose()
    return least_ms


def test_milliseconds_get_the_best_setting_that_keeps_them() -> None:
    high = budget().bound(PRESETS["high"])
    assert budget(delay=str(high.total_ms)).choose().config == PRESETS["high"]
    assert budget(delay="60000").choose().config == PRESETS["high"]
    shorter = budget(delay=str(high.total_ms - 1)).choose().config
    assert PRESETS["medium"].window_frames < shorter.window_frames < PRESETS["high"].window_frames
    low = budget().bound(PRESETS["low"])
    chosen = budget(delay=str(low.total_ms + 100)).choose()
    assert chosen.config.window_frames >= PRESETS["low"].window_frames
    assert low.total_s < chosen.bound.total_s <= low.total_s + 0.1, "what is left is spent on hold"


def test_what_is_said_about_the_setting_stays_where_milliseconds_are_kept() -> None:
    setting = budget(delay="2000", commit_delay_frames=40, hop_frames=60, history_frames=100).choose().config
    assert (setting.commit_delay_frames, setting.hop_frames, setting.history_frames) == (40, 60, 100)
    assert budget(delay="2000", window_frames=80).choose().config.window_frames == 80


def test_a_delay_that_cannot_be_kept_is_refused_with_one_that_can() -> None:
    least = budget().bound(PRESETS["minimal"])
    with pytest.raises(OptionError) as error:
        budget(delay="200").choose()
    assert error.value.allowed == (
        f"at least {least.total_ms} ms on this machine: {least.breakdown} at the smallest setting"
    )
    assert budget(delay=str(least.total_ms)).choose().config == PRESETS["minimal"]


def test_a_slow_machine_refuses_names_and_says_which_it_can() -> None:
    slow = replace(LAPTOP, base_s=0.3)
    least_ms = refused_at(slow)
    can = [name for name, preset in PRESETS.items() if budget(slow).bound(preset).sustainable]
    assert "high" in can
    assert "minimal" not in can
    with pytest.raises(OptionError) as error:
        budget(slow, delay="minimal").choose()
    update = budget(slow).bound(PRESETS["minimal"]).overload_reason
    assert error.value.allowed == f"{', '.join(can)}, or at least {least_ms} ms on this machine: {update}"
    assert budget(slow, delay="high").choose().config == PRESETS["high"]
    plan = budget(slow, delay=str(least_ms)).choose()
    assert plan.config.hop_frames > PRESETS["minimal"].hop_frames, "fewer updates are what it can keep up"
    assert plan.bound.utilisation <= MAX_UTILISATION


def test_a_machine_that_can_keep_no_name_says_so() -> None:
    with pytest.raises(
        OptionError, match=r"^delay='low': allowed is at least [0-9]+ ms on this machine: an update"
    ):
        budget(times(LAPTOP, 3), delay="low").choose()


@pytest.mark.parametrize("delay", ["low", "2000"])
def test_a_machine_that_is_too_slow_for_anything_says_so(delay: str) -> None:
    with pytest.raises(
        OptionError, match=r"none on this machine, with this model: an update takes [0-9]+ ms, more"
    ):
        budget(times(LAPTOP, 100), delay=delay).choose()


# --- the page ----------------------------------------------------------------------------------------------


def rows(name: str) -> list[list[str]]:
    """Rows of the page's tables that begin with a name, cell by cell, without units."""
    lines = re.findall(rf"^\| {name} \| (.*) \|$", PAGE, re.MULTILINE)
    return [re.sub(r"(?<=\d) s\b", "", line).split(" | ") for line in lines]


@pytest.mark.parametrize("name", DELAYS)
def test_the_page_has_the_settings_and_what_words_wait_for(name: str) -> None:
    preset, bound = PRESETS[name], LatencyPlanner().bound(PRESETS[name])
    frames = (
        preset.window_frames,
        preset.hop_frames,
        preset.look_ahead_frames,
        preset.history_frames,
        preset.max_window_frames,
        preset.commit_delay_frames,
    )
    setting, waits = rows(name)
    assert setting == [*(f"{its / 100:g}" for its in frames), str(preset.local_agreement)]
    assert waits[:2] == [f"{bound.interim_wait_s:.4f}", f"{bound.wait_s:.4f}"]
    terms = [
        float(first) * float(second or 1) for first, second in re.findall(r"([\d.]+)(?: x ([\d.]+))?", waits[2])
    ]
    assert sum(terms) == pytest.approx(bound.wait_s)


def test_the_page_says_how_much_sound_is_kept_from_the_decoder_and_how_much_silence_it_hears() -> None:
    margin_s = f"{ALIGNATT_THRESHOLD_FRAMES / 100:g} s"
    assert f"*m* is {ALIGNATT_THRESHOLD_FRAMES} frames, so words that are shown wait {margin_s} longer" in PAGE
    assert f"it listens to the last {margin_s} of the sound" in PAGE
    assert all(preset.commit_delay_frames >= ALIGNATT_THRESHOLD_FRAMES for preset in PRESETS.values())
    assert f"{SILENCE_FRAMES / 100:g} s of silence is heard behind the sound" in PAGE
    noisiest = scale_window(PRESETS["high"], NOISY_WINDOW_FRAMES).max_window_frames
    assert f"half of *W* more: {noisiest / 100:g} s for high" in PAGE
    assert f"up to the {PRESETS['high'].commit_delay_frames / 100:g} s of high" in PAGE


@pytest.mark.parametrize("level", range(len(LOAD_LEVELS)))
def test_the_page_has_what_less_work_comes_to(level: int) -> None:
    setting = apply_load_level(level, PRESETS["low"])
    bound = LatencyPlanner().bound(setting)
    ((_, heard, waits),) = rows(str(level))
    assert heard == f"{setting.window_frames / 100:g}, {setting.hop_frames / 100:g}"
    assert waits == f"{bound.interim_wait_s:.4f}, {bound.wait_s:.4f}"


@pytest.mark.parametrize(("delay", "base_s"), [("200", 0.02), ("minimal", 0.2), ("low", 2.0)])
def test_the_page_has_refusals_as_they_are(delay: str, base_s: float) -> None:
    with pytest.raises(OptionError) as error:
        budget(replace(LAPTOP, base_s=base_s), delay=delay).choose()
    assert f"\n{error.value}\n" in PAGE
