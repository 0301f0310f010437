"""The state of the compiled encoder between the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harken.backends.native.decoder import NativeDecoder, PackedWindow
from harken.backends.native.library import Chunk
from harken.contract import Floats
from harken.types import FRAMES_PER_POSITION, LEFT_CONTEXT_FRAMES, Dims

RIGHT_CONTEXT_FRAMES = 1
"""Frames behind a chunk that the convolutions read."""


class NativeEncoderState:
    """The state of one stream (see `harken.contract.StreamingEncoderState`).

    Parameters
    ----------
    dims : Dims
    history_positions : int
        Number of earlier positions that a chunk attends to.
    """

    def __init__(self, dims: Dims, history_positions: int) -> None:
        self.final_positions = self.positions = 0
        self._history_positions, self._n_history = history_positions, 0
        self._left_context = np.zeros((dims.n_mels, LEFT_CONTEXT_FRAMES), np.float32)
        self._keys_values = np.empty((dims.n_audio_layer, 0, 2 * dims.n_audio_state), np.float32)
        self._encoder_output = np.empty((0, dims.n_audio_state), np.float32)
        self._packed_window: PackedWindow | None = None
        self._n_packed = 0  # positions of it that have not changed since

    def next_chunk(self, mel: Floats) -> tuple[Chunk, Floats, Floats]:
        """Prepare the next chunk of frames, shape (n_mels, 2 W + 1), or 2 W at the end of a stream.

        Returns
        -------
        chunk : Chunk
        mel : ndarray of shape (n_mels, 2 W + 3)
            The frames, with those around them.
        encoder_output : ndarray of shape (W, n_audio_state)
            Where its output is to be written.
        """
        positions, missing = mel.shape[1] // FRAMES_PER_POSITION, 1 - mel.shape[1] % FRAMES_PER_POSITION
        self._keys_values = with_room(self._keys_values, self._n_history, self._n_history + positions)
        chunk = Chunk(
            first_position=self.final_positions,
            keys_values=self._keys_values.ctypes.data,
            layer_stride=self._keys_values[0].size,
            n_history=self._n_history,
        )
        padded = np.concatenate([self._left_context, np.pad(mel, ((0, 0), (0, missing)))], axis=1)
        return chunk, padded, np.empty((positions, self._encoder_output.shape[1]), np.float32)

    def append_chunk(self, mel: Floats, encoder_output: Floats, final_positions: int) -> None:
        """Append an encoded chunk, and keep the history that later chunks attend to.

        Parameters
        ----------
        mel : ndarray
            As `next_chunk` returned it.
        encoder_output : ndarray of shape (W, n_audio_state)
        final_positions : int
            Number of positions of the chunk that become final.
        """
        end = self._n_history + final_positions
        self._n_history = min(end, self._history_positions)
        if end > self._n_history:
            for layer in self._keys_values:
                layer[: self._n_history] = layer[end - self._n_history : end].copy()
        last_final_frame = FRAMES_PER_POSITION * final_positions + LEFT_CONTEXT_FRAMES
        self._left_context = mel[:, last_final_frame - LEFT_CONTEXT_FRAMES : last_final_frame].copy()
        self._n_packed = min(self._n_packed, self.final_positions)
        self.positions = self.final_positions + len(encoder_output)
        self._encoder_output = with_room(self._encoder_output, self.final_positions, self.positions)
        self._encoder_output[self.final_positions : self.positions] = encoder_output
        self.final_positions += final_positions

    def packed_window(self, decoder: NativeDecoder) -> PackedWindow:
        """Return the packed keys and values of the cross-attention; valid until those of the next chunk are made."""
        encoder_output = self._encoder_output[: self.positions]
        if self._packed_window is None or self._n_packed < self.positions:
            self._packed_window = decoder.project_stream(encoder_output, self._n_packed, self._packed_window)
            self._n_packed = self.positions
        return self._packed_window

    @staticmethod
    def stack_outputs(states: Sequence[NativeEncoderState]) -> Floats:
        """Return the output of some streams, shape (streams, positions of the longest, n_audio_state)."""
        longest = max(state.positions for state in states)
        stacked = np.zeros((len(states), longest, states[0]._encoder_output.shape[1]), np.float32)
        for row, state in zip(stacked, states, strict=True):
            row[: state.positions] = state._encoder_output[: state.positions]
        return stacked


def with_room(buffer: Floats, kept: int, needed: int) -> Floats:
    """Return a buffer with room along its last axis but one: itself, or a larger copy of the first `kept` rows."""
    if needed <= buffer.shape[-2]:
        return buffer
    larger = np.empty((*buffer.shape[:-2], 2 * needed, buffer.shape[-1]), np.float32)
    larger[..., :kept, :] = buffer[..., :kept, :]
    return larger
