"""Silero VAD 6.2: the probability of speech, every 32 ms.

The input of the network is 512 new samples and the 64 before them. It computes the magnitudes of four short spectra,
four convolutions that reduce them to one vector, an LSTM, and a sigmoid. All but the LSTM is computed for a batch of
chunks at once. The compiled library does this, or numpy where there is none (docs/decisions/vad.md).

Source: snakers4/silero-vad, silero_vad/tinygrad_model.py (the layers) and sequence_vad.py (the context).
"""

from __future__ import annotations

from ctypes import Structure, addressof, c_int32, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.audio.mel import Float32, hann
from harken.compiled_library import load_library
from harken.errors import BackendUnavailable

CHUNK_SAMPLES = 512
"""New samples for one probability: 32 ms."""

_CONTEXT_SAMPLES = 64
_INPUT_SAMPLES = _CONTEXT_SAMPLES + CHUNK_SAMPLES
_FFT_SAMPLES = 256
_STRIDE_SAMPLES = 128
_STATE_SIZE = 128
_BATCH_CHUNKS = 32  # what is computed of them in numpy stays in a core's cache
_GROUP_ROWS = 16  # HARKEN_GROUP, of the compiled library


class SileroDetector:
    """Silero VAD on the samples as they are, fed in whole chunks, with bit-equal results however they are divided."""

    def __init__(self) -> None:
        self._probabilities_of = _probability_function()
        self._context = np.zeros(_CONTEXT_SAMPLES, np.float32)

    def feed(self, samples: Float32) -> Float32:
        """Return the speech probability of each of the next chunks.

        Parameters
        ----------
        samples : ndarray of shape (chunks * CHUNK_SAMPLES,), float32, 16 kHz, in [-1, 1]

        Returns
        -------
        ndarray of shape (chunks,), float32, 0 to 1
        """
        n_chunks = len(samples) // CHUNK_SAMPLES
        with_context = np.concatenate([self._context, samples], dtype=np.float32)
        self._context = with_context[-_CONTEXT_SAMPLES:].copy()
        return self._probabilities_of(with_context, n_chunks) if n_chunks else np.empty(0, np.float32)


class _PackedWeights(Structure):
    """``struct harken_silero``."""

    _fields_ = (
        ("window", c_void_p),
        ("roots", c_void_p),
        ("convolutions", c_void_p),
        ("convolution_biases", c_void_p),
        ("input", c_void_p),
        ("bias", c_void_p),
        ("recurrent", c_void_p),
        ("output", c_void_p),
    )


class CompiledProbabilities:
    """Function of the next samples of a recording: the probabilities of their chunks, by the compiled library.

    It takes a fifth of numpy's time, and has the same bits on every processor.

    Raises
    ------
    BackendUnavailable
        If the library was not built, or cannot be loaded.
    """

    def __init__(self) -> None:
        self._function = load_library().harken_silero_probabilities
        self._function.restype = None
        self._function.argtypes = (c_void_p, c_void_p, c_int32, c_void_p, c_void_p)
        self._arrays = _pack_weights()
        self._weights = _PackedWeights(*(array.ctypes.data for array in self._arrays))
        self._state = np.zeros((2, _STATE_SIZE), np.float32)

    def __call__(self, samples: Float32, n_chunks: int) -> Float32:
        """Compute the probabilities of chunks; the samples begin `_CONTEXT_SAMPLES` before the first.

        Returns
        -------
        ndarray of shape (n_chunks,), float32
        """
        probabilities = np.empty(n_chunks, np.float32)
        state, to = self._state.ctypes.data, probabilities.ctypes.data
        self._function(addressof(self._weights), samples.ctypes.data, n_chunks, state, to)
        return probabilities


class NumpyProbabilities:
    """Function of the next samples of a recording, where there is no compiled library.

    Each chunk has products of its own: the rounding of BLAS depends on the shape, and so would the bits on how a
    recording is divided.
    """

    def __init__(self) -> None:
        self._weights = _transposed_weights()
        self._hidden, self._cell = np.zeros((2, _STATE_SIZE), np.float32)

    def __call__(self, samples: Float32, n_chunks: int) -> Float32:
        inputs = np.lib.stride_tricks.sliding_window_view(samples, _INPUT_SAMPLES)[::CHUNK_SAMPLES][:n_chunks]
        return np.concatenate(
            [self._infer(inputs[i : i + _BATCH_CHUNKS]) for i in range(0, n_chunks, _BATCH_CHUNKS)]
        )

    def _infer(self, inputs: Float32) -> Float32:
        """Return the probabilities of the next chunks, of shape (chunks, samples with their context)."""
        weights = self._weights
        # Equals the published convolution of 258 filters, to 1e-7.
        spectra = np.fft.rfft(inputs[:, _frame_indices()] * hann(_FFT_SAMPLES))
        values: Float32 = np.sqrt(spectra.real**2 + spectra.imag**2)
        for layer, stride in enumerate((1, 2, 2, 1)):
            padded = np.pad(values, ((0, 0), (1, 1), (0, 0)))
            taps = weights[f"encoder.{layer}.weight"]
            last = values.shape[1] - 1
            values = sum(padded[:, tap : tap + last + 1 : stride] @ taps[tap] for tap in range(len(taps)))
            values = np.maximum(values + weights[f"encoder.{layer}.bias"], 0)
        gates = (values @ weights["lstm.input"] + weights["lstm.bias"].reshape(2, -1).sum(axis=0))[:, 0]
        states = np.stack([self._next_state(gates_of_chunk) for gates_of_chunk in gates])
        logits = np.maximum(states, 0)[:, None] @ weights["output.weight"] + weights["output.bias"]
        return _sigmoid(logits[:, 0])

    def _next_state(self, gates: Float32) -> Float32:
        """Run one step of the LSTM; the gates are in ONNX's order: input, output, forget, cell."""
        gates = gates + self._hidden @ self._weights["lstm.recurrent"]
        keep_new, show, keep_old = _sigmoid(gates[: 3 * _STATE_SIZE]).reshape(3, -1)
        self._cell = keep_old * self._cell + keep_new * np.tanh(gates[3 * _STATE_SIZE :])
        self._hidden = show * np.tanh(self._cell)
        return self._hidden


def _sigmoid(values: Float32) -> Float32:
    half = np.float32(0.5)
    result: Float32 = half + half * np.tanh(half * values)
    return result


def _probability_function() -> CompiledProbabilities | NumpyProbabilities:
    try:
        return CompiledProbabilities()
    except BackendUnavailable:
        return NumpyProbabilities()


def _load_weights() -> dict[str, Float32]:
    """Load the weights that are part of the package (data/NOTICE)."""
    with np.load(Path(__file__).parent / "data" / "silero_vad_6.2.npz") as archive:
        return dict(archive)


@cache
def _pack_weights() -> tuple[Float32, ...]:
    """Return the arrays of `_PackedWeights`."""
    weights = _load_weights()
    angles = -2 * np.pi * np.arange(_FFT_SAMPLES) / _FFT_SAMPLES
    kernels = [weights[f"encoder.{i}.weight"] for i in range(4)]
    # Gates in ONNX's order: input, output, forget, cell.
    gates = np.arange(4 * _STATE_SIZE).reshape(4, -1, _GROUP_ROWS).swapaxes(0, 1).ravel()
    arrays = (
        hann(_FFT_SAMPLES) / 2,
        np.stack([np.cos(angles), np.sin(angles)], axis=1),
        np.concatenate([_pack(kernel[:, :, tap], _GROUP_ROWS) for kernel in kernels for tap in range(3)]),
        np.concatenate([weights[f"encoder.{i}.bias"] for i in range(4)]),
        _pack(weights["lstm.input"][gates], _GROUP_ROWS),
        weights["lstm.bias"].reshape(2, -1).sum(axis=0)[gates],
        _pack(weights["lstm.recurrent"][gates], 4 * _GROUP_ROWS),
        np.append(weights["output.weight"], weights["output.bias"]),
    )
    return tuple(np.ascontiguousarray(array, np.float32) for array in arrays)


def _pack(matrix: Float32, rows: int) -> Float32:
    """Return the numbers of a matrix in the order of groups of rows, columns, and the rows of a group."""
    return matrix.reshape(-1, rows, matrix.shape[1]).swapaxes(1, 2).ravel()


@cache
def _transposed_weights() -> dict[str, Float32]:
    """Return the weights as `NumpyProbabilities` multiplies with them: matrices of inputs and outputs, one a tap."""
    return {name: np.ascontiguousarray(values.T) for name, values in _load_weights().items()}


@cache
def _frame_indices() -> NDArray[np.int64]:
    """Return the sample indices of the four spectra, shape (4, 256); the end of the chunk is reflected."""
    reflected = np.pad(np.arange(_INPUT_SAMPLES), (0, _CONTEXT_SAMPLES), mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(reflected, _FFT_SAMPLES)[::_STRIDE_SAMPLES].copy()
