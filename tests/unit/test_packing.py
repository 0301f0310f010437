"""Windows packed with regions, and the way back to the recording."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.transcribe.chunking import SpeechPacker, TimeMap, pack_speech, total_frames


@pytest.mark.parametrize(
    ("regions", "windows"),
    [
        ([], []),
        ([(10, 50)], [((10, 50),)]),
        ([(0, 50), (100, 130)], [((0, 50), (100, 130))]),  # the silence between is left out
        ([(0, 50), (60, 70)], [((0, 70),)]),  # the silence between is kept
        ([(0, 50), (100, 151)], [((0, 50),), ((100, 151),)]),  # one frame too many
        ([(0, 50), (55, 100)], [((0, 100),)]),
        ([(0, 50), (55, 101)], [((0, 50),), ((55, 101),)]),  # with the silence it is too long
        ([(0, 90), (200, 205), (206, 209)], [((0, 90), (200, 209))]),
        ([(0, 250)], [((0, 100),), ((100, 200),), ((200, 250),)]),  # longer than a window
        ([(0, 20), (321, 330)], [((0, 20),), ((321, 330),)]),  # too far apart
    ],
)
def test_windows(regions, windows):
    assert list(pack_speech(regions, 100, max_gap_frames=10, flush_silence_frames=300)) == windows


def test_windows_come_as_soon_as_they_are_certain():
    packer = SpeechPacker(100, max_gap_frames=10, flush_silence_frames=300)
    assert packer.add((5, 60)) == []
    assert packer.start_frame == 5
    assert packer.advance_to(360) == []
    assert packer.advance_to(361) == [((5, 60),)]
    assert packer.start_frame is None
    assert packer.advance_to(5000) == []
    assert packer.flush() == []


def test_the_way_to_the_recording_and_back():
    line = TimeMap(((100, 150), (300, 310), (500, 600)))
    assert line.frames == 160
    assert [line.to_recording_start(p) for p in (0, 49.5, 50, 60, 61, 160, 900)] == [
        100,
        149.5,
        300,
        500,
        501,
        600,
        600,
    ]
    assert [line.to_recording_end(p) for p in (0, 49.5, 50, 60, 61, 160, 900)] == [
        100,
        149.5,
        150,
        310,
        501,
        600,
        600,
    ]
    assert [line.to_window(f) for f in (0, 100, 120.5, 200, 305, 499, 500, 999)] == [
        0,
        0,
        20.5,
        50,
        55,
        60,
        60,
        160,
    ]


def test_parts_of_a_window():
    line = TimeMap(((100, 150), (300, 310), (500, 600)))
    assert line.recording_spans_from(0) == line.spans
    assert line.recording_spans_from(50) == ((300, 310), (500, 600))
    assert line.recording_spans_from(55) == ((305, 310), (500, 600))
    assert line.recording_spans_from(160) == ()
    assert line.recording_spans(40, 61) == ((140, 150), (300, 310), (500, 501))
    assert line.recording_spans(7, 7) == ()


gaps_and_lengths = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 250)), max_size=30)


def regions_of(steps):
    regions, at = [], 0
    for gap, size in steps:
        regions.append((at + gap, at + gap + size))
        at += gap + size
    return regions


@given(steps=gaps_and_lengths)
def test_packing_loses_nothing_and_keeps_to_its_limits(steps):
    regions = regions_of(steps)
    windows = list(pack_speech(regions, 100, max_gap_frames=10, flush_silence_frames=300))
    spans = [span for window in windows for span in window]
    packed = [frame for start, end in spans for frame in range(start, end)]
    assert packed == sorted(set(packed))
    spoken = {frame for start, end in regions for frame in range(start, end)}
    assert spoken <= set(packed)
    bridged = {frame for (_, a), (b, _) in pairwise(regions) if b - a <= 10 for frame in range(a, b)}
    assert set(packed) - spoken <= bridged
    assert all(0 < total_frames(window) <= 100 for window in windows)
    assert all(b[0] - a[1] > 10 for window in windows for a, b in pairwise(window))


@given(steps=gaps_and_lengths.filter(bool), data=st.data())
def test_every_position_finds_its_way_back(steps, data):
    gaps = [(gap + 1, size) for gap, size in steps]
    line = TimeMap(tuple(regions_of(gaps)))
    position = data.draw(st.integers(0, line.frames))
    assert line.to_window(line.to_recording_start(position)) == position
    assert line.to_window(line.to_recording_end(position)) == position
    assert line.to_recording_end(position) <= line.to_recording_start(position)
    assert total_frames(line.recording_spans_from(position)) == line.frames - position
