"""Logits that stay on the device: only what is chosen is brought to the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from harken.contract import Floats, Ints, Span

MOST_IDS = 1 << 20
"""More than any vocabulary has (see `harken.types.Dims`)."""


class TorchLogits:
    """`harken.contract.Logits` over a tensor that this object owns and changes.

    Parameters
    ----------
    values : Tensor of shape (P, n_vocab), float32
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: Sequence[int]) -> TorchLogits:
        return TorchLogits(self.values[list(positions)])

    def probability(self, token: int) -> Floats:
        probability: Floats = (self.values[:, token] - self._log_sum()).exp().cpu().numpy()
        return probability

    def ban(self, spans: Sequence[Sequence[Span]]) -> None:
        if len(spans) != len(self):
            raise ValueError(f"{len(spans)} lists of ranges for {len(self)} positions")
        # The first range of every position at once, then the second: as many kernels as one position has ranges.
        rounds = list(zip_longest(*spans, fillvalue=(0, 0)))
        edges = self._on_device(np.array(rounds, np.int64).reshape(len(rounds), len(self), 2))
        ids = torch.arange(self.values.shape[1], device=self.values.device)
        for its in edges:
            start, stop = its[:, :1], its[:, 1:]
            self.values.masked_fill_((start <= ids) & (ids < stop), -torch.inf)

    def suppress(self, tokens: Ints) -> None:
        self.values.index_fill_(1, self._on_device(tokens), -torch.inf)

    def bias(self, bonuses: Sequence[Mapping[int, float]]) -> None:
        if len(bonuses) != len(self):
            raise ValueError(f"{len(bonuses)} bonuses for {len(self)} positions")
        where = [(position, token) for position, its in enumerate(bonuses) for token in its]
        if not where:
            return
        rows, ids = self._on_device(np.array(where, np.int64).T)
        self.values[rows, ids] += self._on_device(
            np.array([bonus for its in bonuses for bonus in its.values()], np.float32)
        )

    def prefer_timestamps(self, begin: int) -> None:
        text, timestamps = self.values[:, :begin], self.values[:, begin:]
        if text.numel():
            text.masked_fill_((timestamps.logsumexp(1) > text.amax(1))[:, None], -torch.inf)

    def top(self, k: int) -> tuple[Ints, Floats]:
        ids = self.values.argmax(1, keepdim=True) if k == 1 else _top_ids(self.values, k)
        logprobs = self.values.gather(1, ids) - self._log_sum()[:, None]
        return ids.cpu().numpy(), logprobs.cpu().numpy()

    def sample(self, temperature: float, uniforms: Sequence[float]) -> tuple[Ints, Floats]:
        wide = torch.float32 if self.values.device.type == "mps" else torch.float64
        peak = self.values.amax(1, keepdim=True)
        mass = ((self.values - peak) / temperature).to(wide).exp().cumsum(1)
        uniform = torch.tensor(uniforms, dtype=wide).clamp(max=1 - torch.finfo(wide).eps)
        drawn = uniform[:, None].to(self.values.device) * mass[:, -1:]
        ids = torch.searchsorted(mass, drawn, right=True)
        logprobs = self.values.gather(1, ids)[:, 0] - self._log_sum()
        return ids[:, 0].cpu().numpy(), logprobs.cpu().numpy()

    def _log_sum(self) -> Tensor:
        return self.values.logsumexp(1)

    def _on_device(self, array: Ints | Floats) -> Tensor:
        return torch.tensor(array, device=self.values.device)


def _top_ids(values: Tensor, k: int) -> Tensor:
    """Ids of the k largest values of each row, largest first, the lower id first among equals.

    PyTorch's topk leaves open which of two equals it takes, and in half precision equals are common. So it sorts
    integers that are all different: the bits of the value, in an order that ascends with it, and behind them the id.
    """
    bits = (values + 0.0).view(torch.int32).long()  # + 0.0: one zero, not two
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ids = torch.arange(values.shape[1], device=values.device)
    return (ascending * MOST_IDS - ids).topk(min(k, values.shape[1]), 1).values.neg() % MOST_IDS
