"""The filter bank of speaker embeddings."""

from __future__ import annotations

import numpy as np
import pytest

from harken.speakers.fbank import N_BANDS, fbank, frame_count


def kaldi_fbank(samples: np.ndarray) -> np.ndarray:
    """Compute the filter bank frame by frame in float64, as Kaldi describes it."""
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    hertz = np.arange(256) * 31.25
    mel = 1127 * np.log(1 + hertz / 700)
    edges = 1127 * np.log(1 + np.array([20.0, 8000.0]) / 700)
    step = (edges[1] - edges[0]) / 81
    rows = []
    for start in range(0, len(samples) - 399, 160):
        frame = samples[start : start + 400].astype(np.float64)
        frame -= frame.mean()
        frame -= 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * window, 512)[:256]) ** 2
        triangles = np.array([1 - np.abs(mel - (edges[0] + (band + 1) * step)) / step for band in range(80)])
        rows.append(np.log(np.maximum(np.maximum(triangles, 0) @ power, np.finfo(np.float32).eps)))
    return np.array(rows) - np.mean(rows, axis=0)


@pytest.mark.parametrize("samples", [400, 559, 560, 16_000, 10_640, 24_321])
def test_frames_are_those_of_kaldi(samples):
    noise = np.random.default_rng(samples).normal(0, 0.1, samples).astype(np.float32)
    bands = fbank(noise)
    assert bands.dtype == np.float32
    assert bands.shape == (frame_count(samples), N_BANDS)
    # Rounding in float32; the largest difference seen is 1.3e-4.
    assert np.abs(bands - kaldi_fbank(noise)).max() < 3e-4


def test_loudness_does_not_matter():
    noise = np.random.default_rng(1).normal(0, 0.01, 16_000).astype(np.float32)
    assert np.abs(fbank(noise * 16) - fbank(noise)).max() < 1e-4


def test_digital_silence_has_no_bands():
    assert not fbank(np.zeros(8000, np.float32)).any()
