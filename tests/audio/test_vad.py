"""Voice activity: speech at any level, and the regions of probabilities; tests/golden has those of Silero itself."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.audio import load_audio
from harken.audio.silero import CHUNK_SAMPLES, CompiledProbabilities, NumpyProbabilities, SileroDetector
from harken.audio.vad import HOLD_CHUNKS, QUIET_LEVEL, RegionTracker, SpeechDetector, VadOptions
from harken.errors import HarkenError, OptionError
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE

CONTEXT_SAMPLES = 64


@pytest.fixture(scope="module")
def speech():
    return load_audio(EXAMPLE)


def in_chunks(samples):
    return np.pad(samples, (0, -len(samples) % CHUNK_SAMPLES))


def detect(samples, cuts=()):
    """Return the probabilities of samples that are fed in blocks."""
    detector = SpeechDetector()
    return np.concatenate([*map(detector.feed, np.split(samples, sorted(cuts))), detector.flush()])


def regions(probabilities, options=None, cuts=()):
    tracker = RegionTracker(options or VadOptions())
    bounds = [0, *sorted(min(cut, len(probabilities)) for cut in cuts), len(probabilities)]
    found = [region for a, b in pairwise(bounds) for region in tracker.feed(probabilities[a:b])]
    return found + tracker.flush(len(probabilities) * CHUNK_SAMPLES // 160)


@pytest.mark.parametrize("make", [CompiledProbabilities, NumpyProbabilities])
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 59), max_size=60))
def test_divisions_into_calls_change_no_bit(make, speech, cuts):
    def divided(cuts):
        probabilities_of = make()
        return np.concatenate(
            [
                probabilities_of(speech[a * CHUNK_SAMPLES : b * CHUNK_SAMPLES + CONTEXT_SAMPLES], b - a)
                for a, b in pairwise([0, *sorted({*cuts}), 60])
            ]
        )

    np.testing.assert_array_equal(divided(cuts), divided([]))


# --- speech at any level -----------------------------------------------------------------------------------


def speech_frames(samples):
    """Return the frames of 10 ms in which speech is found."""
    return {frame for start, end in regions(detect(samples)) for frame in range(start, end)}


@pytest.fixture(scope="module")
def normally(speech):
    """The frames of speech at its normal level."""
    return speech_frames(speech)


def in_16_bits(samples):
    return np.rint(samples * 32768).astype(np.float32) / np.float32(32768)


def noise(kind, peak, seconds=20):
    """Return noise of a spectrum that falls with the frequency, or dither as in a silent 16-bit file."""
    random = np.random.default_rng(1)
    drawn = random.standard_normal(seconds * SAMPLE_RATE)
    if kind == "dither":
        return np.rint(random.random(len(drawn)) + random.random(len(drawn)) - 1).astype(np.float32) / 32768
    frequencies = np.fft.rfftfreq(len(drawn), 1 / SAMPLE_RATE)
    frequencies[0] = frequencies[1]
    exponent = {"white": 0.0, "pink": 0.5, "brown": 1.0}[kind]
    coloured = np.fft.irfft(np.fft.rfft(drawn) / frequencies**exponent)
    return (peak / np.abs(coloured).max() * coloured).astype(np.float32)


@pytest.mark.parametrize("factor", [0.01, 0.003, 0.001])
@pytest.mark.parametrize("as_stored", [np.array, in_16_bits])
def test_quiet_speech_is_found(speech, normally, factor, as_stored):
    found = speech_frames(as_stored(speech * np.float32(factor)))
    assert len(found & normally) >= 0.95 * len(normally)  # the rest is at the edges of pauses
    assert min(found) == 0, "the first words are quieter than the rest"


@pytest.mark.parametrize("factor", [1.0, 0.3, 0.1])
def test_speech_at_normal_levels_is_heard_as_it_is(speech, factor):
    samples = speech * np.float32(factor)
    found, as_it_is = detect(samples), SileroDetector().feed(in_chunks(samples))
    assert regions(found) == regions(as_it_is)
    chunks = in_chunks(samples).reshape(-1, CHUNK_SAMPLES)
    loud = np.flatnonzero(np.ptp(chunks, axis=1) / 2 >= QUIET_LEVEL)
    near_loud = {i for first in loud for i in range(first, first + HOLD_CHUNKS + 1) if i < len(chunks)}
    assert len(near_loud) > 0.7 * len(chunks)
    np.testing.assert_array_equal(found[sorted(near_loud)], as_it_is[sorted(near_loud)])


def test_sound_that_is_never_quiet_or_in_doubt_has_silero_s_probabilities_to_the_bit(speech):
    samples = (speech + noise("white", 0.1, 11)[: len(speech)])[: 5 * SAMPLE_RATE]  # behind it there is a pause
    np.testing.assert_array_equal(detect(samples), SileroDetector().feed(in_chunks(samples)))


@pytest.mark.parametrize("pause_s", [0.2, 0.5, 3.0])
def test_quiet_speaker_is_found_behind_a_loud_one(speech, normally, pause_s):
    turn = np.pad(speech, (0, round(pause_s * SAMPLE_RATE)))
    found = speech_frames(np.concatenate([turn, turn * np.float32(0.005), turn]))
    for start in (0, len(turn) // 160, 2 * len(turn) // 160):
        assert len(found & {start + frame for frame in normally}) >= 0.9 * len(normally)


def test_quiet_speech_is_found_behind_a_click_and_on_a_constant_offset(speech, normally):
    quiet = speech * np.float32(0.003)
    with_click = quiet.copy()
    with_click[4000] = 0.9
    for samples in (with_click, quiet + np.float32(0.03)):
        assert len(speech_frames(samples) & normally) >= 0.9 * len(normally)


@pytest.mark.parametrize("kind", ["white", "pink", "brown", "dither"])
@pytest.mark.parametrize("peak_db", [-30, -41, -50, -60, -70, -85])
def test_noise_is_not_speech_at_any_level(kind, peak_db):
    assert regions(detect(in_16_bits(noise(kind, 10 ** (peak_db / 20))))) == []


def reverberant(samples, seconds, direct):
    """Return samples as in a room: the direct sound has this amplitude, its echoes, as noise that fades, 1 in all."""
    echoes = np.random.default_rng(0).standard_normal(round(seconds * SAMPLE_RATE))
    echoes *= np.exp(np.linspace(0, -6.9, len(echoes)))
    echoes /= np.linalg.norm(echoes)
    echoes[0] += direct
    n = 2 * len(samples)
    wet = np.fft.irfft(np.fft.rfft(samples, n) * np.fft.rfft(echoes, n))[: len(samples)]
    return (0.7 / np.abs(wet).max() * wet).astype(np.float32)


def test_more_reverberant_speech_is_found_than_by_silero(speech, normally):
    found = [len(speech_frames(reverberant(speech, 1.2, direct)) & normally) for direct in (0.6, 0.3, 0.0)]
    assert sum(found) > 0.45 * 3 * len(normally)  # Silero itself finds a seventh


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, 1e-30, 0.009, -0.5, 1.0])
def test_constant_samples_are_silence_with_finite_probabilities(value):
    probabilities = detect(np.full(2 * SAMPLE_RATE + 7, value, np.float32))
    assert np.all((probabilities >= 0) & (probabilities < 0.5))


@pytest.mark.parametrize("levels", [[1.0], [0.003], [1.0, 0.003, 0.03, 0.001]])
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 3 * 16000 + 123), max_size=40))
def test_block_boundaries_do_not_change_probabilities(speech, levels, cuts):
    samples = speech[: 3 * 16000 + 123]
    turns = np.repeat(levels, len(samples) // len(levels) + 1)[: len(samples)]
    samples = (samples * turns).astype(np.float32)
    np.testing.assert_array_equal(detect(samples, cuts=cuts), detect(samples))


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 5 * 16000), max_size=20))
def test_block_boundaries_do_not_change_probabilities_in_doubt(speech, cuts):
    samples = reverberant(speech, 1.2, 0.0)[: 5 * 16000 + 123]
    whole = detect(samples)
    assert not np.array_equal(whole, SileroDetector().feed(in_chunks(samples)))
    np.testing.assert_array_equal(detect(samples, cuts=cuts), whole)


def test_incomplete_chunk_is_returned_by_flush_and_nothing_is_fed_behind():
    detector = SpeechDetector()
    assert detector.feed(np.zeros(511, np.float32)).shape == (0,)
    assert detector.feed(np.zeros(2, np.float32)).shape == (1,)
    assert detector.flush().shape == (1,)
    assert SpeechDetector().flush().shape == (0,)
    with pytest.raises(HarkenError, match="flushed"):
        detector.feed(np.zeros(512, np.float32))


# --- regions -----------------------------------------------------------------------------------------------

# Chunks of 3.2 frames, ten of them 32 frames; thresholds 0.5 and 0.35.
PLAIN = {"min_speech_s": 0.1, "min_silence_s": 0.32, "speech_pad_s": 0.0}
PADDED = {"min_silence_s": 1.0, "speech_pad_s": 0.4}
SPLIT = {"min_silence_s": 0.5, "speech_pad_s": 0.1, "max_speech_s": 10.0}
SPEECH, QUIET, BETWEEN = 0.9, 0.1, 0.4


def of_runs(*runs):
    """Return probabilities of runs of (chunks, probability)."""
    return [probability for chunks, probability in runs for _ in range(chunks)]


@pytest.mark.parametrize(
    ("options", "runs", "expected"),
    [
        (PLAIN, [(20, QUIET)], []),
        (PLAIN, [(10, QUIET), (20, SPEECH), (20, QUIET)], [(32, 96)]),
        (PLAIN, [(20, SPEECH)], [(0, 64)]),
        (PLAIN, [(10, QUIET), (2, SPEECH), (20, QUIET)], []),  # too short
        (PLAIN, [(10, QUIET), (4, SPEECH), (20, QUIET)], [(32, 44)]),
        (PLAIN, [(10, QUIET), (20, BETWEEN), (20, QUIET)], []),  # never reaches the threshold
        (PLAIN, [(10, SPEECH), (20, BETWEEN), (20, QUIET)], [(0, 96)]),  # never falls below neg_threshold
        (PLAIN, [(10, SPEECH), (9, QUIET), (10, SPEECH), (20, QUIET)], [(0, 92)]),  # too short a silence
        (PLAIN, [(10, SPEECH), (10, QUIET), (10, SPEECH), (20, QUIET)], [(0, 32), (64, 96)]),
        # Between the thresholds speech does not go on.
        (PLAIN, [(10, SPEECH), (5, QUIET), (5, BETWEEN), (10, SPEECH)], [(0, 32), (64, 96)]),
        (PLAIN, [(10, SPEECH), (5, QUIET)], [(0, 48)]),  # ends in silence that is still short
        # Padding stays inside the recording; silence before the first speech counts without it: 0.976 s, 1.008 s.
        (PADDED, [(10, QUIET), (50, SPEECH), (10, QUIET)], [(0, 224)]),
        (PADDED, [(50, QUIET), (50, SPEECH), (50, QUIET)], [(120, 360)]),
        (PADDED, [(43, QUIET), (50, SPEECH), (5, QUIET)], [(0, 313)]),
        (PADDED, [(44, QUIET), (50, SPEECH), (5, QUIET)], [(100, 316)]),
        # Long speech is split at its longest silence: 10 frames behind 656 and before 684.
        (
            SPLIT,
            [(100, SPEECH), (5, QUIET), (100, SPEECH), (9, QUIET), (60, SPEECH), (3, QUIET), (90, SPEECH)],
            [(0, 666), (674, 1174)],
        ),
        # The rest of it is kept though it is shorter than speech must be.
        (
            SPLIT | {"min_speech_s": 1.0, "speech_pad_s": 0.0},
            [(295, SPEECH), (5, QUIET), (15, SPEECH), (50, QUIET)],
            [(0, 944), (960, 1008)],
        ),
        # Short silence at the ends does not exceed max_speech.
        (PADDED | {"max_speech_s": 10.0}, [(30, QUIET), (250, SPEECH), (30, QUIET)], [(0, 992)]),
        (PADDED | {"max_speech_s": 10.0}, [(30, QUIET), (260, SPEECH), (30, QUIET)], [(0, 968)]),  # not 1024
    ],
)
def test_regions_follow_two_thresholds_and_the_limits(options, runs, expected):
    assert regions(of_runs(*runs), VadOptions(**options)) == expected


def test_speaking_since_and_stable_until_follow_the_speech():
    tracker = RegionTracker(VadOptions(min_speech_s=0.1, min_silence_s=0.32, speech_pad_s=0.1))
    assert tracker.feed([QUIET] * 20) == []
    assert (tracker.speaking_since, tracker.stable_until_frames) == (None, 54)
    tracker.feed([SPEECH] * 3)
    assert tracker.speaking_since is None  # might be a click
    tracker.feed([SPEECH])
    assert (tracker.speaking_since, tracker.stable_until_frames) == (54, 54)
    assert tracker.feed([QUIET] * 9) == []
    assert tracker.feed([QUIET]) == [(54, 86)]
    assert (tracker.speaking_since, tracker.stable_until_frames) == (None, 98)


def test_option_that_another_one_forbids_is_refused_and_neg_threshold_follows_the_threshold():
    for option, value in (("speech_pad_s", 0.6), ("max_speech_s", 1.5)):
        with pytest.raises(OptionError, match=f"{option}="):
            VadOptions(**{option: value})
    assert VadOptions(threshold=0.5).neg_threshold == pytest.approx(0.35)
    assert VadOptions(threshold=0.1).neg_threshold == 0.01


@given(
    # Runs of constant probability, like speech and silence, with lengths that reach all limits.
    runs=st.lists(st.tuples(st.integers(1, 500), st.sampled_from([0.0, 0.1, 0.3, 0.4, 0.6, 1.0])), max_size=12),
    options=st.builds(
        VadOptions,
        threshold=st.sampled_from([0.3, 0.5]),
        min_speech_s=st.sampled_from([0.0, 0.1, 1.0]),
        min_silence_s=st.sampled_from([0.4, 1.0, 3.0]),
        speech_pad_s=st.sampled_from([0.0, 0.05, 0.2]),
        max_speech_s=st.sampled_from([5.0, 12.5, 29.0]),
    ),
    cuts=st.lists(st.integers(0, 6000), max_size=20),
)
def test_regions_are_ordered_bounded_and_announced_and_hold_all_long_speech(runs, options, cuts):
    probabilities = of_runs(*runs)
    tracker, found = RegionTracker(options), []
    for probability in probabilities:
        stable_until = tracker.stable_until_frames
        ended = tracker.feed([probability])
        assert all(start >= stable_until for start, _ in ended)
        assert tracker.stable_until_frames >= stable_until
        found += ended
    frames = len(probabilities) * CHUNK_SAMPLES // 160
    found += tracker.flush(frames)
    assert found == regions(probabilities, options) == regions(probabilities, options, cuts)
    edges = [edge for region in found for edge in region]
    assert edges == sorted(edges)
    assert all(0 <= start < end <= frames for start, end in found)
    assert all(end - start <= 100 * options.max_speech_s for start, end in found)
    covered = {frame for start, end in found for frame in range(start, end)}
    at = 0
    for chunks, level in runs:
        if level >= options.threshold and chunks * 0.032 >= options.min_speech_s:
            assert covered.issuperset(range(at * 16 // 5, (at + chunks) * 16 // 5))
        at += chunks
