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
    length=st.sampled_from([0, 1, 159, 160, 200, 201, 399, 400, 401]) | st.integers(0, len(AUDIO)),
    cuts=st.lists(st.integers(0, len(AUDIO)), max_size=12),
    n_mels=st.sampled_from([80, 128]),
)
def test_frames_are_those_of_the_whole_recording_whatever_the_blocks(length, cuts, n_mels):
    samples = AUDIO[:length]
    frames, ceiling = incremental_mel(samples, cuts, n_mels)
    whole, whole_ceiling = incremental_mel(samples, [], n_mels)
    assert np.array_equal(frames, whole)
    assert ceiling == whole_ceiling
    assert frames.dtype == np.float32
    assert frames.shape == (n_mels, length // 160)
    if length:
        offline = log_mel(samples, n_mels, padding_samples=WINDOW_SAMPLES)
        assert np.array_equal(normalize(frames, ceiling), offline[:, : length // 160])
