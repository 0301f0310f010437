"""Log-mel compared with that of openai-whisper, as recorded by record_whisper.py."""

import numpy as np
import pytest
from goldens import read_arrays, sha256

from harken.audio import load_audio, log_mel
from harken.types import WINDOW_SAMPLES
from real_models import EXAMPLE

TOLERANCE = 1e-4
"""Both round in float32. The largest difference seen is 5e-5, in quiet bands of frames with one strong band."""


GOLDEN = read_arrays("mel_jfk")


def test_recording_is_the_recorded_one():
    assert GOLDEN["provenance"][2] == f"sha256 of examples/jfk.flac {sha256([EXAMPLE])}"


@pytest.mark.parametrize("n_mels", [80, 128])
def test_offline_mel_equals_the_recorded_reference(n_mels):
    samples = load_audio(EXAMPLE)
    padded = log_mel(samples, n_mels, WINDOW_SAMPLES)
    assert padded.shape == (n_mels, 1100 + 3000)
    assert np.abs(padded[:, GOLDEN["frames"]] - GOLDEN[f"padded_{n_mels}"]).max() < TOLERANCE
    assert np.abs(padded.mean(axis=1) - GOLDEN[f"padded_means_{n_mels}"]).max() < 1e-5
    assert padded.max() == pytest.approx(GOLDEN[f"padded_max_{n_mels}"], abs=1e-6)

    plain = log_mel(samples, n_mels)
    assert plain.shape == (n_mels, 1100)
    assert np.abs(plain[:, -4:] - GOLDEN[f"plain_end_{n_mels}"]).max() < TOLERANCE
