"""Linear layers and attention of the model.

A linear layer takes about the same time for a few rows as for one, so that verifying a draft is cheap.
On a GPU `torch.nn.functional.linear` does so. On an x86 processor it has a special kernel for a single row, and from
two rows on it rearranges the whole matrix at every call, which doubles the time. There a matrix is therefore prepacked
once by oneDNN, whose product with nine rows takes about as long as with one. PyTorch's compiler freezes models with the
same operators (torch/_inductor/mkldnn_lowerings.py).
"""

from __future__ import annotations

import platform
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def prepack(weight: Tensor) -> Tensor:
    """Prepack a matrix of shape (outputs, inputs) for `linear`; return it unchanged where that brings nothing."""
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
