"""Speech probabilities compared with those of Silero's graph, as recorded by record_vad.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vad_inputs import INPUTS

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
