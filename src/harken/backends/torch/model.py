"""The two halves of Whisper in PyTorch, over memory that somebody else owns.

Source: openai/whisper, model.py. What differs from it: the decoder writes keys and values where its positions say,
into memory that never moves, and looks at what lies at or before its own position. No shape and no flag says what is
causal, so that a prompt, a step and a draft to verify are the same computation, and forgetting is a smaller position.
Nothing here waits for the device or depends on the numbers in a tensor, so a CUDA graph can record it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from harken.backends.torch.attention import AttentionFunction, attend
from harken.backends.torch.device import upload
from harken.backends.torch.linear import linear, prepack
from harken.backends.torch.weights import load_weights
from harken.checkpoints.alignment_heads import AlignmentHeads
from harken.contract import Ints
from harken.types import Dims


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """What a decoder reads and writes, at addresses that never change.

    A *lane* is a window that is listened to; each has as many *seats*, one a row, side by side.

    Parameters
    ----------
    cross : Tensor of shape (layers, 2, lanes, n_audio_ctx, n_text_state)
        Keys and values of the windows, once for all rows that listen.
    tracks : Tensor of shape (2 * layers + kept layers, seats, n_text_ctx + 1, n_text_state)
        For each layer the keys of all tokens and then their values; behind these the cross-attention queries of the
        layers that `Model.alignment` looks at, or nothing. What is written into the slot behind the last one is lost.
    beyond : Tensor of shape (lanes, n_audio_ctx)
        Read where windows differ in length: 0 inside of a lane's window, -inf behind its end.
    """

    cross_kv: Tensor
    kv: Tensor
    padding_mask: Tensor


class WhisperModel:
    """Weights on a device, and what is computed with them.

    Parameters
    ----------
    dims : Dims
        Those of a decoder alone have it leave the encoder's weights unread.
    weights : mapping of str to ndarray
        By the names of the original state dict; read once, one at a time.
    vocabulary : ndarray of shape (columns,), int64, or None
        Ids that `logits` covers; None is all.
    heads : tuple of (layer, head)
        Heads whose cross-attention can be asked for.
    device : torch.device
    dtype : torch.dtype
    """

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, NDArray[Any]],
        *,
        vocab_subset: Ints | None,
        alignment_heads: AlignmentHeads,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.dims, self.device, self.dtype = dims, device, dtype
        self.alignment_heads, self.alignment_layers = (
            alignment_heads,
            tuple(sorted({layer for layer, _ in alignment_heads})),
        )
        self._weights = load_weights(weights, dims, device, dtype)
        embedding = self._weights["decoder.token_embedding.weight"]
        self._lm_head = prepack(embedding if vocab_subset is None else embedding[upload(vocab_subset, device)])

    def allocate_cache(self, windows: int, rows_per_window: int, attention: bool) -> KVCache:
        """Allocate memory for so many windows with so many seats each."""
        dims = self.dims
        kv_tensors = 2 * dims.n_text_layer + len(self.alignment_layers) * attention
        cross_shape = (dims.n_text_layer, 2, windows, dims.n_audio_ctx, dims.n_text_state)
        return KVCache(
            cross_kv=torch.zeros(cross_shape, dtype=self.dtype, device=self.device),
            kv=torch.zeros(
                (kv_tensors, windows * rows_per_window, dims.n_text_ctx + 1, dims.n_text_state),
                dtype=self.dtype,
                device=self.device,
            ),
            padding_mask=torch.zeros((windows, dims.n_audio_ctx), dtype=self.dtype, device=self.device),
        )

    def encode(self, mel: Tensor) -> Tensor:
        """Encode log-mel of shape (audios, n_mels, 2 n): shape (audios, n, n_audio_state)."""
        dims, w = self.dims, self._weights
        x = mel.to(self.device, self.dtype).transpose(1, 2)
        x = F.gelu(self._convolve(_pad_frames(x), "encoder.conv1", stride=1))
        x = F.gelu(self._convolve(_pad_frames(x), "encoder.conv2", stride=2))
        x = x + w["encoder.positional_embedding"][: x.shape[1]]
        for layer in range(dims.n_audio_layer):
            block = f"encoder.blocks.{layer}"
            query, key, value = self._qkv(x, block)
            x = x + self._linear(attend(query, key, value, dims.n_audio_head), f"{block}.attn.out")
            x = x + self._mlp(x, block)
        return self._norm(x, "encoder.ln_post")

    def encode_chunk(
        self,
        mel: Tensor,
        first_positions: Tensor,
        past_kv: Tensor,
        mask: Tensor | None,
        attend: AttentionFunction,
    ) -> tuple[Tensor, Tensor]:
        """Encode the next windows of some streams, W positions each.

        Parameters
        ----------
        mel : Tensor of shape (streams, n_mels, 2 W + 3)
            From 2 frames before the window to 1 frame behind it; zeros where the stream has none.
        first : Tensor of shape (streams,), int64
            Position of the first two frames of each window in its stream.
        past : Tensor of shape (2 * layers, streams, history, n_audio_state)
            For each layer the keys that windows look back at, then their values.
        mask : Tensor of shape (streams, 1, 1, history + W), or None
            -inf where a stream has no past, 0 elsewhere.
        attend : Attend

        Returns
        -------
        encoded : Tensor of shape (streams, W, n_audio_state)
        fresh : Tensor of shape (2 * layers, streams, W, n_audio_state)
            Keys and values of the windows, as in `past`.
        """
        dims, w = self.dims, self._weights
        x = mel.to(self.device, self.dtype).transpose(1, 2)
        x = F.gelu(self._convolve(x, "encoder.conv1", stride=1))
        x[:, 0] *= (first_positions > 0)[:, None]  # before the stream the second convolution is padded, too
        x = F.gelu(self._convolve(x, "encoder.conv2", stride=2))
        positions = first_positions[:, None] + torch.arange(x.shape[1], device=x.device)
        x = x + w["encoder.positional_embedding"][positions]
        new_kv: list[Tensor] = []
        for layer in range(dims.n_audio_layer):
            block = f"encoder.blocks.{layer}"
            query, *chunk_kv = self._qkv(x, block)
            key, value = (torch.cat(pair, 1) for pair in zip(past_kv[2 * layer :], chunk_kv, strict=False))
            new_kv += chunk_kv
            x = x + self._linear(attend(query, key, value, dims.n_audio_head, mask), f"{block}.attn.out")
            x = x + self._mlp(x, block)
        return self._norm(x, "encoder.ln_post"), torch.stack(new_kv)

    def project_cross_kv(self, encoder_output: Tensor) -> Tensor:
        """Cross-attention keys and values of what was encoded by this model, or by another with the same encoder.

        Returns
        -------
        Tensor of shape (layers, 2, audios, n, n_text_state)
        """
        dims, x = self.dims, encoder_output.to(self.device, self.dtype)
        cross_kv = x.new_empty((dims.n_text_layer, 2, *x.shape[:2], dims.n_text_state))
        for layer, layer_kv in enumerate(cross_kv):
            layer_kv[0], layer_kv[1] = self._linear(x, f"decoder.blocks.{layer}.cross_attn.kv").chunk(2, -1)
        return cross_kv

    def decode(
        self,
        lengths_and_tokens: Tensor,
        kv_cache: KVCache,
        past_positions: int,
        audio_positions: int,
        ragged: bool,
    ) -> Tensor:
        """Read new tokens in every seat.

        Parameters
        ----------
        grid : Tensor of shape (seats, 1 + n), int64
            How many tokens each seat has seen, and the n that follow. A seat with fewer brings anything behind them:
            that lies behind the seat's last position, where nobody looks before it is overwritten.
        memory : Memory
            Keys and values of the new tokens are written into it.
        keys : int
            How many positions of the past are looked through, at least as many as any seat has in use.
        span : int
            How many positions the windows have.
        ragged : bool
            Whether some have less, so that `Memory.beyond` counts.

        Returns
        -------
        Tensor of shape (seats, n, n_text_state)
            Ready for `logits`.
        """
        dims, w, layers = self.dims, self._weights, self.dims.n_text_layer
        cache_rows, n = lengths_and_tokens.shape[0], lengths_and_tokens.shape[1] - 1
        captured_layers = self.alignment_layers[: len(kv_cache.kv) - 2 * layers]
        positions = (lengths_and_tokens[:, :1] + torch.arange(n, device=lengths_and_tokens.device)).clamp(
            max=dims.n_text_ctx
        )
        first_slots = torch.arange(cache_rows, device=lengths_and_tokens.device)[:, None] * (
            dims.n_text_ctx + 1
        )
        slots = (first_slots + positions).flatten()
        masked = torch.arange(past_positions, device=lengths_and_tokens.device) > positions[:, None, :, None]
        mask = torch.zeros(masked.shape, dtype=self.dtype, device=lengths_and_tokens.device).masked_fill(
            masked, -math.inf
        )
        padding_mask = kv_cache.padding_mask[:, None, None, :audio_positions] if ragged else None

        def write_cache(index: int, values: Tensor) -> Tensor:
            """Write into a track and return what is to be looked through."""
            kv_cache.kv[index].view(-1, dims.n_text_state).index_copy_(0, slots, values.flatten(0, 1))
            return kv_cache.kv[index][:, :past_positions]

        x = (
            w["decoder.token_embedding.weight"][lengths_and_tokens[:, 1:]]
            + w["decoder.positional_embedding"][positions]
        )
        for layer in range(layers):
            block = f"decoder.blocks.{layer}"
            query, key, value = self._qkv(x, block)
            past = write_cache(2 * layer, key), write_cache(2 * layer + 1, value)
            x = x + self._linear(attend(query, *past, dims.n_text_head, mask), f"{block}.attn.out")
            query = self._linear(self._norm(x, f"{block}.cross_attn_ln"), f"{block}.cross_attn.query")
            if layer in captured_layers:
                write_cache(2 * layers + captured_layers.index(layer), query)
            # Seats of a lane stand side by side, so that to the window they are one row of many queries.
            key, value = kv_cache.cross_kv[layer, :, :, :audio_positions]
            query = query.reshape(len(key), -1, dims.n_text_state)
            attended = attend(query, key, value, dims.n_text_head, padding_mask)
            x = x + self._linear(attended.reshape(x.shape), f"{block}.cross_attn.out")
            x = x + self._mlp(x, block)
        return self._norm(x, "decoder.ln")

    def logits(self, x: Tensor) -> Tensor:
        """Project onto the vocabulary, or its chosen part: shape (P, n_text_state) to (P, columns), float32."""
        return linear(x, self._lm_head).float()

    def alignment_weights(self, queries: Tensor, keys: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Cross-attention of the alignment heads.

        Parameters
        ----------
        queries : Tensor of shape (kept layers, tokens, n_text_state)
        keys : Tensor of shape (layers, positions, n_text_state)
        beyond : Tensor of shape (positions,), or None
            -inf behind the end of the window, 0 elsewhere.

        Returns
        -------
        Tensor of shape (heads, tokens, positions), float32
        """
        heads = self.dims.n_text_head
        layers, head_indices = [list(column) for column in zip(*self.alignment_heads, strict=True)]
        query_indices = [self.alignment_layers.index(layer) for layer in layers]
        q = queries.unflatten(-1, (heads, -1))[query_indices, :, head_indices].float()
        k = keys.unflatten(-1, (heads, -1))[layers, :, head_indices].float()
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        return (scores if padding_mask is None else scores + padding_mask.float()).softmax(-1)

    def _qkv(self, x: Tensor, block: str) -> tuple[Tensor, ...]:
        """Query, key and value of self-attention."""
        y = self._linear(self._norm(x, f"{block}.attn_ln"), f"{block}.attn.qkv")
        parts: tuple[Tensor, ...] = y.chunk(3, -1)
        return parts

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _mlp(self, x: Tensor, block: str) -> Tensor:
        y = F.gelu(self._linear(self._norm(x, f"{block}.mlp_ln"), f"{block}.mlp.0"))
        return self._linear(y, f"{block}.mlp.2")

    def _convolve(self, x: Tensor, name: str, stride: int) -> Tensor:
        """Convolution of width 3 over (audios, frames, channels), where all 3 frames are.

        As a matrix product, because cuDNN's convolutions round float32 to TF32 unless a global switch is thrown.
        """
        return self._linear(x.unfold(1, 3, stride).flatten(2), name)


def _pad_frames(x: Tensor) -> Tensor:
    """A frame of zeros on either side of (audios, frames, channels)."""
    return F.pad(x, (0, 0, 1, 1))
