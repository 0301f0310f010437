"""What an update takes on this machine, by doing some."""

from __future__ import annotations

import numpy as np

from harken.contract import Backend
from harken.streaming.utterance import TRAILING_SILENCE_FRAMES
from harken.text import Tokenizer
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

COMMITTED_TOKENS = 80
"""Committed before an update: as much as an utterance of 25 s has."""
HISTORY_FRAMES = 8 * FRAMES_PER_SECOND
"""As long as in any preset."""


class SyntheticUpdate:
    """Updates of some streams together, with sound that says nothing.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    streams : int
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, n_streams: int) -> None:
        self._backend, self._n_streams = backend, n_streams
        self._prompt = tokenizer.sot_sequence("en", "transcribe", timestamps=False)
        self._filler_tokens = tokenizer.encode(" a")[:1]

    def run(self, window_frames: int, tokens: int) -> None:
        """Hear a window with the silence behind it, verify what was said, choose so many tokens."""
        backend, rows = self._backend, range(self._n_streams)
        max_frames = FRAMES_PER_POSITION * backend.dims.n_audio_ctx
        frames = min(window_frames + TRAILING_SILENCE_FRAMES, max_frames - 2)
        encoders = [backend.open_encoder(HISTORY_FRAMES) for _ in rows]
        mel = np.zeros((self._n_streams, backend.dims.n_mels, frames + 1), np.float32)
        backend.encode_chunk(encoders, mel, 0)
        features = backend.stream_features(encoders)
        session = backend.open_session(features, list(rows), backend.dims.n_text_ctx, attention=True)
        session.extend([[*self._prompt, *self._filler_tokens * COMMITTED_TOKENS]] * self._n_streams)
        for _ in range(tokens):
            session.extend([self._filler_tokens] * self._n_streams).top(1)
            session.attention(0)
