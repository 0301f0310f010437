"""The graphs before the decoder: windows and streams encoded, and projected for the cross-attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harken.backends.encoding import (
    FrozenPadding,
    StreamState,
    padding_groups,
    pool,
    short_speech_window,
    write_at,
)
from harken.backends.onnx.graph_loader import GraphLoader
from harken.backends.onnx.session import MASKED
from harken.contract import Arrays, Floats, Ints
from harken.types import FRAMES_PER_POSITION, Dims


class EncoderGraphs:
    """The graphs before the decoder."""

    def __init__(self, dims: Dims, loader: GraphLoader) -> None:
        self._dims, self._loader = dims, loader
        self._frozen: tuple[Arrays, Ints] | None = None

    def encode(self, mel: Floats) -> Floats:
        """Return the encoder's output for windows, shape (windows, positions, n_audio_state)."""
        encoder_output = np.empty((len(mel), mel.shape[2] // 2, self._dims.n_audio_state), np.float32)
        for window in _single_windows(mel):
            inputs = {"mel": np.ascontiguousarray(mel[window])}
            self._run("encoder", inputs, {"encoder_output": encoder_output[window]})
        return encoder_output

    def project(self, encoder_output: Floats) -> dict[str, Floats]:
        """Return the keys and values of the cross-attention, by the names of the decoder graph's inputs."""
        dims, (n_windows, positions, _) = self._dims, encoder_output.shape
        shape = (n_windows, dims.n_text_head, positions, dims.n_text_state // dims.n_text_head)
        cross_kv = {
            f"cross_{part}.{i}": np.empty(shape, np.float32) for i in range(dims.n_text_layer) for part in "kv"
        }
        for window in _single_windows(encoder_output):
            outputs = {name: array[window] for name, array in cross_kv.items()}
            self._run("cross_kv", {"encoder_output": encoder_output[window]}, outputs)
        return cross_kv

    def encode_chunk(self, states: Sequence[OnnxEncoderState], mel: Floats, final_frames: int) -> None:
        """Encode the next chunks of some streams (see `harken.contract.Backend.encode_chunk`)."""
        inputs, outputs = OnnxEncoderState.chunk_inputs(states, mel)
        self._run("streaming_encoder", inputs, outputs)
        encoder_output = outputs["encoder_output"]
        # The projection is the same at every position: the chunks of all streams are projected as one window.
        cross_kv = self.project(encoder_output.reshape(1, -1, encoder_output.shape[2]))
        for row, state in enumerate(states):
            chunk_positions = slice(row * encoder_output.shape[1], (row + 1) * encoder_output.shape[1])
            stream_outputs = {name: array[row] for name, array in outputs.items()}
            stream_outputs |= {name: array[0, :, chunk_positions] for name, array in cross_kv.items()}
            state.append_chunk(inputs["mel"][row], stream_outputs, final_frames // FRAMES_PER_POSITION)

    def encode_padded(self, mel: Floats) -> tuple[Floats, FrozenPadding]:
        """Encode the beginnings of windows that go on with padding, by the graph of streams.

        Its history is the frozen positions, whose encoder output follows that of each window.
        """
        if self._frozen is None:
            self._frozen = self._freeze()
        frozen, groups = self._frozen
        padding = FrozenPadding.behind(mel.shape[2] // FRAMES_PER_POSITION, groups)
        n_frozen = len(padding.counts)
        past = {name: array[..., -n_frozen:, :] for name, array in frozen.items()}
        frozen_output, encoded = past.pop("encoder_output"), []
        for name, array in past.items():  # the graph has the positions of keys along their last axis
            past[name] = np.ascontiguousarray(array.swapaxes(2, 3) if name.startswith("past_k") else array)
        for window in _single_windows(mel):
            inputs, outputs = OnnxEncoderState.chunk_inputs(
                [OnnxEncoderState(self._dims, n_frozen)], mel[window]
            )
            inputs["mask"][...] = np.roll(padding.key_bias, n_frozen)
            self._run("streaming_encoder", {**inputs, **past}, outputs)
            encoded.append(np.concatenate([outputs["encoder_output"], frozen_output], axis=1))
        return np.concatenate(encoded), padding

    def _freeze(self) -> tuple[Arrays, Ints]:
        """Return the means of the window whose padding is frozen (positions: last axis but one), and its groups."""
        state = OnnxEncoderState(self._dims, 1)  # masked; the runtimes take no empty history
        inputs, outputs = OnnxEncoderState.chunk_inputs([state], short_speech_window(self._dims)[None])
        self._run("streaming_encoder", inputs, outputs)
        rows = {"encoder_output": outputs["encoder_output"]}
        for i in range(self._dims.n_audio_layer):
            rows[f"past_k.{i}"] = outputs[f"key.{i}"].swapaxes(2, 3)
            rows[f"past_v.{i}"] = outputs[f"value.{i}"]
        positions = self._dims.n_audio_ctx
        groups = padding_groups(array[0].swapaxes(0, -2).reshape(positions, -1) for array in rows.values())
        return {name: pool(array, groups) for name, array in rows.items()}, groups

    def _run(self, name: str, inputs: Arrays, outputs: Arrays) -> None:
        (graph,) = self._loader.load(name)
        graph(inputs, outputs)


class OnnxEncoderState(StreamState):
    """`harken.contract.StreamingEncoderState` of the graph `harken.backends.onnx.graphs.streaming_encoder`.

    Parameters
    ----------
    dims : Dims
    history_positions : int
        Number of final positions before a chunk that it attends to.
    """

    def __init__(self, dims: Dims, history_positions: int) -> None:
        super().__init__(dims.n_mels)
        self._dims, self._history_positions = dims, history_positions
        heads, head_size = dims.n_audio_head, dims.n_audio_state // dims.n_audio_head
        shapes = {"k": (heads, head_size, history_positions), "v": (heads, history_positions, head_size)}
        self._past_kv = {
            f"past_{part}.{i}": np.zeros(shape, np.float32)
            for i in range(dims.n_audio_layer)
            for part, shape in shapes.items()
        }
        self.outputs: dict[str, Floats] = {}
        """Output of the encoder and what is projected of it, by the names of the graphs' outputs."""

    @staticmethod
    def chunk_inputs(states: Sequence[OnnxEncoderState], mel: Floats) -> tuple[Arrays, Arrays]:
        """Return the graph's inputs for the next chunks of some streams, and arrays for its outputs."""
        dims, history_positions = states[0]._dims, states[0]._history_positions
        chunk_positions = mel.shape[2] // FRAMES_PER_POSITION
        first_positions = np.array([state.final_positions for state in states])[:, None]
        conv_mask = np.ones((len(states), 1, FRAMES_PER_POSITION * chunk_positions + 1), np.float32)
        conv_mask[first_positions[:, 0] == 0, :, 0] = 0
        mask = np.zeros((len(states), 1, 1, history_positions + chunk_positions), np.float32)
        mask[:, 0, 0, :history_positions][np.arange(history_positions, 0, -1) > first_positions] = MASKED
        inputs = {
            "mel": np.stack([state.with_context(chunk) for state, chunk in zip(states, mel, strict=True)]),
            "conv_mask": conv_mask,
            "positions": first_positions + np.arange(chunk_positions),
            "mask": mask,
        }
        for name in states[0]._past_kv:
            inputs[name] = np.stack([state._past_kv[name] for state in states])
        heads, head_size = dims.n_audio_head, dims.n_audio_state // dims.n_audio_head
        outputs = {"encoder_output": np.empty((len(states), chunk_positions, dims.n_audio_state), np.float32)}
        for i in range(dims.n_audio_layer):
            outputs[f"key.{i}"] = np.empty((len(states), heads, head_size, chunk_positions), np.float32)
            outputs[f"value.{i}"] = np.empty((len(states), heads, chunk_positions, head_size), np.float32)
        return inputs, outputs

    def append_chunk(self, mel: Floats, outputs: Arrays, final_positions: int) -> None:
        """Append a chunk, shape (n_mels, 2 W + 3) with the frames around it, of which some positions become final.

        The outputs are those of the graphs `streaming_encoder` and `cross_kv`; the history is kept for later chunks.
        """
        for i in range(self._dims.n_audio_layer):
            self._append_history(f"past_k.{i}", outputs[f"key.{i}"][:, :, :final_positions], axis=2)
            self._append_history(f"past_v.{i}", outputs[f"value.{i}"][:, :final_positions], axis=1)
        for name, new in outputs.items():
            if name == "encoder_output" or name.startswith("cross"):
                earlier = self.outputs.get(name, new[..., :0, :])
                self.outputs[name] = write_at(earlier, self.final_positions, new)
        self.advance(mel, final_positions)

    def _append_history(self, name: str, new: Floats, axis: int) -> None:
        joined = np.concatenate([self._past_kv[name], new], axis)
        _, kept = np.split(joined, [joined.shape[axis] - self._history_positions], axis)
        self._past_kv[name] = np.ascontiguousarray(kept)


def _single_windows(windows: Floats) -> Iterator[slice]:
    """Yield a slice for each window: the graphs before the decoder take one window at a time."""
    return (slice(window, window + 1) for window in range(len(windows)))
