"""A compiled encoder: its weights handed to the library, which encodes on the threads of a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import byref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.backends.native.decoder import NativeDecoder
from harken.backends.native.encoder_weights import EncoderWeights
from harken.backends.native.library import NO_MEMORY, Encoder, EncoderLayer
from harken.contract import Floats
from harken.errors import OutOfMemory
from harken.types import FRAMES_PER_POSITION


class NativeEncoder:
    """An encoder of the library, with everything that it points to.

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
        self._decoder = decoder
        self._model = _make_model(arrays, contents)

    def encode(self, mel: Floats) -> Floats:
        """Encode windows of log-mel.

        Parameters
        ----------
        mel : ndarray of shape (windows, n_mels, frames), float32

        Returns
        -------
        ndarray of shape (windows, frames / 2, n_audio_state), float32

        Raises
        ------
        OutOfMemory
            If there is no memory for it.
        """
        n_windows, _, frames = mel.shape
        mel = np.ascontiguousarray(mel, np.float32)
        encoder_output = np.empty((n_windows, frames // FRAMES_PER_POSITION, self._model.n_state), np.float32)
        encode, handle = self._decoder.library.harken_encode, self._decoder.handle
        for window, output in zip(mel, encoder_output, strict=True):
            status = self._decoder.call(
                encode, handle, byref(self._model), window.ctypes.data, frames, output.ctypes.data
            )
            if status == NO_MEMORY:
                raise OutOfMemory("not enough memory to encode a window")
        return encoder_output


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
