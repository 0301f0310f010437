"""Doubles of the models that tell speakers apart: voices are levels of the samples.

A sample of 0.1 is the first voice, of 0.2 the second, of 0.3 both at once, of 0.4 the third; others are silence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats
from harken.speakers.diarizer import Diarizer, SpeakerOptions
from harken.speakers.pieces import N_FRAMES, N_LOCAL_SPEAKERS, STEP_SAMPLES
from harken.types import SAMPLE_RATE

SILENCE, FIRST, SECOND, BOTH, THIRD = 0.0, 0.1, 0.2, 0.3, 0.4
VOICES_OF_LEVEL = {1: (0,), 2: (1,), 3: (0, 1), 4: (2,)}
EMBEDDINGS = np.eye(192, dtype=np.float32)


def conversation(*parts: tuple[float, float]) -> Floats:
    """Return samples of parts, each of a level and some seconds."""
    return np.concatenate(
        [np.full(round(seconds * SAMPLE_RATE), level, np.float32) for level, seconds in parts]
    )


class LevelSegmentation:
    """Local speakers by level, in the order in which a window hears them."""

    def activities(self, windows: Floats) -> NDArray[np.bool_]:
        return np.stack([self._activity(window) for window in windows])

    def _activity(self, window: Floats) -> NDArray[np.bool_]:
        levels = np.round(window[np.arange(N_FRAMES) * STEP_SAMPLES + STEP_SAMPLES // 2] * 10).astype(int)
        activity = np.zeros((N_FRAMES, N_LOCAL_SPEAKERS), np.bool_)
        columns: dict[int, int] = {}
        for frame, level in enumerate(levels.tolist()):
            for voice in VOICES_OF_LEVEL.get(level, ()):
                activity[frame, columns.setdefault(voice, len(columns))] = True
        return activity


class LevelEmbedding:
    """The embedding of a piece: that of the voice of most of its samples, bent towards that of the others."""

    size = 192

    def embed(self, pieces: Sequence[Floats]) -> Floats:
        levels = [np.bincount(np.round(piece * 10).astype(int), minlength=5) for piece in pieces]
        sums = np.array([each[[1, 2, 4]] @ EMBEDDINGS[:3] for each in levels], np.float32).reshape(-1, 192)
        embeddings: Floats = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return embeddings


def level_diarizer(**options: int) -> Diarizer:
    """Return a diarizer of such voices."""
    return Diarizer(LevelSegmentation(), LevelEmbedding(), SpeakerOptions(**options))
