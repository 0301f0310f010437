"""The weights of a model as PyTorch computes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from harken.backends.torch.linear import pack
from harken.types import Dims


def load(
    weights: Mapping[str, NDArray[Any]], dims: Dims, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Bring the weights to the device, those that read the same input joined into one matrix.

    Those of an encoder are read where `dims` have one. Matrices come as `linear` wants them.
    """
    names = [name for name in weights if dims.has_encoder or not name.startswith("encoder.")]
    loaded = {name: torch.tensor(weights[name]).to(device, dtype) for name in names}
    # One more position: that of the slot where what is written is lost.
    loaded["decoder.positional_embedding"] = F.pad(loaded["decoder.positional_embedding"], (0, 0, 0, 1))
    for layer in range(dims.n_text_layer):
        _join(loaded, f"decoder.blocks.{layer}.attn", "qkv", ("query", "key", "value"))
        _join(loaded, f"decoder.blocks.{layer}.cross_attn", "kv", ("key", "value"))
    if dims.has_encoder:
        for name in ("encoder.conv1.weight", "encoder.conv2.weight"):
            loaded[name] = loaded[name].flatten(1)
        for layer in range(dims.n_audio_layer):
            _join(loaded, f"encoder.blocks.{layer}.attn", "qkv", ("query", "key", "value"))
    return {name: pack(weight) if _multiplies(name, weight) else weight for name, weight in loaded.items()}


def _multiplies(name: str, weight: Tensor) -> bool:
    return weight.dim() == 2 and name.endswith(".weight") and name != "decoder.token_embedding.weight"


def _join(weights: dict[str, Tensor], attention: str, joined: str, parts: Sequence[str]) -> None:
    nothing = torch.zeros_like(weights[f"{attention}.value.bias"])  # keys have no bias
    for kind in ("weight", "bias"):
        matrices = [weights.pop(f"{attention}.{part}.{kind}", nothing) for part in parts]
        weights[f"{attention}.{joined}.{kind}"] = torch.cat(matrices)
