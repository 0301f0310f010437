"""Speech probabilities compared with Silero's graph: as recorded by record_vad.py, and live if installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from vad_inputs import INPUTS, reference

from harken.audio.silero import SileroDetector

TOLERANCE = 1e-5
"""Both round in float32, and the LSTM accumulates it. The largest difference seen is 2e-6."""


def detect(samples):
    detector = SileroDetector()
    return np.concatenate([detector.feed(samples), detector.flush()])


@pytest.mark.parametrize("name", INPUTS)
def test_probabilities_equal_the_recorded_ones(name):
    with np.load(Path(__file__).parent / "data" / "vad.npz") as golden:
        np.testing.assert_allclose(detect(INPUTS[name]()), golden[name], rtol=0, atol=TOLERANCE)


def test_recorded_probabilities_separate_speech_from_silence():
    with np.load(Path(__file__).parent / "data" / "vad.npz") as golden:
        assert np.mean(golden["jfk"] > 0.5) > 0.6
        assert golden["silence"].max() < 0.1


@pytest.mark.parametrize("name", INPUTS)
def test_probabilities_equal_the_published_graph(name):
    pytest.importorskip("onnxruntime")
    package = find_spec("silero_vad")
    if package is None or package.origin is None:
        pytest.skip("silero-vad is not installed")
    graph = Path(package.origin).parent / "data" / "silero_vad_16k_sequence.onnx"
    samples = INPUTS[name]()
    np.testing.assert_allclose(detect(samples), reference(graph, samples), rtol=0, atol=TOLERANCE)
