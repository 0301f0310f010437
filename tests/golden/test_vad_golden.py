"""Speech probabilities compared with those of Silero's graph, as recorded by record_vad.py."""

import numpy as np
import pytest
from goldens import read_arrays

from harken.audio import load_audio
from harken.audio.silero import CHUNK_SAMPLES, SileroDetector
from harken.errors import BackendUnavailable
from real_models import EXAMPLE

TOLERANCE = 1e-5
"""Both round in float32, and the LSTM accumulates it. The largest difference seen is 5e-6, of numpy."""


def tones():
    """Return two seconds of an intermittent vowel-like tone, clipped, with an incomplete last chunk."""
    time = np.arange(2 * 16000 + 77) / 16000
    voice = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 20))
    return np.clip(voice * (np.sin(2 * np.pi * 1.5 * time) > 0), -1, 1).astype(np.float32)


INPUTS = {
    "jfk": lambda: load_audio(EXAMPLE),
    "jfk_quiet": lambda: load_audio(EXAMPLE)[40000:100000] * np.float32(0.003),
    "tones": tones,
    "silence": lambda: np.zeros(16000, np.float32),
}


def no_library():
    raise BackendUnavailable("the compiled library was not built")


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
@pytest.mark.parametrize("name", INPUTS)
def test_probabilities_equal_the_recorded_ones(name, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr("harken.audio.silero.load_library", no_library)
    samples = INPUTS[name]()
    probabilities = SileroDetector().feed(np.pad(samples, (0, -len(samples) % CHUNK_SAMPLES)))
    np.testing.assert_allclose(probabilities, read_arrays("vad")[name], rtol=0, atol=TOLERANCE)
