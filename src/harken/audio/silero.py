"""Silero VAD 6.2: the probability of speech, every 32 ms.

The input of the network is 512 new samples and the 64 before them. It computes the magnitudes of four short spectra,
four convolutions that reduce them to one vector, an LSTM, and a sigmoid. All but the LSTM is computed for a batch of
chunks at once. The compiled library does this, or numpy where there is none (docs/decisions/vad.md).

Source: snakers4/silero-vad, silero_vad/tinygrad_model.py (the layers) and sequence_vad.py (the context).
"""

from __future__ import annotations

from ctypes import Structure, addressof, c_int32, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.compiled_library import load_library
from harken.errors import BackendUnavailable

CHUNK_SAMPLES = 512
"""New samples for one probability: 32 ms."""

_CONTEXT_SAMPLES = 64
_INPUT_SAMPLES = _CONTEXT_SAMPLES + CHUNK_SAMPLES
_FFT_SAMPLES = 256
_STRIDE_SAMPLES = 128
_STATE_SIZE = 128
# Products of these shapes are fast in numpy, and too small for OpenBLAS to wake other threads: it would have to wait
# for them while an inference engine keeps the cores busy.
_BATCH_CHUNKS = 12
_TILE_COLUMNS = 32
_GROUP_ROWS = 16  # HARKEN_GROUP, of the compiled library

Float32 = NDArray[np.float32]


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

    It takes a quarter of numpy's time, and has the same bits on every processor.

    Raises
    ------
    BackendUnavailable
        If the library was not built, or cannot be loaded.
    """

    def __init__(self) -> None:
        try:
            self._function = load_library().harken_silero_probabilities
        except AttributeError as error:
            raise BackendUnavailable(f"the compiled library is an older one: {error}") from error
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

    Notes
    -----
    Results do not depend on how a recording is divided because matrix products always have the shape of a full batch,
    with each chunk at its index modulo the batch: BLAS rounding depends on shape and position.
    """

    def __init__(self) -> None:
        self._network = _load_network()
        self._inputs = np.zeros((_BATCH_CHUNKS, _INPUT_SAMPLES), np.float32)
        self._hidden_states = np.zeros((_BATCH_CHUNKS, _STATE_SIZE), np.float32)
        self._cell_state = np.zeros(_STATE_SIZE, np.float32)
        self._batch_row = 0

    def __call__(self, samples: Float32, n_chunks: int) -> Float32:
        """Compute the probabilities of chunks; the samples begin `_CONTEXT_SAMPLES` before the first.

        Returns
        -------
        ndarray of shape (n_chunks,), float32
        """
        inputs = np.lib.stride_tricks.sliding_window_view(samples, _INPUT_SAMPLES)[::CHUNK_SAMPLES]
        # The first batch may already hold earlier chunks.
        batches = np.split(inputs, range(_BATCH_CHUNKS - self._batch_row, n_chunks, _BATCH_CHUNKS))
        return np.concatenate([self._infer_batch(batch) for batch in batches])

    def _infer_batch(self, inputs: Float32) -> Float32:
        """Return the probabilities of chunks that belong to one batch."""
        rows = slice(self._batch_row, self._batch_row + len(inputs))
        self._inputs[rows] = inputs
        gates = self._network.lstm_inputs(self._inputs)
        hidden = self._hidden_states[rows.start - 1]
        for row in range(rows.start, rows.stop):
            self._network.lstm_step(gates[row], hidden, self._cell_state, out=self._hidden_states[row])
            hidden = self._hidden_states[row]
        self._batch_row = rows.stop % _BATCH_CHUNKS
        return self._network.probabilities_of(self._hidden_states)[rows]


@dataclass(frozen=True, slots=True)
class _Network:
    """The weights for numpy, with every layer as a matrix.

    Attributes
    ----------
    layers : tuple of (tiles, bias)
        The four convolutions and the input projection of the LSTM, each a matrix of shape (tiles, in, 32) and a bias of
        shape (tiles * 32,).
    recurrent : ndarray of shape (4 * state, state)
        Gates in ONNX's order: input, output, forget, cell. The weights of the first three are halved, so that one
        tanh computes all four: ``sigmoid(x) = (1 + tanh(x / 2)) / 2``.
    output : (vector, bias)
        Output projection.
    """

    layers: tuple[tuple[Float32, Float32], ...]
    recurrent: Float32
    output: tuple[Float32, Float32]

    def lstm_inputs(self, inputs: Float32) -> Float32:
        """Compute the gate inputs of the LSTM, shape (chunks, 4 * state), from chunks of shape (chunks, 576)."""
        spectra = np.fft.rfft(inputs[:, _frame_indices()] * _hann())
        values: Float32 = np.sqrt(spectra.real**2 + spectra.imag**2).reshape(len(inputs), -1)
        for layers_left, (weights, bias) in enumerate(self.layers, start=1 - len(self.layers)):
            values = np.matmul(values, weights).transpose(1, 0, 2).reshape(len(inputs), -1)
            values += bias
            if layers_left:
                np.maximum(values, 0, out=values)
        return values

    def lstm_step(self, gates: Float32, hidden: Float32, cell: Float32, out: Float32) -> None:
        """Run one step of the LSTM: change `gates` and `cell` in place and write the new state to `out`."""
        gates += self.recurrent @ hidden
        np.tanh(gates, out=gates)
        gates[: 3 * _STATE_SIZE] += 1
        input_gate, output_gate, forget_gate, candidate = gates.reshape(4, _STATE_SIZE)
        cell *= forget_gate
        input_gate *= candidate
        cell += input_gate
        cell *= 0.5
        np.multiply(output_gate, np.tanh(cell), out=out)
        out *= 0.5

    def probabilities_of(self, hidden_states: Float32) -> Float32:
        """Compute probabilities of shape (chunks,) from hidden states of shape (chunks, state)."""
        weights, bias = self.output
        logits = np.maximum(hidden_states, 0) @ weights
        probabilities: Float32 = 1 / (1 + np.exp(-logits - bias))
        return probabilities


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
        _hann() / 2,
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
def _load_network() -> _Network:
    """Return the weights as numpy multiplies them."""
    weights = _load_weights()
    gate_scale = np.repeat(np.array([0.5, 0.5, 0.5, 1], np.float32), _STATE_SIZE)
    bias = gate_scale * weights["lstm.bias"].reshape(2, -1).sum(axis=0)
    shapes = ((4, 1, 4), (4, 2, 2), (2, 2, 1), (1, 1, 1))
    convolutions = (
        (
            _tile(_convolution_matrix(weights[f"encoder.{i}.weight"], inputs, stride, outputs)),
            np.tile(weights[f"encoder.{i}.bias"], outputs),
        )
        for i, (inputs, stride, outputs) in enumerate(shapes)
    )
    return _Network(
        layers=(*convolutions, (_tile((weights["lstm.input"] * gate_scale[:, None]).T), bias)),
        recurrent=weights["lstm.recurrent"] * gate_scale[:, None],
        output=(weights["output.weight"], weights["output.bias"]),
    )


def _tile(matrix: Float32) -> Float32:
    """Cut a matrix of shape (in, out) into tiles of shape (out / 32, in, 32)."""
    tiles = matrix.reshape(len(matrix), -1, _TILE_COLUMNS).transpose(1, 0, 2)
    return np.ascontiguousarray(tiles)


def _convolution_matrix(kernel: Float32, inputs: int, stride: int, outputs: int) -> Float32:
    """Return the matrix of a convolution with 3 taps and a padding of 1, for a fixed number of positions.

    Parameters
    ----------
    kernel : ndarray of shape (out, in, 3)
    inputs, stride, outputs : int
        Number of input positions, stride, and number of output positions.

    Returns
    -------
    ndarray of shape (inputs * in, outputs * out)
    """
    n_out, n_in, taps = kernel.shape
    matrix = np.zeros((inputs, n_in, outputs, n_out), np.float32)
    for position in range(outputs):
        for tap in range(taps):
            source = position * stride + tap - 1
            if 0 <= source < inputs:
                matrix[source, :, position] = kernel[:, :, tap].T
    return matrix.reshape(inputs * n_in, outputs * n_out)


@cache
def _frame_indices() -> NDArray[np.int64]:
    """Return the sample indices of the four spectra, shape (4, 256); the end of the chunk is reflected."""
    reflected = np.pad(np.arange(_INPUT_SAMPLES), (0, _CONTEXT_SAMPLES), mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(reflected, _FFT_SAMPLES)[::_STRIDE_SAMPLES].copy()


@cache
def _hann() -> Float32:
    """Return the periodic Hann window; with the FFT it equals the published convolution of 258 filters (to 1e-7)."""
    window: Float32 = np.hanning(_FFT_SAMPLES + 1)[:-1].astype(np.float32)
    return window
