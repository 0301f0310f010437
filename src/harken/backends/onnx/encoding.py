"""The part of the CPU engine before the decoder: windows and streams encoded, and projected for the cross-attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import Generic, Protocol, TypeVar

import numpy as np

from harken.backends.checks import NO_ENCODER, own_states
from harken.backends.onnx.graph_loader import GraphLoader
from harken.backends.onnx.runtimes import Graph
from harken.backends.onnx.session import EncodedWindows
from harken.backends.onnx.streaming_encoder import OnnxEncoderState
from harken.contract import Features, Floats, SparsePositions, StreamingEncoderState
from harken.types import FRAMES_PER_POSITION, Dims


class Encoder(Protocol):
    """An encoder of windows and of streams."""

    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> Floats:
        """Return the encoder's output for windows, shape (windows, positions, n_audio_state)."""
        ...

    def open_encoder(self, history_frames: int) -> StreamingEncoderState:
        """Open the encoder of a stream."""
        ...

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        """Encode the next chunks of some streams (see `harken.contract.Backend.encode_chunk`)."""
        ...

    def stack_outputs(self, states: Sequence[StreamingEncoderState]) -> Floats:
        """Return the output of some streams, shape (streams, positions of the longest, n_audio_state)."""
        ...


class EncoderGraphs:
    """The graphs before the decoder (see `Encoder`).

    Parameters
    ----------
    dims : Dims
    loader : GraphLoader
        Loads a graph when it is first used.
    loaded : mapping of str to Graph
        Those that are loaded already.
    projects_chunks : bool
        Project the chunks of streams for the cross-attention, too.
    """

    def __init__(
        self, dims: Dims, loader: GraphLoader, loaded: Mapping[str, Graph], *, projects_chunks: bool = True
    ) -> None:
        self._dims, self._loader, self._loaded = dims, loader, dict(loaded)
        self._projects_chunks = projects_chunks
        self._lock = Lock()

    @staticmethod
    def names(dims: Dims) -> tuple[str, ...]:
        """Return the names of the graphs that windows need."""
        return ("cross_kv", "encoder") if dims.has_encoder else ("cross_kv",)

    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> Floats:
        assert self._dims.has_encoder, NO_ENCODER
        if positions:
            return np.concatenate(
                [self._encode_sparse(mel[i], positions) for i in single_window_slices(len(mel))]
            )
        encode = self._graph("encoder")
        encoder_output = np.empty((len(mel), mel.shape[2] // 2, self._dims.n_audio_state), np.float32)
        for window in single_window_slices(len(mel)):
            encode({"mel": np.ascontiguousarray(mel[window])}, {"encoder_output": encoder_output[window]})
        return encoder_output

    def allocate_cross_kv(self, n_windows: int, positions: int) -> dict[str, Floats]:
        """Allocate the keys and values of the cross-attention, by the names of the decoder graph's inputs."""
        dims = self._dims
        shape = (n_windows, dims.n_text_head, positions, dims.n_text_state // dims.n_text_head)
        return {
            f"cross_{part}.{i}": np.empty(shape, np.float32) for i in range(dims.n_text_layer) for part in "kv"
        }

    def project_window(self, encoder_output: Floats, cross_kv: dict[str, Floats]) -> None:
        """Write the keys and values of one window; all arrays have one window along axis 0."""
        self._graph("cross_kv")({"encoder_output": encoder_output}, cross_kv)

    def open_encoder(self, history_frames: int) -> OnnxEncoderState:
        assert self._dims.has_encoder, NO_ENCODER
        return OnnxEncoderState(self._dims, history_frames // FRAMES_PER_POSITION)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        onnx_states = own_states(states, OnnxEncoderState)
        inputs, outputs = OnnxEncoderState.chunk_inputs(onnx_states, mel)
        self._graph("streaming_encoder")(inputs, outputs)
        encoder_output = outputs["encoder_output"]
        cross_kv: dict[str, Floats] = {}
        if self._projects_chunks:
            # The projection is the same at every position: the chunks of all streams are projected as one window.
            all_chunks = encoder_output.reshape(1, -1, encoder_output.shape[2])
            cross_kv = self.allocate_cross_kv(1, all_chunks.shape[1])
            self.project_window(all_chunks, cross_kv)
        for row, state in enumerate(onnx_states):
            chunk_positions = slice(row * encoder_output.shape[1], (row + 1) * encoder_output.shape[1])
            stream_outputs = {name: array[row] for name, array in outputs.items()}
            stream_outputs |= {name: array[0, :, chunk_positions] for name, array in cross_kv.items()}
            state.append_chunk(mel[row], stream_outputs, final_frames // FRAMES_PER_POSITION)

    def stack_outputs(self, states: Sequence[StreamingEncoderState]) -> Floats:
        return OnnxEncoderState.stream_features(own_states(states, OnnxEncoderState)).encoder_output

    def _encode_sparse(self, mel: Floats, positions: SparsePositions) -> Floats:
        """Encode some positions of one window, by the graph of streams, which takes positions and a mask."""
        state = OnnxEncoderState(self._dims, history_positions=1)  # masked; the runtimes take no empty history
        inputs, outputs = OnnxEncoderState.chunk_inputs([state], mel)
        inputs["mask"][..., 1:] = positions.key_bias
        self._graph("streaming_encoder")({**inputs, "positions": np.array([positions.numbers])}, outputs)
        return outputs["encoder_output"]

    def _graph(self, name: str) -> Graph:
        with self._lock:
            if name not in self._loaded:
                self._loaded[name] = self._loader.load(name)[0]
            return self._loaded[name]


F = TypeVar("F", bound=EncodedWindows)


class EncodingBackend(ABC, Generic[F]):
    """The methods of `harken.contract.Backend` before the decoder, for a decoder with features of type F."""

    _encoder: Encoder

    @abstractmethod
    def _project(
        self,
        encoder_output: Floats,
        lengths: Sequence[int] | None = None,
        positions: SparsePositions | None = None,
    ) -> F:
        """Make features: project the encoder's output to the keys and values of the cross-attention."""

    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> F:
        return self._project(self._encoder.encode(mel, positions), positions=positions)

    def encoder_output(self, features: Features) -> Floats:
        assert isinstance(features, EncodedWindows), "features come from a backend of the same kind"
        return features.encoder_output

    def reuse_encoder_output(self, features: Features) -> F:
        assert isinstance(features, EncodedWindows), "features come from a backend of the same kind"
        return self._project(features.encoder_output, features.lengths, features.sparse_positions)

    def open_encoder(self, history_frames: int) -> StreamingEncoderState:
        return self._encoder.open_encoder(history_frames)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        self._encoder.encode_chunk(states, mel, final_frames)


def single_window_slices(n_windows: int) -> Iterator[slice]:
    """Yield a slice for each window: the graphs before the decoder take one window at a time."""
    return (slice(window, window + 1) for window in range(n_windows))
