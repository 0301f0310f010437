"""The filter bank and the embeddings of 3D-Speaker, as recorded by record_speakers.py."""

import numpy as np
import pytest
from goldens import read_arrays

from harken.audio import load_audio
from harken.speakers.embedding import EmbeddingModel, fbank
from real_models import CACHE, EXAMPLE, model_path


def voice(hertz, samples):
    """Return a vowel-like tone that glides up by a third, with some noise."""
    time = np.arange(samples) / 16000
    phase = 2 * np.pi * hertz * (time + time**2 / 6 * 16000 / samples)
    voice = sum(np.sin(k * phase) / k for k in range(1, 25))
    noise = np.random.default_rng(int(hertz)).normal(0, 0.01, samples)
    return (0.2 * voice + noise).astype(np.float32)


INPUTS = {
    "jfk": lambda: load_audio(EXAMPLE),
    "jfk 1.5 s": lambda: load_audio(EXAMPLE)[8000:32000],
    "jfk 2.025 s": lambda: load_audio(EXAMPLE)[40000:72400],  # one frame more than a segment of CAM++
    "jfk 0.3 s": lambda: load_audio(EXAMPLE)[60000:64800],
    "low tone": lambda: voice(110, 48000),
    "high tone": lambda: voice(220, 80077),
    "noise": lambda: np.random.default_rng(7).normal(0, 0.1, 40000).astype(np.float32),
}


GOLDEN = read_arrays("speakers")


@pytest.mark.parametrize("name", INPUTS)
def test_filter_bank_equals_the_recorded_one(name):
    wanted = GOLDEN[f"fbank {name}"]
    bands = fbank(INPUTS[name]())
    difference = np.abs(bands[np.linspace(0, len(bands) - 1, len(wanted)).astype(int)] - wanted)
    # Both round in float32, which shows in quiet bands of frames with one strong band: there, the recorded values are
    # up to 3e-3 from those in float64, and ours up to 2e-3.
    assert difference.max() < 4e-3
    assert difference.mean() < 3e-5


@pytest.mark.real
def test_embeddings_equal_the_recorded_ones():
    weights = model_path("speakers") / "campplus_cn_en_common.pt"
    model = EmbeddingModel(weights, threads=1, cache=CACHE / "graphs")
    embeddings = model.embed([make() for make in INPUTS.values()])
    wanted = np.stack([GOLDEN[f"embedding {name}"] for name in INPUTS])
    # The largest differences seen are 3e-6 and 1e-10.
    assert np.abs(embeddings - wanted).max() < 2e-5
    assert (np.sum((embeddings - wanted) ** 2, axis=1) / 2).max() < 1e-9  # the distance of the cosine
