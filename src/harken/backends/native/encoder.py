"""A compiled encoder of windows and streams: weights handed to the library, which encodes on the decoder's threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.backends.checks import own_states
from harken.backends.native.decoder import NativeDecoder
from harken.backends.native.encoder_weights import EncoderWeights
from harken.backends.native.features import padded_key_bias
from harken.backends.native.library import NO_MEMORY, Chunk, Encoder, EncoderLayer
from harken.backends.native.streaming_encoder import RIGHT_CONTEXT_FRAMES, NativeEncoderState
from harken.contract import Floats, SparsePositions, StreamingEncoderState
from harken.errors import OutOfMemory
from harken.types import FRAMES_PER_POSITION, LEFT_CONTEXT_FRAMES


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
