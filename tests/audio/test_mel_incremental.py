"""Properties of incremental log-mel: bit-equal for all block sizes, and equal to the offline function."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.audio import LogMel, log_mel, normalize
from harken.types import WINDOW_SAMPLES

AUDIO = np.random.default_rng(7).normal(0, 0.1, 60_000).astype(np.float32)
AUDIO *= (
    np.linspace(0, 1, 60_000, dtype=np.float32) ** 4
)  # starts near silence, where rounding errors would show


def incremental_mel(samples: np.ndarray, cuts: list[int], n_mels: int) -> tuple[np.ndarray, float]:
    """Return raw frames and ceiling of samples that are fed in blocks."""
    mel = LogMel(n_mels)
    frames = [mel.feed(block) for block in np.split(samples, sorted(cuts))]
    return np.concatenate([*frames, mel.flush()], axis=1), mel.ceiling


@settings(max_examples=40)
@given(
    length=st.integers(0, len(AUDIO)),
    cuts=st.lists(st.integers(0, len(AUDIO)), max_size=12),
    n_mels=st.sampled_from([80, 128]),
)
def test_block_boundaries_do_not_change_the_frames(length, cuts, n_mels):
    samples = AUDIO[:length]
    frames, ceiling = incremental_mel(samples, cuts, n_mels)
    whole, whole_ceiling = incremental_mel(samples, [], n_mels)
    assert np.array_equal(frames, whole)
    assert ceiling == whole_ceiling


@settings(max_examples=30)
@given(length=st.integers(1, len(AUDIO)), cuts=st.lists(st.integers(0, len(AUDIO)), max_size=4))
def test_incremental_equals_offline(length, cuts):
    samples = AUDIO[:length]
    frames, ceiling = incremental_mel(samples, cuts, 80)
    offline = log_mel(samples, padding_samples=WINDOW_SAMPLES)
    assert np.array_equal(normalize(frames, ceiling), offline[:, : length // 160])


@settings(max_examples=25)
@given(gain=st.floats(1e-3, 1e3), start=st.integers(0, 50_000))
def test_gain_shifts_the_log_mel(gain, start):
    """Raw frames above the clamp shift by 2 log10(gain), as power is the square of amplitude."""
    samples = AUDIO[start : start + 8_000]
    plain, amplified = LogMel().feed(samples), LogMel().feed(samples * np.float32(gain))
    audible = (plain > -9.0) & (amplified > -9.0)
    assert np.allclose((amplified - plain)[audible], 2 * np.log10(gain), atol=2e-3)
