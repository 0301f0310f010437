"""Silero VAD 6.2 in numpy: how probable it is that somebody speaks, every 32 ms.

The network looks at 512 new samples and the 64 before them: magnitudes of four short spectra, four convolutions that
leave one vector, an LSTM that remembers what came before, a sigmoid. All but the LSTM is done for a batch of chunks at
once. This takes half the time of the published graph in ONNX Runtime (docs/decisions/vad.md).

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
_BATCH_CHUNKS = (
    12  # products of this many rows, and matrices cut into tiles of this many columns, are fast, and too
)
_TILE_COLUMNS = (
    32  # small for OpenBLAS to wake other threads, for which it would wait while an engine keeps them busy
)

Float32 = NDArray[np.float32]


class SpeechDetector:
    """Speech probabilities of one recording, fed in pieces of any size; bit-equal however the samples are cut.

    Notes
    -----
    Why bit-equal: products, whose rounding a BLAS may choose by shape and position, always have the shape of a full
    batch, with each chunk at its index modulo the batch.
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
        """Take the next samples and return the probabilities of the chunks that they complete.

        Parameters
        ----------
        samples : ndarray of shape (samples,), float32, 16 kHz, in [-1, 1]

        Returns
        -------
        ndarray of shape (chunks,), float32, 0 to 1
            One value for every `CHUNK_SAMPLES` samples.
        """
        if self._flushed:
            raise HarkenError("SpeechDetector was flushed: a new recording needs a new SpeechDetector")
        pending = np.concatenate([self._pending, samples])
        n_chunks = (len(pending) - _CONTEXT_SAMPLES) // CHUNK_SAMPLES
        self._pending = pending[n_chunks * CHUNK_SAMPLES :].copy()
        if not n_chunks:
            return np.empty(0, np.float32)
        inputs = np.lib.stride_tricks.sliding_window_view(pending, _INPUT_SAMPLES)[::CHUNK_SAMPLES]
        return np.concatenate([self._infer_batch(batch) for batch in self._split_batches(inputs)])

    def flush(self) -> Float32:
        """End the recording and return the probability of its last, unfinished chunk, with zeros behind it.

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
        """Cut where a batch is full, the one that earlier chunks began first."""
        return np.split(inputs, range(_BATCH_CHUNKS - self._batch_row, len(inputs), _BATCH_CHUNKS))

    def _infer_batch(self, inputs: Float32) -> Float32:
        """Probabilities of some chunks that stand in one batch."""
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
    """Weights, laid out for products of rows with matrices.

    Attributes
    ----------
    layers : tuple of (tiles, bias)
        Convolutions over four spectra, and the LSTM's input, as a matrix each, of shape (tiles, in, 32); its bias
        of shape (tiles * 32,).
    recurrent : ndarray of shape (4 * state, state)
        Gates in ONNX's order: input, output, forget, cell. The first three are halved, for
        ``sigmoid(x) = (1 + tanh(x / 2)) / 2``: one call of tanh does all four.
    output : (vector, bias)
    """

    layers: tuple[tuple[Float32, Float32], ...]
    recurrent: Float32
    output: tuple[Float32, Float32]

    def lstm_inputs(self, inputs: Float32) -> Float32:
        """What chunks of shape (chunks, 576) bring to the gates of the LSTM, shape (chunks, 4 * state)."""
        spectra = np.fft.rfft(inputs[:, _frame_indices()] * _hann())
        values: Float32 = np.sqrt(spectra.real**2 + spectra.imag**2).reshape(len(inputs), -1)
        for layers_left, (weights, bias) in enumerate(self.layers, start=1 - len(self.layers)):
            values = np.matmul(values, weights).transpose(1, 0, 2).reshape(len(inputs), -1)
            values += bias
            if layers_left:
                np.maximum(values, 0, out=values)
        return values

    def lstm_step(self, gates: Float32, hidden: Float32, cell: Float32, out: Float32) -> None:
        """One step of the LSTM: `gates` and `cell` are changed, the new state is written to `out`."""
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
        """Probabilities, shape (chunks,), from states of shape (chunks, state)."""
        weights, bias = self.output
        logits = np.maximum(hidden_states, 0) @ weights
        probabilities: Float32 = 1 / (1 + np.exp(-logits - bias))
        return probabilities


@cache
def _load_network() -> _Network:
    """The weights that come with harken (data/NOTICE)."""
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
    """Matrix of a convolution with 3 taps and 1 position of padding on both sides, over this few positions.

    Parameters
    ----------
    kernel : ndarray of shape (out, in, 3)

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
    """Samples of each of the four spectra, the end of the chunk reflected, shape (4, 256)."""
    reflected = np.pad(np.arange(_INPUT_SAMPLES), (0, _CONTEXT_SAMPLES), mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(reflected, _FFT_SAMPLES)[::_STRIDE_SAMPLES].copy()


@cache
def _hann() -> Float32:
    """Periodic Hann window: with the FFT it makes the published convolution of 258 filters (to 1e-7)."""
    window: Float32 = np.hanning(_FFT_SAMPLES + 1)[:-1].astype(np.float32)
    return window
