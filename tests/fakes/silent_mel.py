"""Log-mel of silence, for tests of what hours of audio take in memory."""

from __future__ import annotations

import numpy as np

from harken.contract import Floats
from harken.types import HOP_SAMPLES


class SilentMel:
    """A stand-in for `harken.audio.LogMel` that computes nothing."""

    ceiling = -10.0

    def __init__(self, n_mels: int) -> None:
        self.n_mels = n_mels

    def feed(self, samples: Floats) -> Floats:
        return np.full((self.n_mels, len(samples) // HOP_SAMPLES), -10, np.float32)

    def flush(self) -> Floats:
        return np.empty((self.n_mels, 0), np.float32)
