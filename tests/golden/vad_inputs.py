"""Inputs of the recorded speech probabilities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.audio import load_audio

EXAMPLE = Path(__file__).parents[2] / "examples" / "jfk.flac"

Floats = NDArray[np.float32]


def _tones() -> Floats:
    """Return two seconds of an intermittent vowel-like tone, clipped, with an incomplete last chunk."""
    time = np.arange(2 * 16000 + 77) / 16000
    voice = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 20))
    return np.clip(voice * (np.sin(2 * np.pi * 1.5 * time) > 0), -1, 1).astype(np.float32)


INPUTS: dict[str, Callable[[], Floats]] = {
    "jfk": lambda: load_audio(EXAMPLE),
    "jfk_quiet": lambda: load_audio(EXAMPLE)[40000:100000] * np.float32(0.003),
    "tones": _tones,
    "silence": lambda: np.zeros(16000, np.float32),
}
