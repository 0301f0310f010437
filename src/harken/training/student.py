"""An assistant before it has learnt anything: some layers of the main model's decoder."""

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
from harken.types import Dims

TOKEN_EMBEDDING = "decoder.token_embedding.weight"
ALWAYS_SCORED_IDS = 8192
"""Ids that a loss looks at whether or not they were seen: byte pairs that were joined first are the most frequent."""


def evenly_spaced_layers(layers: int, n_layers: int) -> tuple[int, ...]:
    """Layers to start from: evenly spaced, the first and the last among them.

    Source: Shleifer and Rush 2020, arXiv:2010.13002; Gandhi et al. 2023, arXiv:2311.00430, section 3. A single layer
    is the last one, which is the one that the final norm was made for.

    Raises
    ------
    OptionError
        If there are not as many.
    """
    if not 1 <= layers <= min(4, n_layers):
        raise OptionError("layers", layers, f"1 to {min(4, n_layers)}, of a decoder with {n_layers}")
    return (
        tuple(np.linspace(0, n_layers - 1, layers).round().astype(int).tolist())
        if layers > 1
        else (n_layers - 1,)
    )


def student_dims(dims: Dims, layers: int) -> Dims:
    """Dimensions of a decoder without an encoder."""
    return replace(dims.without_encoder(), n_text_layer=layers)


def copy_decoder_layers(weights: Weights, layers: Iterable[int]) -> dict[str, Tensor]:
    """The decoder's weights, float32, of its layers only those given, in this order."""
    block_names = {f"decoder.blocks.{layer}.": f"decoder.blocks.{i}." for i, layer in enumerate(layers)}
    renamed: dict[str, str] = {}
    for name in weights:
        block = ".".join(name.split(".")[:3]) + "."
        if block in block_names:
            renamed[name.replace(block, block_names[block], 1)] = name
        elif name.startswith("decoder.") and not name.startswith("decoder.blocks."):
            renamed[name] = name
    return {ours: torch.tensor(weights[theirs]).float() for ours, theirs in renamed.items()}


def trainable_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What of an assistant learns: everything but the token embedding.

    The embedding is the largest matrix of a small decoder and most of its rows would never be seen in a few hours of
    speech. Frozen, it keeps what the main model knows of rare tokens, and the states that foretell a token mean the
    same in both.
    """
    return {name: values.requires_grad_() for name, values in weights.items() if name != TOKEN_EMBEDDING}


def scored_token_ids(tokenizer: Tokenizer, texts: Iterable[Iterable[int]]) -> Ints:
    """Ids that a loss looks at, ascending: what was said, the most common byte pairs, all that is not text."""
    n_always_scored = min(ALWAYS_SCORED_IDS, tokenizer.eot)
    seen = {token for text in texts for token in text}
    return np.array(
        sorted({*range(n_always_scored), *range(tokenizer.eot, tokenizer.n_vocab), *seen}), np.int64
    )
