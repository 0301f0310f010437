"""Properties of VAD: independent of block boundaries at any level, and regions in bounds for any probabilities."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.audio import load_audio
from harken.audio.vad import CHUNK_SAMPLES, RegionTracker, SpeechDetector, VadOptions
from real_models import EXAMPLE


@pytest.fixture(scope="module", params=["normal", "quiet", "loud and quiet in turns"])
def speech(request):
    samples = load_audio(EXAMPLE)[: 3 * 16000 + 123]
    turns = np.repeat([[1.0, 0.003, 0.03, 0.001]], len(samples) // 4 + 1, axis=1).reshape(-1)[: len(samples)]
    factor = {"normal": 1.0, "quiet": 0.003, "loud and quiet in turns": turns}[request.param]
    return (samples * factor).astype(np.float32)


@pytest.fixture(scope="module")
def expected(speech):
    detector = SpeechDetector()
    return np.concatenate([detector.feed(speech), detector.flush()])


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 3 * 16000 + 123), max_size=40))
def test_block_boundaries_do_not_change_probabilities(speech, expected, cuts):
    detector = SpeechDetector()
    found = [detector.feed(block) for block in np.split(speech, sorted(cuts))]
    np.testing.assert_array_equal(np.concatenate([*found, detector.flush()]), expected)


# Runs of constant probability, like speech and silence, with lengths that reach all limits.
levels = st.sampled_from([0.0, 0.1, 0.3, 0.4, 0.6, 1.0])
runs = st.lists(st.tuples(levels, st.integers(1, 500)), max_size=12)
options = st.builds(
    VadOptions,
    threshold=st.sampled_from([0.3, 0.5]),
    min_speech_s=st.sampled_from([0.0, 0.1, 1.0]),
    min_silence_s=st.sampled_from([0.4, 1.0, 3.0]),
    speech_pad_s=st.sampled_from([0.0, 0.05, 0.2]),
    max_speech_s=st.sampled_from([5.0, 12.5, 29.0]),
)


def recording(runs):
    probabilities = [level for level, chunks in runs for _ in range(chunks)]
    return probabilities, len(probabilities) * CHUNK_SAMPLES // 160


@given(runs=runs, options=options, cuts=st.lists(st.integers(0, 6000), max_size=20))
def test_block_boundaries_do_not_change_regions(runs, options, cuts):
    probabilities, frames = recording(runs)
    whole, divided = RegionTracker(options), RegionTracker(options)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(probabilities)), len(probabilities)]
    found = [region for a, b in pairwise(bounds) for region in divided.feed(probabilities[a:b])]
    assert found + divided.flush(frames) == whole.feed(probabilities) + whole.flush(frames)


@given(runs=runs, options=options)
def test_regions_are_ordered_bounded_and_announced(runs, options):
    probabilities, frames = recording(runs)
    tracker, found = RegionTracker(options), []
    for probability in probabilities:
        stable_until = tracker.stable_until_frames
        ended = tracker.feed([probability])
        assert all(start >= stable_until for start, _ in ended)
        assert tracker.stable_until_frames >= stable_until
        found += ended
    found += tracker.flush(frames)
    edges = [edge for region in found for edge in region]
    assert edges == sorted(edges)
    assert all(0 <= start < end <= frames for start, end in found)
    assert all(end - start <= 100 * options.max_speech_s for start, end in found)


@given(runs=runs, options=options)
def test_speech_is_in_a_region_unless_it_is_too_short(runs, options):
    probabilities, frames = recording(runs)
    tracker = RegionTracker(options)
    found = tracker.feed(probabilities) + tracker.flush(frames)
    at = 0
    for level, chunks in runs:
        if level >= options.threshold and chunks * 0.032 >= options.min_speech_s:
            inside = range(at * 16 // 5, (at + chunks) * 16 // 5)
            covered = {frame for start, end in found for frame in range(start, end)}
            assert covered.issuperset(inside)
        at += chunks
