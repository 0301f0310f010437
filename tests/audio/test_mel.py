"""Tests of the mel filterbank, normalization and boundary frames against values known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harken.audio import LOG_MEL_FLOOR, LogMel, log_mel, mel_filters, normalize, pad_or_trim
from harken.audio.mel import CompiledFrames, NumpyFrames
from harken.errors import HarkenError, OptionError
from harken.types import WINDOW_SAMPLES


@pytest.mark.parametrize("n_mels", [0, -1, 129])
def test_number_of_bands_out_of_range_is_rejected(n_mels):
    with pytest.raises(OptionError, match=r"n_mels=-?\d+: allowed is 80 or 128"):
        LogMel(n_mels)


def test_silence_is_clamped_in_every_band():
    mel = LogMel()
    frames = np.concatenate([mel.feed(np.zeros(16_000, np.float32)), mel.flush()], axis=1)
    assert frames.shape == (80, 100)
    assert (frames == LOG_MEL_FLOOR).all()
    assert mel.ceiling == LOG_MEL_FLOOR
    assert (normalize(frames, mel.ceiling) == -1.5).all()


def test_first_frame_needs_201_samples():
    mel = LogMel()
    assert mel.feed(np.ones(200, np.float32)).shape == (80, 0)
    assert mel.feed(np.ones(1, np.float32)).shape == (80, 1)
    assert mel.feed(np.ones(158, np.float32)).shape == (80, 0)
    assert mel.feed(np.ones(1, np.float32)).shape == (80, 1)


def test_ceiling_includes_a_click_after_the_last_frame():
    samples = np.zeros(16_159, np.float32)
    samples[-1] = 1.0
    mel = LogMel()
    frames = np.concatenate([mel.feed(samples), mel.flush()], axis=1)
    reference = log_mel(samples, padding_samples=WINDOW_SAMPLES)
    assert frames.max() < mel.ceiling
    assert np.array_equal(normalize(frames, mel.ceiling), reference[:, :100])
    assert reference.max() == pytest.approx((mel.ceiling + 4) / 4)


def test_feed_after_flush_is_rejected():
    mel = LogMel()
    mel.feed(np.zeros(1_000, np.float32))
    mel.flush()
    with pytest.raises(HarkenError, match="a new recording needs a new LogMel"):
        mel.feed(np.zeros(1, np.float32))
    with pytest.raises(HarkenError, match="a new recording needs a new LogMel"):
        mel.flush()


def test_normalize_follows_the_reference_and_keeps_its_input():
    raw = np.array([[-10.0, -6.5, 1.0, 2.0]], np.float32)
    before = raw.copy()
    assert np.array_equal(normalize(raw, 2.0), np.array([[-0.5, -0.5, 1.25, 1.5]], np.float32))
    assert normalize(raw, 2.0).dtype == np.float32
    assert np.array_equal(raw, before)


def test_pad_or_trim_gives_the_requested_length():
    mel = np.ones((80, 10), np.float32)
    assert pad_or_trim(mel).shape == (80, 3000)
    assert np.array_equal(pad_or_trim(mel, 12)[0], [1] * 10 + [0] * 2)
    assert pad_or_trim(mel, 4).shape == (80, 4)
    assert pad_or_trim(mel[None], 12).shape == (1, 80, 12)
    assert pad_or_trim(mel).dtype == np.float32


@pytest.mark.parametrize("n_mels", [1, 80, 128])
@pytest.mark.parametrize("n_frames", [1, 15, 16, 17, 250])
def test_compiled_frames_equal_those_of_numpy(n_mels, n_frames):
    compiled = CompiledFrames(np.hanning(401)[:-1].astype(np.float32), mel_filters(n_mels))
    waveform = np.random.default_rng(1).normal(0, 0.1, 160 * (n_frames - 1) + 400 + 159).astype(np.float32)
    frames = compiled(waveform, 0)
    assert frames.shape == (n_mels, n_frames)
    assert np.abs(frames - NumpyFrames(n_mels)(waveform, 0)).max() < 2e-5
    assert np.array_equal(frames[:, -1:], compiled(waveform[160 * (n_frames - 1) :], 0)), (
        "bits of a frame alone"
    )
