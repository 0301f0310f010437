"""Log-mel compared with openai-whisper: as recorded by record_mel.py, and with the package if installed."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from harken.audio import LogMel, load_audio, log_mel, mel, mel_filters, normalize
from harken.types import WINDOW_SAMPLES

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "jfk.flac"
SPEECH = Path(os.environ.get("HARKEN_SHARED", ROOT.parent / "shared")) / "audio"
TOLERANCE = 1e-4
"""Both round in float32. The largest difference seen is 5e-5, in quiet bands of frames with one strong band."""


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def implementation(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(mel, "_compiled_frames", lambda n_mels: None)
    elif not mel._compiled_frames(80):
        pytest.skip("the compiled library was not built")


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


@pytest.fixture(scope="module")
def reference():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("whisper.audio", reason="openai-whisper is not installed")


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters_equal_those_of_the_reference(reference, n_mels):
    assert np.abs(mel_filters(n_mels) - reference.mel_filters("cpu", n_mels).numpy()).max() < 1e-6


NOISE = np.random.default_rng(5)
SIGNALS = {
    "noise": lambda: NOISE.normal(0, 0.1, 50_000),
    "silence": lambda: np.zeros(20_000),
    "quiet noise": lambda: NOISE.normal(0, 1e-6, 20_000),
    "a click": lambda: np.eye(1, 20_001, 20_000)[0],
    "odd length": lambda: NOISE.uniform(-1, 1, 16_123),
}


@pytest.mark.parametrize("padding", [0, WINDOW_SAMPLES])
@pytest.mark.parametrize("name", SIGNALS)
def test_mel_equals_the_installed_reference(reference, name, padding):
    samples = SIGNALS[name]().astype(np.float32)
    wanted = reference.log_mel_spectrogram(samples, 80, padding).numpy()
    got = log_mel(samples, 80, padding)
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() < TOLERANCE


@pytest.mark.real
@pytest.mark.parametrize("n_mels", [80, 128])
def test_mel_of_speech_equals_the_installed_reference(reference, n_mels):
    recordings = sorted(SPEECH.glob("*/*.flac"))[::23]
    if not recordings:
        pytest.skip(f"no recordings in {SPEECH.name}/ beside the repository")
    for path in recordings:
        samples = load_audio(path)
        wanted = reference.log_mel_spectrogram(samples, n_mels, WINDOW_SAMPLES).numpy()
        assert np.abs(log_mel(samples, n_mels, WINDOW_SAMPLES) - wanted).max() < TOLERANCE, path.name
