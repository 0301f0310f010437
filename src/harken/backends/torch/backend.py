"""The GPU engine: Whisper in PyTorch, and the state of its streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.backends.encoding import NO_ENCODER, StreamState, own_features, own_states
from harken.backends.loading import reporting_memory
from harken.backends.torch.device import DTYPES, choose_device, describe_device, memory_bytes, upload
from harken.backends.torch.logits import LogitVocabulary
from harken.backends.torch.model import AttentionFunction, WhisperModel, attend
from harken.backends.torch.session import TorchFeatures, TorchSession
from harken.backends.torch.static_cache import CudaGraphCache, CudaGraphCapture, GraphCapture, StaticCachePool
from harken.checkpoints.alignment_heads import KeptHeads
from harken.contract import Arrays, Capabilities, Features, Floats, Ints, StreamingEncoderState
from harken.types import FRAMES_PER_POSITION, Dims

MAX_IDLE_CACHES = {"cuda": 8, "mps": 2, "cpu": 2}
"""Static caches that are kept for later sessions; most on CUDA, where a new one has to capture its graphs again."""
IDLE_SHARE = 4
"""A GPU's memory over the most that idle caches may take, the last one aside."""
MAX_CAPTURED_WINDOWS = 4
"""Most windows whose encoding is captured: with more, the device takes longer than the host that starts its kernels."""
PAD_MULTIPLE = 250
"""Features of streams are padded to a multiple of this many positions, if decoder steps are captured.

A stream grows with every update, and without padding the steps would be captured again for every length.
"""


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
    heads, vocab_subset
        As for `harken.backends.numpy.NumpyBackend`.
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
        weights: Arrays,
        *,
        device: str = "auto",
        precision: str = "auto",
        heads: KeptHeads | None = None,
        vocab_subset: Ints | None = None,
        threads: int | None = None,
        graph_capture: Callable[[], GraphCapture] | Literal["auto"] | None = "auto",
        attention: AttentionFunction = attend,
    ) -> None:
        torch_device, precision = choose_device(device, precision)
        if threads is not None:
            torch.set_num_threads(threads)
        if graph_capture == "auto":
            graph_capture = partial(CudaGraphCapture, torch_device) if torch_device.type == "cuda" else None
        self.dims, self.heads = dims, heads or KeptHeads.of(dims)
        self.word_heads = self.heads.words
        self._model = WhisperModel(
            dims,
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

    def encode(self, mel: Floats, *, padded: bool = False) -> TorchFeatures:
        assert self.dims.has_encoder, NO_ENCODER
        assert not padded, "all positions are encoded: on a GPU that takes no longer"
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
        return TorchEncoderState(self._model, history_frames // FRAMES_PER_POSITION)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        own, device = own_states(states, TorchEncoderState), self._model.device
        chunk_positions = mel.shape[2] // FRAMES_PER_POSITION
        longest = max(state.final_positions for state in own) + chunk_positions
        assert longest <= self.dims.n_audio_ctx, "the stream is too long"
        mel_with_context = np.stack([s.with_context(chunk) for s, chunk in zip(own, mel, strict=True)])
        first_positions = upload([state.final_positions for state in own], device)
        past_kv, mask = _stack_past_kv(own, chunk_positions)
        encoder_output, new_kv = self._model.encode_chunk(
            upload(mel_with_context, device), first_positions, past_kv, mask, self._attention
        )
        cross_kv = self._model.project_cross_kv(encoder_output)
        for row, state in enumerate(own):
            state.append_chunk(
                mel_with_context[row],
                encoder_output[row],
                cross_kv[:, :, row],
                new_kv[:, row],
                final_frames // FRAMES_PER_POSITION,
            )

    def stream_features(self, states: Sequence[StreamingEncoderState]) -> TorchFeatures:
        """Make features with one window a stream, padded to a multiple of positions if decoder steps are captured.

        Windows without padding need no mask; where lengths are rounded they get one all the same, since the decoder's
        steps were captured with it.
        """
        own = own_states(states, TorchEncoderState)
        lengths = tuple(state.positions for state in own)
        padded = math.ceil(max(lengths) / self._pad_multiple) * self._pad_multiple
        positions = min(padded, self.dims.n_audio_ctx)
        return TorchFeatures(
            encoder_output=torch.stack([_pad_to(s.encoder_output, s.positions, positions) for s in own]),
            cross_kv=torch.stack([_pad_to(s.cross_kv, s.positions, positions) for s in own], dim=2),
            lengths=None if self._pad_multiple == 1 and min(lengths) == positions else lengths,
        )


class TorchEncoderState(StreamState):
    """`harken.contract.StreamingEncoderState` with keys and values of the last final positions.

    Cross-attention keys and values are computed once a chunk, and those of final positions are kept, so an update
    costs the projection of one chunk, not of the whole stream.

    Parameters
    ----------
    model : WhisperModel
    history_positions : int
        Number of final positions before a chunk that it attends to.
    """

    def __init__(self, model: WhisperModel, history_positions: int) -> None:
        dims = model.dims
        super().__init__(dims.n_mels)
        self._history_positions = history_positions

        def empty(*leading: int, state: int) -> Tensor:
            return torch.empty((*leading, 0, state), dtype=model.dtype, device=model.device)

        self.past_kv = empty(2 * dims.n_audio_layer, state=dims.n_audio_state)
        self.encoder_output = empty(state=dims.n_audio_state)
        self.cross_kv = empty(dims.n_text_layer, 2, state=dims.n_text_state)

    def append_chunk(
        self, mel: Floats, encoder_output: Tensor, cross_kv: Tensor, new_kv: Tensor, final_positions: int
    ) -> None:
        """Put an encoded chunk in place of the look-ahead, and keep the history that later chunks attend to."""
        self.encoder_output = _write_at(self.encoder_output, self.final_positions, encoder_output)
        self.cross_kv = _write_at(self.cross_kv, self.final_positions, cross_kv)
        past_kv = torch.cat([self.past_kv, new_kv[:, :final_positions]], dim=1)
        self.past_kv = past_kv[:, max(0, past_kv.shape[1] - self._history_positions) :]
        self.advance(mel, final_positions)


def _stack_past_kv(states: Sequence[TorchEncoderState], chunk_positions: int) -> tuple[Tensor, Tensor | None]:
    """Stack the histories of some streams, aligned at their ends; return them and the mask of the padding."""
    lengths = [state.past_kv.shape[1] for state in states]
    longest = max(lengths)
    missing = [longest - length for length in lengths]
    past_kv = torch.stack(
        [F.pad(state.past_kv, (0, 0, n, 0)) for state, n in zip(states, missing, strict=True)], dim=1
    )
    if not any(missing):
        return past_kv, None
    masked = np.arange(longest + chunk_positions) < np.array(missing)[:, None, None, None]
    return past_kv, upload(np.where(masked, -np.inf, 0), past_kv.device, past_kv.dtype)


def _write_at(buffer: Tensor, at: int, new: Tensor) -> Tensor:
    """Write from position `at` on, along the last axis but one; return the buffer, or a larger copy of it."""
    end = at + new.shape[-2]
    if end > buffer.shape[-2]:
        buffer = F.pad(buffer, (0, 0, 0, 2 * end - buffer.shape[-2]))
    buffer[..., at:end, :] = new
    return buffer


def _pad_to(buffer: Tensor, positions: int, audio_positions: int) -> Tensor:
    """Return the first positions of a buffer, padded with zeros."""
    return F.pad(buffer[..., :positions, :], (0, 0, 0, audio_positions - positions))
