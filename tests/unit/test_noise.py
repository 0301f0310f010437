"""How noisy a stream is: speech and noise of known power, and the windows that follow from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.audio.vad import CHUNK_SAMPLES
from harken.streaming.snr import SnrEstimator, window_frames_for_snr

CHUNKS_PER_SECOND = 16000 / CHUNK_SAMPLES


def noise(chunks, power_db, seed=0):
    rng = np.random.default_rng(seed)
    return (10 ** (power_db / 20) * rng.standard_normal(chunks * CHUNK_SAMPLES)).astype(np.float32)


def heard(*parts, its=None):
    """After parts of (samples, whether they are speech)."""
    its = its or SnrEstimator()
    for samples, speech in parts:
        its.feed(samples, [0.95 * speech] * (len(samples) // CHUNK_SAMPLES))
    return its.snr_db


@pytest.mark.parametrize("snr_db", [0, 5, 10, 20, 40])
def test_the_ratio_is_that_of_speech_to_noise(snr_db):
    speech = noise(100, -50 + snr_db) + noise(100, -50, seed=1)
    assert heard((noise(50, -50, seed=2), 0), (speech, 1)) == pytest.approx(snr_db, abs=1.5)


def test_noise_is_known_from_gaps_between_words_too():
    word, gap = noise(8, -20), noise(1, -50)
    assert heard(*[(word, 1), (gap, 1)] * 12) == pytest.approx(30, abs=1.5)


def test_what_is_muted_between_words_is_not_quiet():
    muted = np.zeros(200 * CHUNK_SAMPLES, np.float32)
    speech = noise(20, -30), 1
    hum = noise(20, -40, seed=1), 0
    assert heard((muted, 0), speech, hum, (muted, 0), speech, hum) == pytest.approx(10, abs=1.5)


def test_nothing_is_known_before_a_second_of_speech():
    its = SnrEstimator()
    assert heard((noise(1000, -60), 0), (noise(30, -20), 1), its=its) is None
    assert heard((noise(1, -20), 1), its=its) is not None


def test_silence_alone_has_a_ratio_too():
    assert heard((np.zeros(50 * CHUNK_SAMPLES, np.float32), 1)) == -10


def test_noise_that_ended_is_forgotten():
    its = SnrEstimator()
    loud = heard((noise(200, -30), 0), (noise(100, -20), 1), its=its)
    quiet = heard((noise(1900, -60), 0), its=its)
    assert loud == pytest.approx(10, abs=1.5)
    assert quiet == pytest.approx(40, abs=1.5)


def test_a_long_pause_does_not_forget_how_loud_somebody_speaks():
    its = SnrEstimator()
    before = heard((noise(200, -60), 0), (noise(100, -20), 1), its=its)
    assert heard((noise(20_000, -60), 0), its=its) == pytest.approx(before, abs=1.5)


@given(cuts=st.lists(st.integers(0, 60 * CHUNK_SAMPLES), max_size=20))
def test_it_is_the_same_however_samples_are_cut(cuts):
    samples = np.concatenate([noise(20, -50), noise(40, -20)])
    probabilities = [0.1] * 20 + [0.9] * 40
    whole, pieces = SnrEstimator(), SnrEstimator()
    whole.feed(samples, probabilities)
    fed = 0
    for piece in np.split(samples, sorted(cuts)):
        chunks = slice(fed // CHUNK_SAMPLES, (fed + len(piece)) // CHUNK_SAMPLES)
        pieces.feed(piece, probabilities[chunks])
        fed += len(piece)
    assert pieces.snr_db == whole.snr_db is not None


@pytest.mark.parametrize(
    ("snr_db", "before", "window"),
    [
        (None, 200, 200),
        (30.0, 200, 100),
        (18.0, 200, 200),
        (5.0, 200, 300),
        (24.0, 200, 200),
        (24.0, 100, 100),
        (20.0, 100, 200),
        (12.0, 200, 200),
        (12.0, 300, 300),
        (15.0, 300, 200),
        (30.0, 300, 100),
        (5.0, 100, 300),
    ],
)
def test_windows_follow_the_noise_and_do_not_flutter(snr_db, before, window):
    assert window_frames_for_snr(snr_db, before) == window


@given(snr_db=st.floats(-10, 90), before=st.sampled_from([100, 200, 300]))
def test_a_window_that_was_chosen_is_kept(snr_db, before):
    chosen = window_frames_for_snr(snr_db, before)
    assert window_frames_for_snr(snr_db, chosen) == chosen
