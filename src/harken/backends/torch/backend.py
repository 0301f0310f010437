"""The GPU engine: Whisper in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harken.backends.encoding import NO_ENCODER, own_features, own_states
from harken.backends.loading import reporting_memory
from harken.backends.torch.device import DTYPES, choose_device, describe_device, memory_bytes, upload
from harken.backends.torch.logits import LogitVocabulary
from harken.backends.torch.model import AttentionFunction, WhisperModel, attend
from harken.backends.torch.session import TorchFeatures, TorchSession
from harken.backends.torch.static_cache import (
    CudaGraphCache,
    CudaGraphCapture,
    GraphCapture,
    StaticCachePool,
)
from harken.backends.torch.streaming_encoder import PAD_MULTIPLE, TorchEncoderState
from harken.checkpoints.alignment_heads import AlignmentHeads, KeptHeads
from harken.contract import Capabilities, Features, Floats, Ints, SparsePositions, StreamingEncoderState
from harken.types import FRAMES_PER_POSITION, Dims, WordHead

MAX_IDLE_CACHES = {"cuda": 8, "mps": 2, "cpu": 2}
"""Static caches that are kept for later sessions; most on CUDA, where a new one has to capture its graphs again."""
IDLE_SHARE = 4
"""A GPU's memory over the most that idle caches may take, the last one aside."""
MAX_CAPTURED_WINDOWS = 4
"""Most windows whose encoding is captured: with more, the device takes longer than the host that starts its kernels."""


class TorchBackend:
    """`harken.contract.Backend` in PyTorch.

    All work goes to the device's current stream; threads that share a backend share one stream too.

    Parameters
    ----------
    dims : Dims
    weights : mapping of str to ndarray
        By the names of the original state dict, any float dtype; read once.
    device : str
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``; ``"auto"`` is the first available of cuda, mps, cpu.
    precision : {"auto", "fp32", "fp16", "bf16"}
        "auto" is fp16, on the CPU fp32.
    shares_encoder : bool
        Load the decoder only: features come from `reuse_encoder_output`, and `encode` must not be called.
    vocab_subset : ndarray of int64, or None
        Ascending ids of the tokens that logits cover; None is all. Prompts may hold any token.
    alignment_heads : tuple of (layer, head), or None
        Heads of `Session.attention`; None is all heads of the upper half of the decoder's layers.
    word_heads : tuple of WordHead
        Its other heads.
    threads : int, optional
        Threads of PyTorch on the CPU, in the whole process; by default PyTorch's own choice.
    graph_capture : callable, "auto" or None
        Makes a `GraphCapture` for each static cache; with None, no step is captured. "auto" captures CUDA graphs on
        CUDA, and nothing elsewhere.
    attention : AttentionFunction
        Attention of the encoder, in whole windows and in streams: to every key, or `LSHAttention`.

    Raises
    ------
    OptionError
        If this machine has no such device, or cannot compute in that precision there.
    """

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, NDArray[Any]],
        *,
        device: str = "auto",
        precision: str = "auto",
        shares_encoder: bool = False,
        vocab_subset: Ints | None = None,
        alignment_heads: AlignmentHeads | None = None,
        word_heads: tuple[WordHead, ...] = (),
        threads: int | None = None,
        graph_capture: Callable[[], GraphCapture] | Literal["auto"] | None = "auto",
        attention: AttentionFunction = attend,
    ) -> None:
        torch_device, precision = choose_device(device, precision)
        if threads is not None:
            torch.set_num_threads(threads)
        if graph_capture == "auto":
            graph_capture = partial(CudaGraphCapture, torch_device) if torch_device.type == "cuda" else None
        self.dims = dims.without_encoder() if shares_encoder else dims
        self.word_heads, self.heads = word_heads, KeptHeads.of(alignment_heads, word_heads, dims)
        self._model = WhisperModel(
            self.dims,
            weights,
            vocab_subset=vocab_subset,
            heads=self.heads,
            device=torch_device,
            dtype=DTYPES[precision],
        )
        self._vocabulary = LogitVocabulary(
            np.arange(dims.n_vocab) if vocab_subset is None else vocab_subset, torch_device
        )
        self._cache_pool = StaticCachePool(
            self._model,
            graph_capture,
            MAX_IDLE_CACHES[torch_device.type],
            memory_bytes(torch_device) // IDLE_SHARE,
        )
        self._encoder_graphs = CudaGraphCache(graph_capture()) if graph_capture is not None else None
        self._encoder_lock = Lock()
        self._attention = attention
        self._pad_multiple = PAD_MULTIPLE if graph_capture is not None else 1
        self.capabilities = Capabilities(
            name="torch",
            precision=precision,
            device=torch_device.type,
            detail=f"torch {torch.__version__} {precision} on {describe_device(torch_device)}"
            + (f", {attention}" if attention is not attend else ""),
            picks_best=True,
        )

    @staticmethod
    def clock() -> float:
        return perf_counter() - CudaGraphCache.capture_s

    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> TorchFeatures:
        assert self.dims.has_encoder, NO_ENCODER
        assert positions is None, "all positions are encoded: on a GPU that takes no longer"
        with reporting_memory(f"encoding {len(mel)} windows at a time"):
            encoder_output = self._encode(upload(mel, self._model.device))
            return TorchFeatures(encoder_output, self._model.project_cross_kv(encoder_output))

    def _encode(self, mel: Tensor) -> Tensor:
        encode = partial(self._model.encode, attend=self._attention)
        whole = mel.shape[2] == FRAMES_PER_POSITION * self.dims.n_audio_ctx
        captured = whole and len(mel) <= MAX_CAPTURED_WINDOWS and self._attention is attend
        if self._encoder_graphs is None or not captured:
            return encode(mel)
        with self._encoder_lock:  # of threads that share the static input and output
            return self._encoder_graphs(len(mel), encode, mel).clone()

    def encoder_output(self, features: Features) -> Floats:
        own = own_features(features, TorchFeatures)
        positions = max(own.lengths or [own.positions])  # without padding that is there for captured steps
        encoder_output: Floats = own.encoder_output[:, :positions].float().cpu().numpy()
        return encoder_output

    def reuse_encoder_output(self, features: Features) -> TorchFeatures:
        own = own_features(features, TorchFeatures)
        return replace(own, cross_kv=self._model.project_cross_kv(own.encoder_output))

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> TorchSession:
        own = own_features(features, TorchFeatures)
        return TorchSession(self._cache_pool, self._vocabulary, own, row_windows, capacity, attention)

    def open_encoder(self, history_frames: int) -> TorchEncoderState:
        assert self.dims.has_encoder, NO_ENCODER
        return TorchEncoderState(self._model, history_frames // FRAMES_PER_POSITION, self._attention)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        TorchEncoderState.encode_chunk(
            own_states(states, TorchEncoderState), mel, final_frames // FRAMES_PER_POSITION
        )

    def stream_features(self, states: Sequence[StreamingEncoderState]) -> TorchFeatures:
        return TorchEncoderState.stream_features(own_states(states, TorchEncoderState), self._pad_multiple)
