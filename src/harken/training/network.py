"""Whisper in PyTorch for training: functions of named weights, through which gradients flow.

Source: openai/whisper, model.py. The engine in `harken.backends.torch` keeps keys and values and works token by token;
here whole texts are read at once and nothing is kept. Weights go by the names of the original state dict, so that
there is nothing to translate between a checkpoint, the optimiser and an export.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.types import Dims

NamedWeights = Mapping[str, Tensor]


def run_encoder(weights: NamedWeights, dims: Dims, mel: Tensor) -> Tensor:
    """Encode a piece.

    Parameters
    ----------
    weights : mapping of str to Tensor
    dims : Dims
    mel : Tensor of shape (n_mels, frames), float32, normalised log10 mel

    Returns
    -------
    Tensor of shape (frames / 2, n_audio_state)
    """
    x = mel[None]
    for name, stride in (("encoder.conv1", 1), ("encoder.conv2", 2)):
        x = F.gelu(F.conv1d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride, padding=1))
    x = x[0].T + weights["encoder.positional_embedding"][: x.shape[2]]
    for layer in range(dims.n_audio_layer):
        block = f"encoder.blocks.{layer}"
        y = _norm(x, weights, f"{block}.attn_ln")[None]
        x = x + _attend(y, y, weights, f"{block}.attn", dims.n_audio_head)[0]
        x = x + _mlp(x, weights, block)
    return _norm(x, weights, "encoder.ln_post")


def run_decoder(
    weights: NamedWeights, dims: Dims, tokens: Tensor, encoder_output: Tensor, dropout: float = 0.0
) -> Tensor:
    """Read texts about one piece, each token with all before it in sight.

    Parameters
    ----------
    weights : mapping of str to Tensor
    dims : Dims
    tokens : Tensor of shape (texts, n), int64
        What stands behind the end of a text changes nothing in it.
    heard : Tensor of shape (positions, n_audio_state)
        From `listen`.
    dropout : float
        Share of what every part of a layer adds that is left out.

    Returns
    -------
    Tensor of shape (texts, n, n_text_state)
        To be multiplied with the token embedding.
    """
    positions = weights["decoder.positional_embedding"][: tokens.shape[1]]
    x = F.embedding(tokens, weights["decoder.token_embedding.weight"]) + positions
    for layer in range(dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        y = _norm(x, weights, f"{block}.attn_ln")
        x = x + F.dropout(_attend(y, y, weights, f"{block}.attn", dims.n_text_head, causal=True), dropout)
        # To the piece, all its texts are one row of many queries: its keys and values are computed once.
        y = _norm(x, weights, f"{block}.cross_attn_ln").flatten(0, 1)[None]
        y = _attend(y, encoder_output[None], weights, f"{block}.cross_attn", dims.n_text_head)
        x = x + F.dropout(y.view(x.shape), dropout)
        x = x + F.dropout(_mlp(x, weights, block), dropout)
    return _norm(x, weights, "decoder.ln")


def _attend(
    x: Tensor, source: Tensor, weights: NamedWeights, name: str, heads: int, *, causal: bool = False
) -> Tensor:
    """Multi-head attention of (batch, n, state) to (batch, m, state)."""

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (heads, -1)).transpose(1, 2)

    query = split(_linear(x, weights, f"{name}.query"))
    key, value = (
        split(_linear(source, weights, f"{name}.key")),
        split(_linear(source, weights, f"{name}.value")),
    )
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return _linear(attended.transpose(1, 2).flatten(2), weights, f"{name}.out")


def _mlp(x: Tensor, weights: NamedWeights, block: str) -> Tensor:
    y = _linear(_norm(x, weights, f"{block}.mlp_ln"), weights, f"{block}.mlp.0")
    return _linear(F.gelu(y), weights, f"{block}.mlp.2")


def _linear(x: Tensor, weights: NamedWeights, name: str) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _norm(x: Tensor, weights: NamedWeights, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])
