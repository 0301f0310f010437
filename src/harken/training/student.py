"""The initial student: some layers of the main model's decoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from harken.checkpoints import Weights
from harken.contract import Ints
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.training.options import MAX_DECODER_LAYERS
from harken.types import Dims

TOKEN_EMBEDDING = "decoder.token_embedding.weight"
ALWAYS_SCORED_IDS = 8192
"""Lowest ids, which the loss always scores: byte pairs merged first are the most frequent."""


def evenly_spaced_layers(layers: int, n_layers: int) -> tuple[int, ...]:
    """Choose the layers to start from: evenly spaced, the first and the last among them.

    Source: Shleifer and Rush 2020, arXiv:2010.13002; Gandhi et al. 2023, arXiv:2311.00430, section 3. A single layer
    is the last one, which the final layer norm was trained on.

    Raises
    ------
    OptionError
        If there are not as many.
    """
    max_layers = min(MAX_DECODER_LAYERS, n_layers)
    if not 1 <= layers <= max_layers:
        raise OptionError("layers", layers, f"1 to {max_layers}, of a decoder with {n_layers}")
    return (
        tuple(np.linspace(0, n_layers - 1, layers).round().astype(int).tolist())
        if layers > 1
        else (n_layers - 1,)
    )


def student_dims(dims: Dims, layers: int) -> Dims:
    """Return the dimensions of a decoder without an encoder."""
    return replace(dims.without_encoder(), n_text_layer=layers)


def copy_decoder_layers(weights: Weights, layers: Iterable[int]) -> dict[str, Tensor]:
    """Return the decoder's weights, float32, with only the given layers, in this order."""
    block_names = {f"decoder.blocks.{layer}.": f"decoder.blocks.{i}." for i, layer in enumerate(layers)}
    renamed: dict[str, str] = {}
    for name in weights:
        block = ".".join(name.split(".")[:3]) + "."
        if block in block_names:
            renamed[name.replace(block, block_names[block], 1)] = name
        elif name.startswith("decoder.") and not name.startswith("decoder.blocks."):
            renamed[name] = name
    return {name: torch.tensor(weights[source]).float() for name, source in renamed.items()}


def trainable_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an assistant that are trained: all but the token embedding.

    The embedding is the largest matrix of a small decoder, and most of its rows would not occur in a few hours of
    speech. Frozen, it preserves the main model's knowledge of rare tokens, and final states have the same meaning in
    both models.
    """
    return {name: values.requires_grad_() for name, values in weights.items() if name != TOKEN_EMBEDDING}


def scored_token_ids(tokenizer: Tokenizer, texts: Iterable[Iterable[int]]) -> Ints:
    """Return the ids that the loss scores, ascending: those of the texts, frequent byte pairs, all special tokens."""
    n_always_scored = min(ALWAYS_SCORED_IDS, tokenizer.eot)
    seen = {token for text in texts for token in text}
    return np.array(
        sorted({*range(n_always_scored), *range(tokenizer.eot, tokenizer.n_vocab), *seen}), np.int64
    )
