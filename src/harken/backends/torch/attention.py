"""Multi-head attention as the layers ask for it."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class AttentionFunction(Protocol):
    """Mixes values by how well their keys answer each query."""

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None
    ) -> Tensor:
        """Attend over (batch, tokens, state).

        Parameters
        ----------
        query : Tensor of shape (batch, queries, state)
        key, value : Tensor of shape (batch, keys, state)
        heads : int
        mask : Tensor that broadcasts to (batch, heads, queries, keys), or None
            Added to the scores: -inf at what is not to be seen.

        Returns
        -------
        Tensor of shape (batch, queries, state)
        """
        ...


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Every query looks at every key, fused where PyTorch has a kernel for it (see `Attend`)."""

    def split(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    attended = F.scaled_dot_product_attention(split(query), split(key), split(value), attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)
