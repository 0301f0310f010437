"""What an update takes on this machine, by doing some."""

from __future__ import annotations

import numpy as np

from harken.contract import Backend
from harken.streaming.running import QUIET_FRAMES
from harken.text import Tokenizer
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP

SPOKEN_TOKENS = 80
"""Committed before an update: as much as an utterance of 25 s has."""
HISTORY_FRAMES = 8 * FRAMES_PER_SECOND
"""As long as in any preset."""


class Trial:
    """Updates of some streams together, with sound that says nothing.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    streams : int
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, streams: int) -> None:
        self._backend, self._streams = backend, streams
        self._prompt = tokenizer.sot_sequence("en", "transcribe", timestamps=False)
        self._word = tokenizer.encode(" a")[:1]

    def update(self, window_frames: int, tokens: int) -> None:
        """Hear a window with the silence behind it, verify what was said, choose so many tokens."""
        backend, rows = self._backend, range(self._streams)
        most = FRAMES_PER_STEP * backend.dims.n_audio_ctx
        frames = min(window_frames + QUIET_FRAMES, most - 2)
        encoders = [backend.open_encoder(HISTORY_FRAMES) for _ in rows]
        mel = np.zeros((self._streams, backend.dims.n_mels, frames + 1), np.float32)
        backend.hear(encoders, mel, 0)
        features = backend.gather(encoders)
        session = backend.open(features, list(rows), backend.dims.n_text_ctx, attention=True)
        session.extend([[*self._prompt, *self._word * SPOKEN_TOKENS]] * self._streams)
        for _ in range(tokens):
            session.extend([self._word] * self._streams).top(1)
            session.attention(0)
