"""Whisper's encoder and decoder as pure functions of their weights, in float32.

Source: openai/whisper, model.py; Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak
Supervision", section 2.2. Weights go by the names of the original state dict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harken.backends.encoding import FrozenPadding, padding_groups, pool, short_speech_window
from harken.contract import Arrays, Floats, Ints
from harken.types import Dims

Mask = NDArray[np.bool_]
"""True where a query attends to a key, shape (queries, keys)."""


def encode(mel: Floats, weights: Arrays, dims: Dims) -> Floats:
    """Encode log-mel of shape (n_mels, 2 n): shape (n, n_audio_state), n up to n_audio_ctx."""
    return encoder_blocks(stem(mel, weights), weights, dims)


def encode_padded(mel: Floats, weights: Arrays, dims: Dims) -> tuple[Floats, FrozenPadding]:
    """Encode the log-mel of the beginning of a window that goes on with padding; frozen positions follow."""
    layer_inputs: list[Floats] = []
    window = encoder_blocks(stem(short_speech_window(dims), weights), weights, dims, layer_inputs=layer_inputs)
    keys_values = (
        _linear(layer_input, weights, f"encoder.blocks.{layer}.attn.{part}")
        for layer, layer_input in enumerate(layer_inputs)
        for part in ("key", "value")
    )
    groups, x = padding_groups([*keys_values, window]), stem(mel, weights)
    padding = FrozenPadding.behind(len(x), groups)
    frozen = slice(-len(padding.counts), None)
    # Keys and values are linear in these inputs: those of a mean input are the means.
    inputs = [pool(layer_input, groups)[frozen] for layer_input in layer_inputs]
    encoded = encoder_blocks(x, weights, dims, padding=inputs, key_bias=padding.key_bias)
    return np.concatenate([encoded, pool(window, groups)[frozen]]), padding


def stem(mel: Floats, weights: Arrays) -> Floats:
    """Compute the input of the encoder's first layer: two convolutions, and the embedding of each position.

    With an odd number of frames, 2 n + 1, the n positions do not depend on what follows in the stream.
    """
    x = _gelu(_convolve(mel, weights, "encoder.conv1", stride=1))
    x = _gelu(_convolve(x, weights, "encoder.conv2", stride=2)).T[: mel.shape[1] // 2]
    y: Floats = x + weights["encoder.positional_embedding"][: len(x)]
    return y


def encoder_blocks(
    x: Floats,
    weights: Arrays,
    dims: Dims,
    mask: Mask | None = None,
    *,
    padding: Sequence[Floats] | None = None,
    key_bias: Floats | None = None,
    layer_inputs: list[Floats] | None = None,
) -> Floats:
    """Apply the encoder's layers to positions of shape (n, n_audio_state); without a mask, each attends to all.

    Each also attends to the padding, an array a layer, if there is any. `layer_inputs` receives what the attention of
    each layer reads.
    """
    for layer in range(dims.n_audio_layer):
        block = f"encoder.blocks.{layer}"
        y = _layer_norm(x, weights, f"{block}.attn_ln")
        if layer_inputs is not None:
            layer_inputs.append(y)
        source = y if padding is None else np.concatenate([y, padding[layer]])
        x = x + _attention(y, source, weights, f"{block}.attn", dims.n_audio_head, mask, key_bias)[0]
        x = x + _mlp(x, weights, block)
    return _layer_norm(x, weights, "encoder.ln_post")


def decode(
    tokens: Ints, features: Floats, weights: Arrays, dims: Dims, key_bias: Floats | None = None
) -> tuple[Floats, Floats]:
    """Decode all tokens of one row, shape (n,): the logits after each, and its cross-attention.

    The bias, shape (positions,), is added to the scores of the cross-attention.

    Returns
    -------
    logits : ndarray of shape (n, n_vocab)
    attention : ndarray of shape (n_text_layer, n_text_head, n, positions)
        Softmax weights over the positions of `features`.
    """
    attention = []
    causal = np.tri(len(tokens), dtype=np.bool_)
    embedding = weights["decoder.token_embedding.weight"]
    x = embedding[tokens] + weights["decoder.positional_embedding"][: len(tokens)]
    for layer in range(dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        y = _layer_norm(x, weights, f"{block}.attn_ln")
        x = x + _attention(y, y, weights, f"{block}.attn", dims.n_text_head, causal)[0]
        y = _layer_norm(x, weights, f"{block}.cross_attn_ln")
        attended, attention_weights = _attention(
            y, features, weights, f"{block}.cross_attn", dims.n_text_head, key_bias=key_bias
        )
        attention.append(attention_weights)
        x = x + attended
        x = x + _mlp(x, weights, block)
    return _layer_norm(x, weights, "decoder.ln") @ embedding.T, np.stack(attention)


def _attention(
    x: Floats,
    key_value_source: Floats,
    weights: Arrays,
    name: str,
    heads: int,
    mask: Mask | None = None,
    key_bias: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Compute multi-head attention of x to a source; also return the weights, shape (heads, n, positions)."""

    def split(y: Floats) -> Floats:
        return y.reshape(len(y), heads, -1).transpose(1, 0, 2)

    query = split(_linear(x, weights, f"{name}.query"))
    key = split(_linear(key_value_source, weights, f"{name}.key"))
    value = split(_linear(key_value_source, weights, f"{name}.value"))
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
    if key_bias is not None:
        scores = scores + key_bias
    if mask is not None:
        scores = np.where(mask, scores, np.float32(-np.inf))
    attention_weights = _softmax(scores)
    mixed = (attention_weights @ value).transpose(1, 0, 2).reshape(len(x), -1)
    return _linear(mixed, weights, f"{name}.out"), attention_weights


def _mlp(x: Floats, weights: Arrays, block: str) -> Floats:
    y = _layer_norm(x, weights, f"{block}.mlp_ln")
    return _linear(_gelu(_linear(y, weights, f"{block}.mlp.0")), weights, f"{block}.mlp.2")


def _linear(x: Floats, weights: Arrays, name: str) -> Floats:
    y = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return y if bias is None else y + bias


def _convolve(x: Floats, weights: Arrays, name: str, stride: int) -> Floats:
    """Convolve (channels, frames) with kernels of width 3 and one frame of padding on either side."""
    padded = np.pad(x, ((0, 0), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, axis=1)[:, ::stride]
    y: Floats = np.einsum("ock,cfk->of", weights[f"{name}.weight"], windows, optimize=True)
    return y + weights[f"{name}.bias"][:, None]


def _layer_norm(x: Floats, weights: Arrays, name: str) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(1e-5))
    y = centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return np.asarray(y, np.float32)


def _softmax(x: Floats) -> Floats:
    y = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(y / y.sum(axis=-1, keepdims=True), np.float32)


_erf = np.vectorize(math.erf, otypes=[np.float32])


def _gelu(x: Floats) -> Floats:
    y: Floats = x * np.float32(0.5) * (1 + _erf(x / math.sqrt(2)))
    return y.astype(np.float32)
