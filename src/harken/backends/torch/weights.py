"""The loading of weights into PyTorch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from harken.backends.torch.linear import prepack
from harken.types import Dims


def load_weights(
    weights: Mapping[str, NDArray[Any]], dims: Dims, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
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
