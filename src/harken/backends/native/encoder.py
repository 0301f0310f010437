"""A compiled encoder of windows and streams: weights handed to the library, which encodes on the decoder's threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.backends.encoding import own_states
from harken.backends.native.decoder import NativeDecoder, PackedWindow, padded_key_bias
from harken.backends.native.library import NO_MEMORY, Chunk, Encoder, EncoderLayer
from harken.backends.native.weights import EncoderWeights
from harken.contract import Floats, SparsePositions, StreamingEncoderState
from harken.errors import OutOfMemory
from harken.types import FRAMES_PER_POSITION, LEFT_CONTEXT_FRAMES, Dims

RIGHT_CONTEXT_FRAMES = 1
"""Frames behind a chunk that the convolutions read."""


class NativeEncoder:
    """An encoder of the library (see `harken.backends.encoding.Encoder`), with everything that it points to.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Packed weights.
    contents : EncoderWeights
        Their contents.
    decoder : NativeDecoder
        The decoder on whose threads it runs; the two never run at the same time.
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]], contents: EncoderWeights, decoder: NativeDecoder
    ) -> None:
        self._arrays = arrays  # the model points to them
        self._dims = contents.dims
        self._decoder = decoder
        self._model = _make_model(arrays, contents)

    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> Floats:
        n_windows, _, frames = mel.shape
        encoder_output = np.empty((n_windows, frames // FRAMES_PER_POSITION, self._model.n_state), np.float32)
        chunk = Chunk()
        if positions:
            embeddings, key_bias = (
                self._arrays["positions"][list(positions.numbers)],
                padded_key_bias(positions),
            )
            assert len(embeddings) == encoder_output.shape[1], "a number for each position"
            chunk.embeddings, chunk.key_bias = embeddings.ctypes.data, key_bias.ctypes.data
        for window, output in zip(mel, encoder_output, strict=True):
            self._encode(chunk, np.pad(window, ((0, 0), (LEFT_CONTEXT_FRAMES, RIGHT_CONTEXT_FRAMES))), output)
        return encoder_output

    def open_encoder(self, history_frames: int) -> NativeEncoderState:
        return NativeEncoderState(self._dims, history_frames // FRAMES_PER_POSITION)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        own = own_states(states, NativeEncoderState)
        chunks = [state.next_chunk(frames) for state, frames in zip(own, mel, strict=True)]
        for chunk in chunks:
            self._encode(*chunk)
        for state, (_, padded, encoder_output) in zip(own, chunks, strict=True):
            state.append_chunk(padded, encoder_output, final_frames // FRAMES_PER_POSITION)

    def _encode(self, chunk: Chunk, mel: Floats, encoder_output: Floats) -> None:
        """Encode a chunk of frames, with those around it, and write its output."""
        mel = np.ascontiguousarray(mel, np.float32)
        positions, frames_around = len(encoder_output), LEFT_CONTEXT_FRAMES + RIGHT_CONTEXT_FRAMES
        assert mel.shape == (self._dims.n_mels, FRAMES_PER_POSITION * positions + frames_around)
        assert 0 < chunk.first_position + positions <= self._dims.n_audio_ctx
        chunk.positions, chunk.mel, chunk.encoder_output = (
            positions,
            mel.ctypes.data,
            encoder_output.ctypes.data,
        )
        encode = self._decoder.library.harken_encode
        if self._decoder.call(encode, self._decoder.handle, byref(self._model), byref(chunk)) == NO_MEMORY:
            raise OutOfMemory("not enough memory to encode")


def _make_model(arrays: Mapping[str, NDArray[Any]], contents: EncoderWeights) -> Encoder:
    """Return the structure that describes an encoder to the library; it points to the arrays."""
    dims = contents.dims
    layers = (
        EncoderLayer(*(matrix.structure(arrays) for matrix in contents.layer_matrices(layer)))
        for layer in range(dims.n_audio_layer)
    )
    return Encoder(
        dims.n_audio_layer,
        dims.n_audio_head,
        dims.n_audio_state,
        dims.n_mels,
        *(convolution.structure(arrays) for convolution in contents.convolutions()),
        arrays["positions"].ctypes.data,
        (EncoderLayer * dims.n_audio_layer)(*layers),
        arrays["last_gain"].ctypes.data,
        arrays["last_bias"].ctypes.data,
    )


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
        self._keys_values = _with_room(self._keys_values, self._n_history, self._n_history + positions)
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
        self._encoder_output = _with_room(self._encoder_output, self.final_positions, self.positions)
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


def _with_room(buffer: Floats, kept: int, needed: int) -> Floats:
    """Return a buffer with room along its last axis but one: itself, or a larger copy of the first `kept` rows."""
    if needed <= buffer.shape[-2]:
        return buffer
    larger = np.empty((*buffer.shape[:-2], 2 * needed, buffer.shape[-1]), np.float32)
    larger[..., :kept, :] = buffer[..., :kept, :]
    return larger
