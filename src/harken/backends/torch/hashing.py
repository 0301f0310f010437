"""Attention to some of the keys: those near in time, and those whose hash is that of the query.

After Kitaev et al. 2020, "Reformer", section 2. Vectors that point the same way likely get the same hash; queries and
keys are sorted by it, and a chunk of neighbouring queries looks at a run of keys around its place. Several rounds with
other hashes find what one has missed. It differs from the paper in three things:

* Queries are not keys here, so both are sorted by themselves, and a chunk finds the place of its run by its hashes.
  Keys are hashed relative to their mean: what all keys have in common changes no softmax, but would leave most of them
  in the same bucket.
* A pair that an earlier round has seen is left out by later ones, where the paper divides its weight by the number of
  rounds. So the result is exactly the softmax over all pairs seen.
* There may be a round whose hash is the time: most of what Whisper's encoder listens to is near.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harken.backends.torch.attention import attend
from harken.errors import OptionError

LOWEST = -1e30
"""Stands for the score of nothing: finite, so that sums of nothing stay numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashing:
    """`harken.backends.torch.attention.Attend` by locality-sensitive hashing.

    It takes memory and time in proportion to `chunk` and not to the number of keys: each round compares a query with
    three chunks of keys. Where there are no more than those, it attends to all of them.

    Parameters
    ----------
    rounds : int
        Hashes, each of which is a round.
    buckets : int
        Values of a hash, even.
    chunk : int
        Queries that look at the same keys.
    nearby : bool
        Whether there is one more round, over the keys that are near in time.
    seed : int
        Of the random rotations.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    rounds: int = 3
    buckets: int = 16
    chunk: int = 64
    nearby: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"rounds": 1 - self.nearby, "buckets": 2, "chunk": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise OptionError(name, getattr(self, name), f"an integer from {low} on")
        if self.buckets % 2:
            raise OptionError("buckets", self.buckets, "an even number")

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None
    ) -> Tensor:
        """Attend (see `Attend`); `mask` hides keys, from all queries alike, so its shape is (batch, 1, 1, keys)."""
        run = 3 * self.chunk
        if key.shape[1] <= run:
            return attend(query, key, value, heads, mask)
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        shown = torch.zeros(k.shape[:2], device=k.device)
        if mask is not None:
            shown = mask[:, 0, 0].float().clamp(min=LOWEST).repeat_interleave(heads, 0)
        seen: list[_Round] = []
        mixture = _Mixture(q)
        for of_queries, of_keys in self._hashes(q, k, shown):
            this = _Round(of_queries, of_keys, self.chunk, run)
            listeners, spoken = this.listeners(), this.spoken()
            scores = _rows(q, listeners).float() @ _rows(k, spoken).float().mT * q.shape[-1] ** -0.5
            scores += shown.gather(1, spoken.flatten(1)).view(spoken.shape)[:, :, None]
            for earlier in seen:
                scores.masked_fill_(earlier.saw(listeners, spoken), LOWEST)
            mixture.add(scores, _rows(v, spoken), this)
            seen.append(this)
        return mixture.mean().to(query.dtype).unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)

    def _hashes(self, query: Tensor, key: Tensor, shown: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Hashes of queries, shape (groups, queries), and of keys, in each round; hidden keys have the highest."""
        hidden, last = shown < 0, key.shape[1] + self.buckets
        if self.nearby:
            times = torch.arange(key.shape[1], device=key.device).expand(len(key), -1)
            yield times[:, -query.shape[1] :], times.masked_fill(hidden, last)
        heard = (~hidden)[..., None].to(key.dtype)
        centred = key - (key * heard).sum(1, keepdim=True) / heard.sum(1, keepdim=True)
        shape = (self.rounds, key.shape[-1], self.buckets // 2)
        for rotation in torch.randn(shape, generator=torch.Generator().manual_seed(self.seed)).to(key):
            of_queries, of_keys = (
                torch.cat([x @ rotation, x @ -rotation], -1).argmax(-1) for x in (query, centred)
            )
            yield of_queries, of_keys.masked_fill(hidden, last)


class _Round:
    """Which keys each query looks at: a run of them in the order of their hashes.

    Parameters
    ----------
    of_queries : Tensor of shape (groups, queries), int64
    of_keys : Tensor of shape (groups, keys), int64
        Their hashes.
    chunk, run : int
        So many neighbouring queries look at so many neighbouring keys.
    """

    def __init__(self, of_queries: Tensor, of_keys: Tensor, chunk: int, run: int) -> None:
        self._chunk, self._run = chunk, run
        hashes, self._queries = of_queries.sort(dim=1, stable=True)
        sorted_keys, self._keys = of_keys.sort(dim=1, stable=True)
        missing = -hashes.shape[1] % chunk
        chunks = _extended(hashes, missing).unflatten(1, (-1, chunk))
        first = torch.searchsorted(sorted_keys, chunks[:, :, 0].contiguous())
        behind = torch.searchsorted(sorted_keys, chunks[:, :, -1].contiguous(), right=True)
        most = of_keys.shape[1] - run
        self._begins = ((first + behind - run) // 2).clamp(0, most)
        self._listeners = _extended(self._queries, missing).unflatten(1, (-1, chunk))
        self._places = _inverse(self._queries)
        self._ranks = _inverse(self._keys).int()
        self._begin_of = self._begins.repeat_interleave(chunk, 1).gather(1, self._places).int()

    def listeners(self) -> Tensor:
        """Queries of each chunk, shape (groups, chunks, chunk); the last one is filled up with its last query."""
        return self._listeners

    def spoken(self) -> Tensor:
        """Keys that each chunk looks at, shape (groups, chunks, run)."""
        slots = self._begins[:, :, None] + torch.arange(self._run, device=self._begins.device)
        return self._keys.gather(1, slots.flatten(1)).view(slots.shape)

    def saw(self, listeners: Tensor, spoken: Tensor) -> Tensor:
        """Which queries have looked at which keys in this round, shape (groups, chunks, chunk, run)."""
        begin = self._begin_of.gather(1, listeners.flatten(1)).view(listeners.shape)
        rank = self._ranks.gather(1, spoken.flatten(1)).view(spoken.shape)
        ahead = rank[:, :, None] - begin[..., None]
        return (ahead >= 0) & (ahead < self._run)

    def in_order(self, chunks: Tensor) -> Tensor:
        """Results of shape (groups, chunks, chunk, n) as those of each query, shape (groups, queries, n)."""
        return _rows(chunks.flatten(1, 2), self._places)


class _Mixture:
    """Softmax over what comes in rounds: the sums of weights and of weighted values, relative to the best score."""

    def __init__(self, query: Tensor) -> None:
        self._best = torch.full((*query.shape[:2], 1), LOWEST, device=query.device)
        self._weight = torch.zeros_like(self._best)
        self._mixed = torch.zeros_like(self._best)

    def add(self, scores: Tensor, values: Tensor, its: _Round) -> None:
        """Take in a round: scores of shape (groups, chunks, chunk, run), values of shape (groups, chunks, run, n)."""
        best = scores.amax(-1, keepdim=True)
        weights = (scores - best).exp_().masked_fill_(scores <= LOWEST, 0)
        ours = [its.in_order(x) for x in (best, weights.sum(-1, keepdim=True), weights @ values.float())]
        best = torch.maximum(self._best, ours[0])
        before, now = (self._best - best).exp(), (ours[0] - best).exp()
        self._weight = before * self._weight + now * ours[1]
        self._mixed = before * self._mixed + now * ours[2]
        self._best = best

    def mean(self) -> Tensor:
        """The mixed values, shape (groups, queries, n)."""
        return self._mixed / self._weight


def _extended(x: Tensor, missing: int) -> Tensor:
    """Repeat the last column so many times."""
    return torch.cat([x, x[:, -1:].expand(-1, missing)], 1)


def _inverse(order: Tensor) -> Tensor:
    """Where each index stands in an order, row by row."""
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of (groups, rows, n) by an index of shape (groups, ...) into each group: shape (groups, ..., n)."""
    first = torch.arange(len(x), device=x.device).view(-1, *[1] * (index.dim() - 1)) * x.shape[1]
    return x.reshape(-1, x.shape[-1]).index_select(0, (index + first).flatten()).view(*index.shape, -1)
