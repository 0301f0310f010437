"""Streams heard by a backend and by the reference, window by window, and compared by what a decoder hears of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bench import Bench, Pair, log_probabilities

from harken.contract import Floats, StreamingEncoderState
from tiny_models import DIMS, TOKENIZER

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])


def make_sounds(streams: int, seed: int = 5) -> Floats:
    """Draw log-mel, different in each stream, of one frame more than there are positions for."""
    frames = 2 * DIMS.n_audio_ctx + 1
    return np.random.default_rng(seed).standard_normal((streams, DIMS.n_mels, frames), np.float32)


class Streams:
    """Some streams, each heard by an encoder of the backend under test and by one of the reference.

    Parameters
    ----------
    bench : Bench
    count : int
    history : int
        In frames.
    sounds : ndarray of shape (count, n_mels, frames), float32, or None
        What they hear; by default something random.
    """

    def __init__(self, bench: Bench, count: int, history: int, sounds: Floats | None = None) -> None:
        self._bench = bench
        self.sounds = make_sounds(count) if sounds is None else sounds
        self.encoders = [bench.backend.open_encoder(history) for _ in range(count)]
        self.expected = [bench.reference_backend.open_encoder(history) for _ in range(count)]

    def hear(self, streams: Sequence[int], window: int, keep: int, *, end: bool = False) -> None:
        """Hear the next `window` frames of some streams together, and the one behind unless they are the last."""
        mel = np.stack([self._next(self.sounds[stream], stream, window + (not end)) for stream in streams])
        untouched = mel.copy()
        self._bench.backend.encode_chunk([self.encoders[stream] for stream in streams], mel, keep)
        self._bench.reference_backend.encode_chunk([self.expected[stream] for stream in streams], mel, keep)
        np.testing.assert_array_equal(mel, untouched)
        for encoder, expected in zip(self.encoders, self.expected, strict=True):
            assert (encoder.final_positions, encoder.positions) == (
                expected.final_positions,
                expected.positions,
            )

    def room(self, stream: int) -> int:
        """How many positions more there may be."""
        return DIMS.n_audio_ctx - self.expected[stream].final_positions

    def gather(self, streams: Sequence[int], *, attention: bool = False) -> Pair:
        """Open a session with a row for each of some streams."""
        features = self._bench.backend.stream_features([self.encoders[stream] for stream in streams])
        expected = self._bench.reference_backend.stream_features([self.expected[stream] for stream in streams])
        assert features.n_windows == expected.n_windows == len(streams)
        rows = range(len(streams))
        return Pair(
            self._bench.backend.open_session(features, rows, DIMS.n_text_ctx, attention=attention),
            self._bench.reference_backend.open_session(expected, rows, DIMS.n_text_ctx, attention=attention),
            self._bench.tolerance,
        )

    def compare(self, streams: Sequence[int]) -> Floats:
        """Compare what decoders hear, and return the log-probabilities after each token of `PROMPT`."""
        pair = self.gather(streams, attention=True)
        heard = pair.extend([PROMPT] * len(streams), last_n=len(PROMPT))
        for row in range(len(streams)):
            pair.attention(row)
        return heard

    def _next(self, sound: Floats, stream: int, frames: int) -> Floats:
        first = 2 * self.expected[stream].final_positions
        window = sound[:, first : first + frames]
        assert window.shape[1] == frames, "the test asks for more than there is"
        return window


def heard_alone(bench: Bench, encoder: StreamingEncoderState) -> Floats:
    """Log-probabilities of a decoder that listens to one stream alone."""
    session = bench.backend.open_session(bench.backend.stream_features([encoder]), [0], DIMS.n_text_ctx)
    return log_probabilities(session.extend([PROMPT], last_n=len(PROMPT)))
