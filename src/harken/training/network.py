"""Whisper in PyTorch for training: differentiable functions of named weights.

Source: openai/whisper, model.py. The engine in `harken.backends.torch` has a KV cache and decodes token by token; here
whole texts are processed at once, without a cache. Weights have the names of the original state dict, so that
checkpoints, the optimiser and exports need no translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from harken.types import Dims

NamedWeights = Mapping[str, Tensor]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Returns what queries attend to, given keys and values, all of shape (batch, heads, rows, head size)."""
TOKEN_EMBEDDING = "decoder.token_embedding.weight"
ALL_ROWS = slice(None)
_CAUSAL = partial(F.scaled_dot_product_attention, is_causal=True)


def as_tensors(
    weights: Mapping[str, NDArray[Any]], prefix: str = "", dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Return the weights whose names begin with a prefix."""
    return {name: torch.tensor(weights[name]).to(dtype) for name in weights if name.startswith(prefix)}


def as_arrays(weights: NamedWeights) -> dict[str, NDArray[np.float16]]:
    """Return weights as they are exported, float16."""
    return {name: values.detach().half().numpy() for name, values in weights.items()}


def with_changes(weights: NamedWeights, factors: NamedWeights) -> NamedWeights:
    """Return the weights with changes of low rank: W + B A for each name with factors ``.A`` and ``.B``.

    Source: Hu et al. 2021, "LoRA: Low-rank adaptation of large language models".
    """
    changed = [name[:-2] for name in factors if name.endswith(".A")]
    return {
        **weights,
        **{name: weights[name] + factors[f"{name}.B"] @ factors[f"{name}.A"] for name in changed},
    }


def initial_factors(weights: NamedWeights, names: Iterable[str], rank: int, seed: int) -> dict[str, Tensor]:
    """Return the factors of no change yet to some matrices: A random, B zero."""
    generator = torch.Generator().manual_seed(seed)
    factors = {}
    for name in names:
        rows, columns = weights[name].shape
        factors[f"{name}.A"] = torch.randn(rank, columns, generator=generator) / columns**0.5
        factors[f"{name}.B"] = torch.zeros(rows, rank)
    return {name: values.requires_grad_() for name, values in factors.items()}


def run_encoder(weights: NamedWeights, dims: Dims, mel: Tensor) -> Tensor:
    """Encode normalised log10 mel of shape (n_mels, frames): shape (frames / 2, n_audio_state)."""
    x = convolve(weights, mel)
    x = x + weights["encoder.positional_embedding"][: len(x)]
    for layer in range(dims.n_audio_layer):
        x = encode_layer(x, weights, dims, layer)
    return norm(x, weights, "encoder.ln_post")


def convolve(weights: NamedWeights, mel: Tensor) -> Tensor:
    """Apply the convolutions of the encoder to log-mel of shape (n_mels, frames): shape (frames / 2, n_audio_state)."""
    x = mel[None]
    for name, stride in (("encoder.conv1", 1), ("encoder.conv2", 2)):
        x = F.gelu(F.conv1d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, padding=1))
    return x[0].T


def encode_layer(
    x: Tensor,
    weights: NamedWeights,
    dims: Dims,
    layer: int,
    rows: Tensor | slice = ALL_ROWS,
    attention: Attention = F.scaled_dot_product_attention,
) -> Tensor:
    """Apply a layer of the encoder to states of shape (positions, n_audio_state), and return those of some rows."""
    block = f"encoder.blocks.{layer}"
    y = norm(x, weights, f"{block}.attn_ln")[None]
    x = x[rows] + _attend(y[:, rows], y, weights, f"{block}.attn", dims.n_audio_head, attention)[0]
    return x + _mlp(x, weights, block)


def run_decoder(
    weights: NamedWeights, dims: Dims, tokens: Tensor, encoder_output: Tensor, dropout: float = 0.0
) -> Tensor:
    """Run the decoder over texts of one window, with causal self-attention and dropout in each residual branch.

    For tokens of shape (texts, n) it returns final states of shape (texts, n, n_text_state), to be multiplied with the
    token embedding. Padding behind the end of a text does not change the states before it.
    """
    positions = weights["decoder.positional_embedding"][: tokens.shape[1]]
    x = F.embedding(tokens, weights[TOKEN_EMBEDDING]) + positions
    for layer in range(dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        y = norm(x, weights, f"{block}.attn_ln")
        x = x + F.dropout(_attend(y, y, weights, f"{block}.attn", dims.n_text_head, _CAUSAL), dropout)
        # All texts form one row of queries, so that the keys and values of the window are computed once.
        y = norm(x, weights, f"{block}.cross_attn_ln").flatten(0, 1)[None]
        y = _attend(y, encoder_output[None], weights, f"{block}.cross_attn", dims.n_text_head)
        x = x + F.dropout(y.view(x.shape), dropout)
        x = x + F.dropout(_mlp(x, weights, block), dropout)
    return norm(x, weights, "decoder.ln")


def _attend(
    x: Tensor,
    source: Tensor,
    weights: NamedWeights,
    name: str,
    heads: int,
    attention: Attention = F.scaled_dot_product_attention,
) -> Tensor:
    """Compute multi-head attention of (batch, n, state) to (batch, m, state)."""
    query, key, value = (
        _linear(y, weights, f"{name}.{part}").unflatten(-1, (heads, -1)).transpose(1, 2)
        for part, y in (("query", x), ("key", source), ("value", source))
    )
    attended = attention(query, key, value)
    return _linear(attended.transpose(1, 2).flatten(2), weights, f"{name}.out")


def _mlp(x: Tensor, weights: NamedWeights, block: str) -> Tensor:
    """Apply the feed-forward part of a block, with its layer norm."""
    y = _linear(norm(x, weights, f"{block}.mlp_ln"), weights, f"{block}.mlp.0")
    return _linear(F.gelu(y), weights, f"{block}.mlp.2")


def _linear(x: Tensor, weights: NamedWeights, name: str) -> Tensor:
    """Multiply with a matrix, and add its bias if it has one."""
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def norm(x: Tensor, weights: NamedWeights, name: str) -> Tensor:
    """Apply a layer norm."""
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])


MATRIX_SIZE = 512
REPEATS = 5
MIN_SPEEDUP = 1.2
"""Least speed-up by bfloat16 that is worth its lower precision."""


def fastest_matmul_dtype() -> torch.dtype:
    """Return bfloat16 where the processor multiplies it in hardware, else float32; takes some 20 ms."""
    use_bfloat16 = _matmul_seconds(torch.float32) > MIN_SPEEDUP * _matmul_seconds(torch.bfloat16)
    return torch.bfloat16 if use_bfloat16 else torch.float32


def _matmul_seconds(dtype: torch.dtype) -> float:
    """Return the shortest time of some products; the first ones include the set-up of libraries."""
    matrix = torch.ones(MATRIX_SIZE, MATRIX_SIZE, dtype=dtype)
    seconds = []
    for _ in range(REPEATS):
        start_s = perf_counter()
        matrix @ matrix
        seconds.append(perf_counter() - start_s)
    return min(seconds)
