"""Streams encoded by a backend and by the reference backend, chunk by chunk, and compared through a decoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pairs import PROMPT, BackendPair, SessionPair, decode

from harken.contract import Floats, StreamingEncoderState
from tiny_models import DIMS


def make_mels(streams: int, seed: int = 5) -> Floats:
    """Draw log-mel, different in each stream, of one frame more than there are positions for."""
    frames = 2 * DIMS.n_audio_ctx + 1
    return np.random.default_rng(seed).standard_normal((streams, DIMS.n_mels, frames), np.float32)


class Streams:
    """Some streams, each encoded by the backend under test and by the reference backend.

    Parameters
    ----------
    backends : BackendPair
    count : int
    history_frames : int
    mels : ndarray of shape (count, n_mels, frames), float32, or None
        Log-mel of the streams; by default random.
    """

    def __init__(
        self, backends: BackendPair, count: int, history_frames: int, mels: Floats | None = None
    ) -> None:
        self._backends = backends
        self.mels = make_mels(count) if mels is None else mels
        self.states = [backends.tested.open_encoder(history_frames) for _ in range(count)]
        self.reference_states = [backends.reference.open_encoder(history_frames) for _ in range(count)]

    def encode(
        self, streams: Sequence[int], chunk_frames: int, final_frames: int, *, end: bool = False
    ) -> None:
        """Encode the next `chunk_frames` of some streams, and pass the frame behind them unless they end here."""
        mel = np.stack([self._next_frames(stream, chunk_frames + (not end)) for stream in streams])
        untouched = mel.copy()
        self._backends.tested.encode_chunk([self.states[stream] for stream in streams], mel, final_frames)
        self._backends.reference.encode_chunk(
            [self.reference_states[stream] for stream in streams], mel, final_frames
        )
        np.testing.assert_array_equal(mel, untouched)
        for state, expected in zip(self.states, self.reference_states, strict=True):
            assert (state.final_positions, state.positions) == (expected.final_positions, expected.positions)

    def positions_left(self, stream: int) -> int:
        """Return how many more positions the stream can have."""
        return DIMS.n_audio_ctx - self.reference_states[stream].final_positions

    def open_sessions(self, streams: Sequence[int], *, attention: bool = False) -> SessionPair:
        """Open a session with a row for each of some streams."""
        tested, reference = self._backends.tested, self._backends.reference
        features = tested.stream_features([self.states[stream] for stream in streams])
        expected = reference.stream_features([self.reference_states[stream] for stream in streams])
        assert features.n_windows == expected.n_windows == len(streams)
        rows = range(len(streams))
        return SessionPair(
            tested.open_session(features, rows, DIMS.n_text_ctx, attention=attention),
            reference.open_session(expected, rows, DIMS.n_text_ctx, attention=attention),
            self._backends.tolerance,
        )

    def compare(self, streams: Sequence[int]) -> Floats:
        """Compare what is decoded, and return the log-probabilities after each token of `PROMPT`."""
        pair = self.open_sessions(streams, attention=True)
        decoded = pair.extend([PROMPT] * len(streams), last_n=len(PROMPT))
        for row in range(len(streams)):
            pair.attention(row)
        return decoded

    def _next_frames(self, stream: int, frames: int) -> Floats:
        first = 2 * self.reference_states[stream].final_positions
        chunk = self.mels[stream, :, first : first + frames]
        assert chunk.shape[1] == frames, "the test asks for more frames than the stream has"
        return chunk


def decode_alone(backends: BackendPair, state: StreamingEncoderState) -> Floats:
    """Return log-probabilities of a decoder over one stream."""
    return decode(backends.tested, backends.tested.stream_features([state]), last_n=len(PROMPT))
