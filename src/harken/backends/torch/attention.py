"""Multi-head attention, and the interface of its variants."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


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
