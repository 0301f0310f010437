"""Whisper's encoder and decoder in PyTorch, over a KV cache that the caller owns.

Source: openai/whisper, model.py. Unlike there, the decoder writes keys and values at the positions of its tokens into
a static cache, and each token attends to the cached positions up to its own. So a prompt, a step and the verification
of a draft are the same computation, and a rewind is a smaller position. No code here waits for the device or depends on
the content of a tensor, so a CUDA graph can capture it.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.backends.torch.device import upload
from harken.checkpoints.alignment_heads import KeptHeads
from harken.contract import Arrays, Ints
from harken.types import Dims


def prepack(weight: Tensor) -> Tensor:
    """Prepack a matrix of shape (outputs, inputs) for `linear`; return it unchanged where that brings nothing.

    A linear layer has to take about the same time for a few rows as for one, so that verifying a draft is cheap. On a
    GPU `torch.nn.functional.linear` does so. On an x86 processor it has a special kernel for a single row, and from two
    rows on it rearranges the whole matrix at every call, which doubles the time. There a matrix is prepacked once by
    oneDNN, whose product with nine rows takes about as long as with one. PyTorch's compiler freezes models with the
    same operators (torch/_inductor/mkldnn_lowerings.py).
    """
    return torch.ops.mkldnn._reorder_linear_weight(weight) if _benefits_from_prepacking(weight) else weight


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows of shape (..., inputs) by a matrix from `prepack`: shape (..., outputs)."""
    if weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return y
    return F.linear(x, weight, bias)


def _benefits_from_prepacking(weight: Tensor) -> bool:
    x86 = weight.device.type == "cpu" and platform.machine().lower() in {"x86_64", "amd64"}
    if not (x86 and torch.backends.mkldnn.is_available()):
        return False
    match weight.dtype:
        case torch.float16:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        case torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        case _:
            return True


class AttentionFunction(Protocol):
    """A way to compute multi-head attention."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None
    ) -> Tensor:
        """Compute attention over (batch, tokens, state).

        Parameters
        ----------
        query : Tensor of shape (batch, queries, state)
        key, value : Tensor of shape (batch, keys, state)
        heads : int
        mask : Tensor that broadcasts to (batch, heads, queries, keys), or None
            Added to the scores: -inf at masked keys.

        Returns
        -------
        Tensor of shape (batch, queries, state)
        """
        ...


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Attend from every query to every key, fused where PyTorch has a kernel (see `AttentionFunction`)."""

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    attended = F.scaled_dot_product_attention(split(query), split(key), split(value), attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """The tensors that the decoder reads and writes, at addresses that never change.

    Every window has the same number of cache rows, side by side, one for each row of the session.

    Parameters
    ----------
    cross_kv : Tensor of shape (layers, 2, windows, n_audio_ctx, n_text_state)
        Cross-attention keys and values, once for all rows of a window.
    kv : Tensor of shape (2 * layers + captured layers, cache rows, n_text_ctx + 1, n_text_state)
        For each layer the keys of all tokens and then their values; behind these the cross-attention queries of
        `WhisperModel.alignment_layers`, if attention is kept. The last position takes the writes of padding tokens.
    padding_mask : Tensor of shape (windows, n_audio_ctx)
        0 inside of a window, -inf behind its end; read only where windows differ in length.
    """

    cross_kv: Tensor
    kv: Tensor
    padding_mask: Tensor


class WhisperModel:
    """A Whisper model on a device.

    Parameters
    ----------
    dims : Dims
        Without an encoder, the encoder's weights are not read.
    weights : mapping of str to ndarray
        By the names of the original state dict; read once, one at a time.
    vocab_subset : ndarray of shape (columns,), int64, or None
        Ids that `logits` covers; None is all.
    heads : KeptHeads
        Heads of `alignment_weights`.
    device : torch.device
    dtype : torch.dtype
    """

    def __init__(
        self,
        dims: Dims,
        weights: Arrays,
        *,
        vocab_subset: Ints | None,
        heads: KeptHeads,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.dims, self.device, self.dtype = dims, device, dtype
        self.heads = heads
        self.alignment_layers = tuple(sorted({layer for layer, _ in heads.all}))
        self._weights = _load_weights(weights, dims, device, dtype)
        embedding = self._weights["decoder.token_embedding.weight"]
        self._lm_head = prepack(embedding if vocab_subset is None else embedding[upload(vocab_subset, device)])

    def allocate_cache(self, windows: int, rows_per_window: int, attention: bool) -> KVCache:
        """Allocate the cache of some windows with the same number of rows each."""
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

    def encode(self, mel: Tensor, attend: AttentionFunction = attend) -> Tensor:
        """Encode log-mel of shape (windows, n_mels, 2 n): shape (windows, n, n_audio_state)."""
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
        """Encode the next chunks of some streams, W positions each.

        Parameters
        ----------
        mel : Tensor of shape (streams, n_mels, 2 W + 3)
            From 2 frames before the chunk to 1 frame behind it; zeros where the stream has none.
        first_positions : Tensor of shape (streams,), int64
            Position of the first two frames of each chunk in its stream.
        past_kv : Tensor of shape (2 * layers, streams, history, n_audio_state)
            For each layer the keys of the history, then their values.
        mask : Tensor of shape (streams, 1, 1, history + W), or None
            -inf where a stream has a shorter history, 0 elsewhere.
        attend : AttentionFunction

        Returns
        -------
        encoder_output : Tensor of shape (streams, W, n_audio_state)
        new_kv : Tensor of shape (2 * layers, streams, W, n_audio_state)
            Keys and values of the chunks, as in `past_kv`.
        """
        dims, w = self.dims, self._weights
        x = mel.to(self.device, self.dtype).transpose(1, 2)
        x = F.gelu(self._convolve(x, "encoder.conv1", stride=1))
        x[:, 0] *= (first_positions > 0)[:, None]  # zero padding of the second convolution at the start
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
        """Project encoder output, of this model or one with the same encoder, to cross-attention keys and values.

        Returns
        -------
        Tensor of shape (layers, 2, windows, n, n_text_state)
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
        """Read new tokens in every cache row.

        Parameters
        ----------
        lengths_and_tokens : Tensor of shape (cache rows, 1 + n), int64
            Number of tokens that each cache row holds, and the n new ones. A row with fewer new tokens is padded with
            any ids: their keys lie behind the row's last position, which is overwritten before it is attended to.
        kv_cache : KVCache
            Takes the keys and values of the new tokens.
        past_positions : int
            Number of cached positions that are attended to, at least those in use by the longest row.
        audio_positions : int
            Number of positions of the windows.
        ragged : bool
            True if some windows are shorter, so that `KVCache.padding_mask` is needed.

        Returns
        -------
        Tensor of shape (cache rows, n, n_text_state)
            Input of `logits`.
        """
        dims, w, layers = self.dims, self._weights, self.dims.n_text_layer
        device, cache_rows, n = (
            lengths_and_tokens.device,
            len(lengths_and_tokens),
            lengths_and_tokens.shape[1] - 1,
        )
        captured_layers = self.alignment_layers[: len(kv_cache.kv) - 2 * layers]
        positions = (lengths_and_tokens[:, :1] + torch.arange(n, device=device)).clamp(max=dims.n_text_ctx)
        first_slots = torch.arange(cache_rows, device=device)[:, None] * (dims.n_text_ctx + 1)
        slots = (first_slots + positions).flatten()
        masked = torch.arange(past_positions, device=device) > positions[:, None, :, None]
        mask = torch.zeros(masked.shape, dtype=self.dtype, device=device).masked_fill(masked, -math.inf)
        padding_mask = kv_cache.padding_mask[:, None, None, :audio_positions] if ragged else None

        def write_cache(index: int, values: Tensor) -> Tensor:
            """Write into one tensor of the cache and return its past positions."""
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
            # The rows of a window lie side by side: to its cross-attention they are one row with many queries.
            key, value = kv_cache.cross_kv[layer, :, :, :audio_positions]
            query = query.reshape(len(key), -1, dims.n_text_state)
            attended = attend(query, key, value, dims.n_text_head, padding_mask)
            x = x + self._linear(attended.reshape(x.shape), f"{block}.cross_attn.out")
            x = x + self._mlp(x, block)
        return self._norm(x, "decoder.ln")

    def logits(self, x: Tensor) -> Tensor:
        """Project onto the vocabulary, or the subset of it: shape (P, n_text_state) to (P, columns), float32."""
        return linear(x, self._lm_head).float()

    def alignment_weights(self, queries: Tensor, keys: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Compute the cross-attention of the heads that are kept.

        Parameters
        ----------
        queries : Tensor of shape (alignment layers, tokens, n_text_state)
        keys : Tensor of shape (layers, positions, n_text_state)
        padding_mask : Tensor of shape (positions,), or None
            -inf behind the end of the window, 0 elsewhere.

        Returns
        -------
        Tensor of shape (heads, tokens, positions), float32
        """
        heads = self.dims.n_text_head
        layers, head_indices = [list(column) for column in zip(*self.heads.all, strict=True)]
        query_indices = [self.alignment_layers.index(layer) for layer in layers]
        q = queries.unflatten(-1, (heads, -1))[query_indices, :, head_indices].float()
        k = keys.unflatten(-1, (heads, -1))[layers, :, head_indices].float()
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        return (scores if padding_mask is None else scores + padding_mask.float()).softmax(-1)

    def _qkv(self, x: Tensor, block: str) -> tuple[Tensor, ...]:
        """Project to query, key and value of self-attention."""
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
        """Convolve (windows, frames, channels) with kernels of width 3, without padding.

        It is a matrix product, because cuDNN's convolutions round float32 to TF32 unless a global switch is set.
        """
        return self._linear(x.unfold(1, 3, stride).flatten(2), name)


def _pad_frames(x: Tensor) -> Tensor:
    """Pad (windows, frames, channels) with a frame of zeros on either side."""
    return F.pad(x, (0, 0, 1, 1))


def _load_weights(weights: Arrays, dims: Dims, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Load the weights to the device; layers that read the same input are fused into one matrix.

    The encoder's weights are read if `dims` has an encoder. Matrices are prepacked for `linear`.
    """
    names = [name for name in weights if dims.has_encoder or not name.startswith("encoder.")]
    loaded = {name: torch.tensor(weights[name]).to(device, dtype) for name in names}
    # One more position: that of padding tokens (see `KVCache.kv`).
    loaded["decoder.positional_embedding"] = F.pad(loaded["decoder.positional_embedding"], (0, 0, 0, 1))
    for layer in range(dims.n_text_layer):
        _fuse(loaded, f"decoder.blocks.{layer}.attn", "qkv", ("query", "key", "value"))
        _fuse(loaded, f"decoder.blocks.{layer}.cross_attn", "kv", ("key", "value"))
    if dims.has_encoder:
        for name in ("encoder.conv1.weight", "encoder.conv2.weight"):
            loaded[name] = loaded[name].flatten(1)
        for layer in range(dims.n_audio_layer):
            _fuse(loaded, f"encoder.blocks.{layer}.attn", "qkv", ("query", "key", "value"))
    return {
        name: prepack(weight) if _is_linear_weight(name, weight) else weight for name, weight in loaded.items()
    }


def _is_linear_weight(name: str, weight: Tensor) -> bool:
    return weight.dim() == 2 and name.endswith(".weight") and name != "decoder.token_embedding.weight"


def _fuse(weights: dict[str, Tensor], attention: str, fused: str, parts: Sequence[str]) -> None:
    zero_bias = torch.zeros_like(weights[f"{attention}.value.bias"])  # keys have no bias
    for kind in ("weight", "bias"):
        matrices = [weights.pop(f"{attention}.{part}.{kind}", zero_bias) for part in parts]
        weights[f"{attention}.{fused}.{kind}"] = torch.cat(matrices)
