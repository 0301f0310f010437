"""What a stream keeps of its samples: the recent ones, and an estimate of signal to noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.audio.vad import CHUNK_SAMPLES
from harken.streaming.snr import SnrEstimator, window_frames_for_snr
from harken.streaming.stream import SampleBuffer


def noise(chunks, power_db, seed=0):
    rng = np.random.default_rng(seed)
    return (10 ** (power_db / 20) * rng.standard_normal(chunks * CHUNK_SAMPLES)).astype(np.float32)


def snr_after(*parts, estimator=None):
    """Return the estimate after parts of (samples, 1 for speech or 0)."""
    estimator = estimator or SnrEstimator()
    for samples, speech in parts:
        estimator.feed(samples, [0.95 * speech] * (len(samples) // CHUNK_SAMPLES))
    return estimator.snr_db


@pytest.mark.parametrize("snr_db", [0, 5, 10, 20, 40])
def test_estimate_is_the_ratio_of_speech_to_noise(snr_db):
    speech = noise(100, -50 + snr_db) + noise(100, -50, seed=1)
    assert snr_after((noise(50, -50, seed=2), 0), (speech, 1)) == pytest.approx(snr_db, abs=1.5)


def test_gaps_between_words_suffice_for_the_noise():
    word, gap = noise(8, -20), noise(1, -50)
    assert snr_after(*[(word, 1), (gap, 1)] * 12) == pytest.approx(30, abs=1.5)


def test_digital_silence_does_not_count_as_noise():
    muted = np.zeros(200 * CHUNK_SAMPLES, np.float32)
    speech = noise(20, -30), 1
    hum = noise(20, -40, seed=1), 0
    assert snr_after((muted, 0), speech, hum, (muted, 0), speech, hum) == pytest.approx(10, abs=1.5)


def test_noise_that_ended_decays():
    estimator = SnrEstimator()
    noisy = snr_after((noise(200, -30), 0), (noise(100, -20), 1), estimator=estimator)
    clean = snr_after((noise(1900, -60), 0), estimator=estimator)
    assert noisy == pytest.approx(10, abs=1.5)
    assert clean == pytest.approx(40, abs=1.5)


@given(cuts=st.lists(st.integers(0, 60 * CHUNK_SAMPLES), max_size=20))
def test_estimate_does_not_depend_on_the_blocks(cuts):
    samples = np.concatenate([noise(20, -50), noise(40, -20)])
    probabilities = [0.1] * 20 + [0.9] * 40
    whole, split = SnrEstimator(), SnrEstimator()
    whole.feed(samples, probabilities)
    fed = 0
    for piece in np.split(samples, sorted(cuts)):
        chunks = slice(fed // CHUNK_SAMPLES, (fed + len(piece)) // CHUNK_SAMPLES)
        split.feed(piece, probabilities[chunks])
        fed += len(piece)
    assert split.snr_db == whole.snr_db is not None


def test_window_follows_the_noise_with_hysteresis():
    for snr_db, current, window in (
        (None, 200, 200),
        (30.0, 200, 200),
        (5.0, 200, 300),
        (12.0, 200, 200),
        (12.0, 300, 300),
        (15.0, 300, 200),
    ):
        assert window_frames_for_snr(snr_db, current) == window


@given(
    lengths=st.lists(st.integers(0, 50), max_size=12),
    reads=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), min_size=12, max_size=12),
)
def test_samples_are_addressed_by_their_number_in_the_stream(
    lengths: list[int], reads: list[tuple[int, int]]
) -> None:
    samples = np.arange(sum(lengths), dtype=np.float32)
    buffer, discarded = SampleBuffer(), 0
    for (first, length), block in zip(reads, np.split(samples, np.cumsum(lengths)), strict=False):
        buffer.add(block)
        assert buffer.end == (block[-1] + 1 if len(block) else buffer.end)
        start = discarded + first % (buffer.end - discarded + 1)
        np.testing.assert_array_equal(
            buffer.between(start, start + length), samples[: buffer.end][start : start + length]
        )
        buffer.discard_before(start)
        buffer.discard_before(discarded)
        discarded = start
        np.testing.assert_array_equal(buffer.between(start, buffer.end), samples[start : buffer.end])


def test_discarded_samples_are_freed() -> None:
    buffer = SampleBuffer()
    for _ in range(100):
        buffer.add(np.zeros(1000, np.float32))
        buffer.discard_before(buffer.end - 10)
    assert buffer.end == 100_000
    rest = buffer.between(buffer.end - 10, buffer.end)
    assert rest.base is not None
    assert len(rest.base) == 10, "a view would keep all samples"
    with pytest.raises(AssertionError, match="discarded"):
        buffer.between(buffer.end - 11, buffer.end)
