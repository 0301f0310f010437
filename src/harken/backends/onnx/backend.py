"""The CPU engine: ONNX graphs, each executed by the runtime that was measured to be fastest for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from harken.backends.encoding import NO_ENCODER, encoded_windows, own_features, own_states, stack_padded
from harken.backends.onnx.encoder_graphs import EncoderGraphs, OnnxEncoderState
from harken.backends.onnx.graph_loader import GraphLoader
from harken.backends.onnx.session import OnnxFeatures, OnnxSession
from harken.checkpoints import Weights
from harken.checkpoints.alignment_heads import KeptHeads
from harken.compiled_library import usable_processors
from harken.contract import Capabilities, Features, Floats, Ints, StreamingEncoderState
from harken.types import FRAMES_PER_POSITION, Dims


class OnnxBackend:
    """`harken.contract.Backend` on ONNX Runtime and OpenVINO.

    Parameters
    ----------
    dims : Dims
    weights : Weights
        Read only when a graph has to be built; stored graphs are reused where the digest is the same.
    precision : {"auto", "fp32", "bf16", "int8", "int4"}
        "auto" is int8; int4 is for assistants.
    threads : int or None
        Threads of one forward pass; by default the processors that this process may use.
    cache : Path or None
        Directory of stored graphs; by default in the user's cache directory.
    heads, vocab_subset
        As for `harken.backends.numpy.NumpyBackend`.

    Raises
    ------
    OptionError
        If this machine cannot compute in that precision.
    CheckpointError
        If the weights are damaged, or their files change while they are read.
    OutputError
        If graphs have to be built and cannot be stored anywhere.
    OutOfMemory
        If the model does not fit into memory.
    BackendUnavailable
        If a runtime is not installed.
    """

    clock = staticmethod(perf_counter)

    def __init__(
        self,
        dims: Dims,
        weights: Weights,
        *,
        precision: str = "auto",
        threads: int | None = None,
        cache: Path | None = None,
        heads: KeptHeads | None = None,
        vocab_subset: Ints | None = None,
    ) -> None:
        self.dims, self.heads, self.vocab_subset = dims, heads or KeptHeads.of(dims), vocab_subset
        self.word_heads = self.heads.words
        self.threads = threads or usable_processors()
        loader = GraphLoader(
            dims=dims,
            weights=weights,
            precision=precision,
            threads=self.threads,
            cache=cache,
            alignment_heads=self.heads.all,
            vocab_subset=vocab_subset,
        )
        self._decoder, *_ = loader.load("decoder", "cross_kv", *(["encoder"] if dims.has_encoder else []))
        self._encoder = EncoderGraphs(dims, loader)
        self.plan = loader.plan
        self.capabilities = Capabilities(
            name="onnx",
            precision=self.plan.precision,
            device="cpu",
            detail=f"{self.plan}, {self.threads} threads",
            frozen_padding=True,
        )

    def encode(self, mel: Floats, *, padded: bool = False) -> OnnxFeatures:
        assert self.dims.has_encoder, NO_ENCODER
        encoder_output, padding = (
            self._encoder.encode_padded(mel) if padded else (self._encoder.encode(mel), None)
        )
        return OnnxFeatures(encoder_output, self._encoder.project(encoder_output), padding=padding)

    def encoder_output(self, features: Features) -> Floats:
        return own_features(features, OnnxFeatures).encoder_output

    def reuse_encoder_output(self, features: Features) -> OnnxFeatures:
        encoded = encoded_windows(features)
        outputs = encoded.outputs()
        encoder_output = stack_padded(outputs)
        cross_kv = self._encoder.project(encoder_output)
        return OnnxFeatures(encoder_output, cross_kv, [*map(len, outputs)], encoded.padding)

    def open_encoder(self, history_frames: int) -> OnnxEncoderState:
        assert self.dims.has_encoder, NO_ENCODER
        return OnnxEncoderState(self.dims, history_frames // FRAMES_PER_POSITION)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        self._encoder.encode_chunk(own_states(states, OnnxEncoderState), mel, final_frames)

    def stream_features(self, states: Sequence[StreamingEncoderState]) -> OnnxFeatures:
        own = own_states(states, OnnxEncoderState)
        arrays = {
            name: stack_padded([state.outputs[name][..., : state.positions, :] for state in own])
            for name in own[0].outputs
        }
        return OnnxFeatures(arrays.pop("encoder_output"), arrays, [state.positions for state in own])

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> OnnxSession:
        return OnnxSession(
            self._decoder,
            self.dims,
            own_features(features, OnnxFeatures),
            row_windows,
            capacity,
            heads=self.heads if attention else None,
            vocab_subset=self.vocab_subset,
        )
