"""Log-mel: values known by hand, compiled as in numpy, and bit-equal for all block sizes."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.audio import LOG_MEL_FLOOR, LogMel, log_mel, mel_filters, normalize, pad_or_trim
from harken.audio.mel import CompiledFrames, numpy_frames
from harken.errors import HarkenError, OptionError
from harken.types import WINDOW_SAMPLES


@pytest.mark.parametrize("n_mels", [0, -1, 129])
def test_number_of_bands_out_of_range_is_rejected(n_mels):
    with pytest.raises(OptionError, match=r"n_mels=-?\d+: allowed is 80 or 128"):
        LogMel(n_mels)


def mel_of(samples, cuts=(), n_mels=80):
    """Return raw frames and ceiling of samples that are fed in blocks."""
    mel = LogMel(n_mels)
    frames = [mel.feed(block) for block in np.split(samples, sorted(cuts))]
    return np.concatenate([*frames, mel.flush()], axis=1), mel.ceiling


def test_silence_is_clamped_in_every_band():
    frames, ceiling = mel_of(np.zeros(16_000, np.float32))
    assert frames.shape == (80, 100)
    assert (frames == LOG_MEL_FLOOR).all()
    assert ceiling == LOG_MEL_FLOOR
    assert (normalize(frames, ceiling) == -1.5).all()


def test_first_frame_needs_201_samples():
    mel = LogMel()
    assert mel.feed(np.ones(200, np.float32)).shape == (80, 0)
    assert mel.feed(np.ones(1, np.float32)).shape == (80, 1)
    assert mel.feed(np.ones(158, np.float32)).shape == (80, 0)
    assert mel.feed(np.ones(1, np.float32)).shape == (80, 1)


def test_ceiling_includes_a_click_after_the_last_frame():
    samples = np.zeros(16_159, np.float32)
    samples[-1] = 1.0
    frames, ceiling = mel_of(samples)
    reference = log_mel(samples, padding_samples=WINDOW_SAMPLES)
    assert frames.max() < ceiling
    assert np.array_equal(normalize(frames, ceiling), reference[:, :100])
    assert reference.max() == pytest.approx((ceiling + 4) / 4)


def test_nothing_is_fed_after_flush():
    mel = LogMel()
    mel.flush()
    for again in (lambda: mel.feed(np.zeros(1, np.float32)), mel.flush):
        with pytest.raises(HarkenError, match="a new recording needs a new LogMel"):
            again()


def test_normalize_and_pad_or_trim_follow_the_reference():
    raw = np.array([[-10.0, -6.5, 1.0, 2.0]], np.float32)
    before = raw.copy()
    assert np.array_equal(normalize(raw, 2.0), np.array([[-0.5, -0.5, 1.25, 1.5]], np.float32))
    assert normalize(raw, 2.0).dtype == np.float32
    assert np.array_equal(raw, before)
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
    frames = compiled(waveform)
    assert frames.shape == (n_mels, n_frames)
    assert np.abs(frames - numpy_frames(waveform, n_mels)).max() < 2e-5
    for transform in (compiled, partial(numpy_frames, n_mels=n_mels)):  # bits of a frame alone
        alone = transform(waveform[160 * (n_frames - 1) :])
        assert np.array_equal(transform(waveform)[:, -1:], alone)


# Starts near silence, where rounding errors would show.
AUDIO = np.random.default_rng(7).normal(0, 0.1, 60_000).astype(np.float32)
AUDIO *= np.linspace(0, 1, 60_000, dtype=np.float32) ** 4


@settings(max_examples=40)
@given(
    length=st.sampled_from([0, 1, 159, 160, 200, 201, 399, 400, 401]) | st.integers(0, len(AUDIO)),
    cuts=st.lists(st.integers(0, len(AUDIO)), max_size=12),
    n_mels=st.sampled_from([80, 128]),
)
def test_frames_are_those_of_the_whole_recording_whatever_the_blocks(length, cuts, n_mels):
    samples = AUDIO[:length]
    frames, ceiling = mel_of(samples, cuts, n_mels)
    whole, whole_ceiling = mel_of(samples, (), n_mels)
    assert np.array_equal(frames, whole)
    assert ceiling == whole_ceiling
    assert frames.dtype == np.float32
    assert frames.shape == (n_mels, length // 160)
    if length:
        offline = log_mel(samples, n_mels, padding_samples=WINDOW_SAMPLES)
        assert np.array_equal(normalize(frames, ceiling), offline[:, : length // 160])
