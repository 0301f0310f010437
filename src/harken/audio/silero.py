"""Silero VAD 6.2 in numpy: the probability of speech, every 32 ms.

The input of the network is 512 new samples and the 64 before them. It computes the magnitudes of four short spectra,
four convolutions that reduce them to one vector, an LSTM, and a sigmoid. All but the LSTM is computed for a batch of
chunks at once. This takes half the time of the published graph in ONNX Runtime (docs/decisions/vad.md).

Source: snakers4/silero-vad, silero_vad/tinygrad_model.py (the layers) and sequence_vad.py (the context).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harken.errors import HarkenError

CHUNK_SAMPLES = 512
"""New samples for one probability: 32 ms."""

_CONTEXT_SAMPLES = 64
_INPUT_SAMPLES = _CONTEXT_SAMPLES + CHUNK_SAMPLES
_FFT_SAMPLES = 256
_STRIDE_SAMPLES = 128
_STATE_SIZE = 128
# Products of these shapes are fast, and too small for OpenBLAS to wake other threads: it would have to wait for them
# while an inference engine keeps the cores busy.
_BATCH_CHUNKS = 12
_TILE_COLUMNS = 32

Float32 = NDArray[np.float32]


class SileroDetector:
    """Silero VAD on the samples as they are, fed in blocks of any size, with bit-equal results for each.

    Notes
    -----
    Results are bit-equal because matrix products always have the shape of a full batch, with each chunk at its index
    modulo the batch: BLAS rounding depends on shape and position.
    """

    def __init__(self) -> None:
        self._network = _load_network()
        self._inputs = np.zeros((_BATCH_CHUNKS, _INPUT_SAMPLES), np.float32)
        self._hidden_states = np.zeros((_BATCH_CHUNKS, _STATE_SIZE), np.float32)
        self._cell_state = np.zeros(_STATE_SIZE, np.float32)
        self._pending = np.zeros(_CONTEXT_SAMPLES, np.float32)
        self._batch_row = 0
        self._flushed = False

    def feed(self, samples: Float32) -> Float32:
        """Return the speech probabilities of the chunks that the next samples complete.

        Parameters
        ----------
        samples : ndarray of shape (samples,), float32, 16 kHz, in [-1, 1]

        Returns
        -------
        ndarray of shape (chunks,), float32, 0 to 1
            One probability per `CHUNK_SAMPLES` samples.
        """
        if self._flushed:
            raise HarkenError(f"{type(self).__name__} was flushed: a new recording needs a new one")
        pending = np.concatenate([self._pending, samples])
        n_chunks = (len(pending) - _CONTEXT_SAMPLES) // CHUNK_SAMPLES
        self._pending = pending[n_chunks * CHUNK_SAMPLES :].copy()
        if not n_chunks:
            return np.empty(0, np.float32)
        inputs = np.lib.stride_tricks.sliding_window_view(pending, _INPUT_SAMPLES)[::CHUNK_SAMPLES]
        return np.concatenate([self._infer_batch(batch) for batch in self._split_batches(inputs)])

    def flush(self) -> Float32:
        """End the recording and return the probability of its last, incomplete chunk, padded with zeros.

        Returns
        -------
        ndarray of shape (0 or 1,), float32
        """
        n_unfinished = len(self._pending) - _CONTEXT_SAMPLES
        last = self.feed(
            np.zeros(CHUNK_SAMPLES - n_unfinished, np.float32) if n_unfinished else self._pending[:0]
        )
        self._flushed = True
        return last

    def _split_batches(self, inputs: Float32) -> list[Float32]:
        """Split chunks at batch boundaries; the first batch may already hold earlier chunks."""
        return np.split(inputs, range(_BATCH_CHUNKS - self._batch_row, len(inputs), _BATCH_CHUNKS))

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
    """The weights, with every layer as a matrix.

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


@cache
def _load_network() -> _Network:
    """Load the weights that are part of the package (data/NOTICE)."""
    with np.load(Path(__file__).parent / "data" / "silero_vad_6.2.npz") as archive:
        weights = dict(archive)
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
