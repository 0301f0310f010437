"""Inputs of the recorded speaker embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.audio import load_audio

EXAMPLE = Path(__file__).parents[2] / "examples" / "jfk.flac"

Floats = NDArray[np.float32]


def _voice(hertz: float, samples: int) -> Floats:
    """Return a vowel-like tone that glides up by a third, with some noise."""
    time = np.arange(samples) / 16000
    phase = 2 * np.pi * hertz * (time + time**2 / 6 * 16000 / samples)
    voice = sum(np.sin(k * phase) / k for k in range(1, 25))
    noise = np.random.default_rng(int(hertz)).normal(0, 0.01, samples)
    return (0.2 * voice + noise).astype(np.float32)


INPUTS: dict[str, Callable[[], Floats]] = {
    "jfk": lambda: load_audio(EXAMPLE),
    "jfk 1.5 s": lambda: load_audio(EXAMPLE)[8000:32000],
    "jfk 2.025 s": lambda: load_audio(EXAMPLE)[40000:72400],  # one frame more than a segment of CAM++
    "jfk 0.3 s": lambda: load_audio(EXAMPLE)[60000:64800],
    "low tone": lambda: _voice(110, 48000),
    "high tone": lambda: _voice(220, 80077),
    "noise": lambda: np.random.default_rng(7).normal(0, 0.1, 40000).astype(np.float32),
}
