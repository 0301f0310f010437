"""A compiled encoder of windows and streams: weights handed to the library, which encodes on the decoder's threads."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref
from dataclasses import dataclass

import numpy as np

from harken.backends.encoding import (
    BLOCKS,
    NEVER_FROZEN,
    UNUSUAL,
    FrozenPadding,
    StreamState,
    count_groups,
    padding_groups,
    pool,
    short_speech_window,
    with_room,
    write_at,
)
from harken.backends.native.decoder import NativeDecoder, PackedWindow, padded_key_bias
from harken.backends.native.library import Chunk, Encoder, EncoderLayer, Linear
from harken.backends.native.packed_file import ArrayShape, Put
from harken.backends.native.weights import EncoderWeights
from harken.compiled_library import ABI_VERSION
from harken.contract import Arrays, Floats, Ints
from harken.types import FRAMES_PER_POSITION, LEFT_CONTEXT_FRAMES, Dims

RIGHT_CONTEXT_FRAMES = 1
"""Frames behind a chunk that the convolutions read."""


class NativeEncoder:
    """An encoder of the library, with everything that it points to.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Packed weights.
    contents : EncoderWeights
        Names and shapes of these weights.
    decoder : NativeDecoder
        The decoder on whose threads it runs; the two never run at the same time.
    attention_bits : {8, 16, 32}
        Bits of keys, values and queries; 16 or 32 where the layers have as many.
    load_padding : callable
        `load_packed` of whatever contents.
    """

    def __init__(
        self,
        arrays: Arrays,
        contents: EncoderWeights,
        decoder: NativeDecoder,
        attention_bits: int,
        load_padding: Callable[..., Arrays],
    ) -> None:
        self._arrays = arrays  # the model points to them
        self.dims = contents.dims
        self._decoder = decoder
        self._model = _make_model(arrays, contents, attention_bits)
        self.bits = contents.bits, attention_bits
        self._load_padding = load_padding
        self._frozen: Arrays = {}

    def encode(self, mel: Floats, *, padded: bool = False) -> tuple[Floats, FrozenPadding | None]:
        """Encode windows, or the beginnings of windows that go on with padding.

        Returns
        -------
        encoder_output : ndarray of shape (windows, positions, n_audio_state), float32
            Frozen positions follow those that are encoded.
        padding : FrozenPadding or None
        """
        n_windows, _, frames = mel.shape
        encoded = frames // FRAMES_PER_POSITION
        chunk, padding, frozen_output = Chunk(), None, np.empty((0, self._model.n_state), np.float32)
        if padded:
            # Beside the packed weights, as it takes as long as a window.
            self._frozen = self._frozen or self._load_padding(contents=PaddingContents(self))
            padding = FrozenPadding.behind(encoded, self._frozen["groups"])
            n_frozen = len(padding.counts)
            keys_values = self._frozen["keys_values"][:, -n_frozen:]
            key_bias = padded_key_bias(np.roll(padding.key_bias, n_frozen))
            chunk.n_history, chunk.key_bias = n_frozen, key_bias.ctypes.data
            chunk.history, chunk.layer_stride = keys_values.ctypes.data, self._frozen["keys_values"][0].size
            frozen_output = self._frozen["encoder_output"][-n_frozen:]
        encoder_output = np.empty((n_windows, encoded + len(frozen_output), self._model.n_state), np.float32)
        encoder_output[:, encoded:] = frozen_output
        for window, output in zip(mel, encoder_output, strict=True):
            self._encode(chunk, window_with_context(window), output[:encoded])
        return encoder_output, padding

    def freeze_padding(self) -> tuple[Ints, Floats, Floats]:
        """Encode the window whose padding is frozen, and return what is kept of it.

        Returns
        -------
        groups : ndarray of shape (n_audio_ctx,), int
            Those of `padding_groups`.
        keys_values : ndarray of shape (n_audio_layer, n_groups, 2 n_audio_state), float32
            The keys of each layer, and behind them its values.
        encoder_output : ndarray of shape (n_groups, n_audio_state), float32
        """
        dims = self.dims
        keys_values = np.empty((dims.n_audio_layer, dims.n_audio_ctx, 2 * dims.n_audio_state), np.float32)
        encoder_output = np.empty((dims.n_audio_ctx, dims.n_audio_state), np.float32)
        chunk = Chunk(keys_values=keys_values.ctypes.data, layer_stride=keys_values[0].size)
        self._encode(chunk, window_with_context(short_speech_window(dims)), encoder_output)
        parts = (part for layer in keys_values for part in np.split(layer, 2, axis=1))
        groups = padding_groups([*parts, encoder_output])
        return groups, pool(keys_values, groups), pool(encoder_output, groups)

    def encode_chunk(self, states: Sequence[NativeEncoderState], mel: Floats, final_frames: int) -> None:
        """Encode the next chunks of some streams (see `harken.contract.Backend.encode_chunk`)."""
        chunks = [state.next_chunk(frames) for state, frames in zip(states, mel, strict=True)]
        for chunk in chunks:
            self._encode(*chunk)
        for state, (_, padded, encoder_output) in zip(states, chunks, strict=True):
            state.append_chunk(padded, encoder_output, final_frames // FRAMES_PER_POSITION)

    def _encode(self, chunk: Chunk, mel: Floats, encoder_output: Floats) -> None:
        """Encode a chunk of frames, with those around it, and write its output."""
        mel = np.ascontiguousarray(mel, np.float32)
        positions, frames_around = len(encoder_output), LEFT_CONTEXT_FRAMES + RIGHT_CONTEXT_FRAMES
        assert mel.shape == (self.dims.n_mels, FRAMES_PER_POSITION * positions + frames_around)
        assert 0 < chunk.first_position + positions <= self.dims.n_audio_ctx
        chunk.positions, chunk.mel = positions, mel.ctypes.data
        chunk.encoder_output = encoder_output.ctypes.data
        decoder = self._decoder
        decoder.call("encode", decoder.handle, byref(self._model), byref(chunk), purpose="to encode")


def window_with_context(mel: Floats) -> Floats:
    """Return the frames of a window with those around that the convolutions read, which are zeros."""
    return np.pad(mel, ((0, 0), (LEFT_CONTEXT_FRAMES, RIGHT_CONTEXT_FRAMES)))


@dataclass(frozen=True, slots=True, eq=False)
class PaddingContents:
    """The frozen padding in a packed file (see `harken.backends.native.packed_file.PackedContents`)."""

    encoder: NativeEncoder

    @property
    def key(self) -> str:
        made_by = ABI_VERSION, self.encoder.dims, self.encoder.bits, BLOCKS, UNUSUAL, NEVER_FROZEN
        return f"padding-{zlib.crc32(repr(made_by).encode()):08x}"

    def arrays(self) -> Iterator[ArrayShape]:
        dims = self.encoder.dims
        n_groups = count_groups(dims.n_audio_ctx)
        yield "groups", np.int32, (dims.n_audio_ctx,)
        yield "keys_values", np.float32, (dims.n_audio_layer, n_groups, 2 * dims.n_audio_state)
        yield "encoder_output", np.float32, (n_groups, dims.n_audio_state)

    def write(self, _weights: Arrays, put: Put) -> None:
        groups, keys_values, encoder_output = self.encoder.freeze_padding()
        put("groups", groups)
        put("keys_values", keys_values)
        put("encoder_output", encoder_output)


def _make_model(arrays: Arrays, contents: EncoderWeights, attention_bits: int) -> Encoder:
    """Return the structure that describes an encoder to the library; it points to the arrays."""
    dims = contents.dims
    layers = (
        EncoderLayer(
            *(
                Linear(*(matrix.structure(arrays) for matrix in matrices))
                for _, matrices in contents.layer_matrices(layer)
            )
        )
        for layer in range(dims.n_audio_layer)
    )
    return Encoder(
        dims.n_audio_layer,
        dims.n_audio_head,
        dims.n_audio_state,
        dims.n_mels,
        attention_bits,
        *(convolution.structure(arrays) for convolution in contents.convolutions()),
        arrays["positions"].ctypes.data,
        (EncoderLayer * dims.n_audio_layer)(*layers),
        arrays["last_gain"].ctypes.data,
        arrays["last_bias"].ctypes.data,
        *(matrix.structure(arrays) for matrix in contents.rotations()),
    )


class NativeEncoderState(StreamState):
    """The state of one stream (see `harken.contract.StreamingEncoderState`).

    Parameters
    ----------
    dims : Dims
    history_positions : int
        Number of earlier positions that a chunk attends to.
    """

    def __init__(self, dims: Dims, history_positions: int) -> None:
        super().__init__(dims.n_mels)
        self._history_positions, self._n_history = history_positions, 0
        self._keys_values = np.empty((dims.n_audio_layer, 0, 2 * dims.n_audio_state), np.float32)
        self._encoder_output = np.empty((0, dims.n_audio_state), np.float32)
        self._packed_window: PackedWindow | None = None
        self._n_packed = 0  # positions of it that have not changed since

    def next_chunk(self, mel: Floats) -> tuple[Chunk, Floats, Floats]:
        """Prepare the next chunk of frames, shape (n_mels, 2 W + 1), or 2 W at the end of a stream.

        Returns it with its frames and those around them, shape (n_mels, 2 W + 3), and with the array that its output is
        to be written to, shape (W, n_audio_state).
        """
        positions = mel.shape[1] // FRAMES_PER_POSITION
        self._keys_values = with_room(self._keys_values, self._n_history, self._n_history + positions)
        chunk = Chunk(
            first_position=self.final_positions,
            keys_values=self._keys_values.ctypes.data,
            layer_stride=self._keys_values[0].size,
            n_history=self._n_history,
        )
        encoder_output = np.empty((positions, self._encoder_output.shape[1]), np.float32)
        return chunk, self.with_context(mel), encoder_output

    def append_chunk(self, mel: Floats, encoder_output: Floats, final_positions: int) -> None:
        """Append the encoded `next_chunk`, of which some positions become final; keep the history for later ones."""
        end = self._n_history + final_positions
        self._n_history = min(end, self._history_positions)
        if end > self._n_history:
            for layer in self._keys_values:
                layer[: self._n_history] = layer[end - self._n_history : end].copy()
        self._n_packed = min(self._n_packed, self.final_positions)
        self._encoder_output = write_at(self._encoder_output, self.final_positions, encoder_output)
        self.advance(mel, final_positions)

    @property
    def encoder_output(self) -> Floats:
        """The encoder's output so far, shape (positions, n_audio_state)."""
        return self._encoder_output[: self.positions]

    def packed_window(self, decoder: NativeDecoder) -> PackedWindow:
        """Return the packed keys and values of the cross-attention; valid until those of the next chunk are made."""
        if self._packed_window is None or self._n_packed < self.positions:
            self._packed_window = decoder.project_stream(
                self.encoder_output, self._n_packed, self._packed_window
            )
            self._n_packed = self.positions
        return self._packed_window
