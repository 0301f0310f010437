"""Tests of training windows: splitting and joining recordings, and choosing the held-out ones."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from audio_files import wav_bytes
from harken.manifests import Entry, read_entries
from harken.results import Word
from harken.training.options import DataOptions
from harken.training.windows import (
    MAX_PAUSE_S,
    MAX_SPEECH_S,
    SpeechSpan,
    TrainingRecording,
    TrainingWindow,
    choose_held_out,
    make_windows,
)

OPTIONS = DataOptions(shuffles=1, unpacked_fraction=0.0)


def recording(name, *spans, group="g", held_out=False):
    return TrainingRecording(
        entry=Entry(name=f"{group}/{name}", path=Path(name), text="", language="en"),
        held_out=held_out,
        spans=tuple(SpeechSpan(path=name, start_s=a, end_s=b) for a, b in spans),
        duration_s=spans[-1][1] if spans else 40.0,
    )


SHORT = [recording(f"{i}.wav", (0.0, 4.0 + i % 3)) for i in range(30)]


def test_short_recordings_fill_windows_without_loss():
    windows = [*make_windows(SHORT, OPTIONS)]
    assert Counter(span.path for window in windows for span in window.spans) == Counter(
        r.entry.path.name for r in SHORT
    )
    assert all(window.duration_s <= MAX_SPEECH_S for window in windows)
    longest_add_s = 6.0 + MAX_PAUSE_S
    assert all(window.duration_s > MAX_SPEECH_S - longest_add_s for window in windows[:-1])


def test_segments_of_one_recording_are_in_order_without_pauses():
    windows = [*make_windows([recording("a.wav", (0, 20), (21, 40), (41, 45), (45, 50))], OPTIONS)]
    spans = [(span.start_s, span.end_s, span.pause_s) for window in windows for span in window.spans]
    assert spans == [(0, 20, 0), (21, 40, 0), (41, 45, 0), (45, 50, 0)]
    assert [len(window.spans) for window in windows] == [1, 3]


def test_groups_and_held_out_recordings_are_not_mixed():
    other_group = [recording(f"h{i}.wav", (0.0, 4.0 + i % 3), group="h") for i in range(9)]
    measured = [recording(f"m{i}.wav", (0.0, 4.0 + i % 3), held_out=True) for i in range(9)]
    for window in make_windows([*SHORT, *other_group, *measured], OPTIONS):
        assert {span.path[0] in "hm" and span.path[0] for span in window.spans} == {
            "m" if window.held_out else window.group == "h" and "h"
        }


def test_each_shuffle_joins_differently_and_equal_options_equally():
    measured = [replace(r, held_out=True) for r in SHORT[:5]]
    options = DataOptions(shuffles=3, unpacked_fraction=0.3)
    windows = [*make_windows([*SHORT, *measured], options)]
    assert [window.key for window in windows] == [
        window.key for window in make_windows([*SHORT, *measured], options)
    ]
    assert len({window.key for window in windows}) == len(windows)
    trained = Counter(span.path for window in windows for span in window.spans if not window.held_out)
    assert set(trained.values()) == {3}
    held_out = Counter(span.path for window in windows for span in window.spans if window.held_out)
    assert set(held_out.values()) == {1}
    assert all(window.speed == 1 for window in windows if window.held_out)
    assert any(window.speed != 1 for window in windows)
    assert all(window.duration_s <= MAX_SPEECH_S + 0.02 for window in windows)


def test_unpacked_windows_hold_one_span():
    windows = [*make_windows(SHORT, DataOptions(shuffles=1, unpacked_fraction=1.0))]
    assert [len(window.spans) for window in windows] == [1] * len(SHORT)


@pytest.mark.parametrize(("fraction", "least", "most"), [(0.0, 0, 0), (0.2, 25, 55), (1.0, 200, 200)])
def test_windows_without_speech_are_subsampled(fraction, least, most):
    silent = [recording(f"{i}.wav") for i in range(200)]
    windows = [*make_windows(silent, DataOptions(shuffles=1, no_speech_fraction=fraction))]
    assert least <= len(windows) <= most
    assert all(window.no_speech and window.duration_s == MAX_SPEECH_S for window in windows)


def test_samples_match_span_times(tmp_path):
    for name, level in (("a.wav", 1000), ("b.wav", 2000)):
        (tmp_path / name).write_bytes(wav_bytes(np.full(16_000, level, np.int16)))
    spans = (
        SpeechSpan(path=str(tmp_path / "a.wav"), start_s=0.25, end_s=0.75, text="one"),
        SpeechSpan(path=str(tmp_path / "b.wav"), start_s=0.0, end_s=1.0, pause_s=0.5, text="two"),
    )
    window = TrainingWindow(spans=spans, group="g", language="en", held_out=False)
    samples = window.samples()
    assert len(samples) == 32_000
    assert [*window.span_times_s()] == [(0.0, 0.5, "one"), (1.0, 2.0, "two")]
    for (start_s, end_s, _), level in zip(window.span_times_s(), (1000, 2000), strict=True):
        np.testing.assert_allclose(samples[int(start_s * 16_000) : int(end_s * 16_000)], level / 32768)
    assert not samples[8_000:16_000].any()
    faster = replace(window, speed=1.25)
    assert len(faster.samples()) == pytest.approx(16_000 * faster.duration_s, abs=1)
    assert [*faster.span_times_s()][1][:2] == (0.8, 1.6)


def entries(speakers, group="g"):
    names = [(f"{group}/{speaker}{i}.wav", speaker) for speaker, n in speakers.items() for i in range(n)]
    return [Entry(name=name, path=Path(name), text="", speaker=speaker or None) for name, speaker in names]


def test_all_recordings_of_held_out_speakers_are_held_out():
    given = entries({f"s{i}": 3 for i in range(20)})
    chosen = choose_held_out(given, 0.1)
    assert len(chosen) == 6
    held_out_speakers = {entry.speaker for entry in chosen}
    assert held_out_speakers.isdisjoint(entry.speaker for entry in given if entry not in chosen)


def test_single_recordings_are_held_out_in_groups_with_one_speaker():
    given = [*entries({"x": 20}), *entries({"": 10}, "h")]
    chosen = choose_held_out(given, 0.1)
    assert sorted(entry.name[0] for entry in chosen) == ["g", "g", "h"]


def test_folder_without_manifest_is_searched_for_audio_files(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.wav", "deep/a.WAV", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    found = read_entries([tmp_path], print, needs_text=False)
    assert [entry.name.partition("/")[2] for entry in found] == ["b.wav", "deep/a.WAV"]
    assert {entry.text for entry in found} == {""}


def test_long_recordings_are_split_at_pauses():
    pytest.importorskip("torch", reason="fine-tuning takes PyTorch")
    from harken.training.finetune import SPEECH_PAD_S, split_at_pauses

    starts = np.cumsum([1.0 if i % 7 else 2.5 for i in range(60)])
    words = [Word(start_s=s, end_s=s + 0.8, text=f" w{i}", probability=1.0) for i, s in enumerate(starts)]
    windows = [*split_at_pauses("a.wav", words, 200.0)]
    assert " ".join(window.text or "" for window in windows) == " ".join(f"w{i}" for i in range(60))
    assert all(window.end_s - window.start_s <= MAX_SPEECH_S for window in windows)
    assert all(b.start_s - a.end_s == pytest.approx(1.7 - 2 * SPEECH_PAD_S) for a, b in pairwise(windows))
    close = [Word(start_s=i / 2, end_s=i / 2 + 0.5, text=f" w{i}", probability=1.0) for i in range(100)]
    assert (
        max(window.end_s - window.start_s for window in split_at_pauses("a.wav", close, 50.0)) <= MAX_SPEECH_S
    )
