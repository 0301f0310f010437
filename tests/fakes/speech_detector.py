"""A voice activity detector by amplitude, and audio of noise and silence for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harken.audio.silero import CHUNK_SAMPLES
from harken.contract import Floats
from harken.types import SAMPLE_RATE


class LoudIsSpeech:
    """`harken.audio.vad.SpeechDetector` that takes every chunk above an amplitude of 0.01 for speech."""

    def __init__(self) -> None:
        self._rest = np.empty(0, np.float32)

    def feed(self, samples: Floats) -> Floats:
        waiting = np.concatenate([self._rest, samples])
        chunks, self._rest = np.split(waiting, [len(waiting) // CHUNK_SAMPLES * CHUNK_SAMPLES])
        return (np.abs(chunks.reshape(-1, CHUNK_SAMPLES)).max(axis=1, initial=0) > 0.01).astype(np.float32)

    def flush(self) -> Floats:
        return self.feed(np.zeros(-len(self._rest) % CHUNK_SAMPLES, np.float32))


def noise_and_silence(*lengths_s: float, seed: int = 0) -> Floats:
    """Draw noise and silence in turns, noise first, each so many seconds long."""
    rng = np.random.default_rng(seed)
    parts = [
        (i + 1) % 2 * 0.2 * rng.standard_normal(round(length_s * SAMPLE_RATE))
        for i, length_s in enumerate(lengths_s)
    ]
    return np.concatenate(parts).astype(np.float32)


def split_at(samples: Floats, points: Sequence[int]) -> list[Floats]:
    """Split samples at some points, in any order."""
    return np.split(samples, sorted(points))
