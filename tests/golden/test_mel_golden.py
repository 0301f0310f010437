"""Log-mel compared with that of openai-whisper, as recorded by record_whisper.py."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from harken.audio import LogMel, load_audio, log_mel, normalize
from harken.types import WINDOW_SAMPLES
from real_models import EXAMPLE

TOLERANCE = 1e-4
"""Both round in float32. The largest difference seen is 5e-5, in quiet bands of frames with one strong band."""


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "data" / "mel_jfk.npz") as recorded:
        return dict(recorded)


def test_recording_is_the_recorded_one(golden):
    sha = hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()
    assert golden["provenance"][2] == f"sha256 of examples/jfk.flac {sha}"


@pytest.mark.parametrize("n_mels", [80, 128])
def test_offline_mel_equals_the_recorded_reference(golden, n_mels):
    samples = load_audio(EXAMPLE)
    padded = log_mel(samples, n_mels, WINDOW_SAMPLES)
    assert padded.shape == (n_mels, 1100 + 3000)
    assert np.abs(padded[:, golden["frames"]] - golden[f"padded_{n_mels}"]).max() < TOLERANCE
    assert np.abs(padded.mean(axis=1) - golden[f"padded_means_{n_mels}"]).max() < 1e-5
    assert padded.max() == pytest.approx(golden[f"padded_max_{n_mels}"], abs=1e-6)

    plain = log_mel(samples, n_mels)
    assert plain.shape == (n_mels, 1100)
    assert np.abs(plain[:, -4:] - golden[f"plain_end_{n_mels}"]).max() < TOLERANCE


@pytest.mark.parametrize("n_mels", [80, 128])
def test_incremental_mel_equals_the_recorded_reference(golden, n_mels):
    log_mel = LogMel(n_mels)
    frames = np.concatenate([log_mel.feed(load_audio(EXAMPLE)), log_mel.flush()], axis=1)
    content = golden["frames"] < 1100
    difference = normalize(frames, log_mel.ceiling)[:, golden["frames"][content]]
    assert np.abs(difference - golden[f"padded_{n_mels}"][:, content]).max() < TOLERANCE
