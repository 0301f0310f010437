"""Attention by locality-sensitive hashing (LSH): to the keys near in time, and to those with the query's hash.

After Kitaev et al. 2020, "Reformer", section 2. Vectors of similar direction are likely to get the same hash. Queries
and keys are sorted by hash, and a chunk of neighbouring queries attends to a run of keys with hashes around its own.
Several rounds with different hashes find keys that one round misses. It differs from the paper in three points:

* Queries are not keys here, so both are sorted separately, and the run of a chunk is found by its hashes. Keys are
  hashed relative to their mean: a component that all keys share changes no softmax, but would put most of them into the
  same bucket.
* A pair of query and key counts in the first round that finds it only, where the paper divides its weight by the
  number of rounds. So the result is exactly the softmax over all pairs found.
* An additional round uses time as the hash, because Whisper's encoder mostly attends to near positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harken.backends.torch.attention import attend
from harken.errors import OptionError

MASKED_SCORE = -1e30
"""Score of a masked key; finite, so that sums over masked keys alone are not NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LSHAttention:
    """`harken.backends.torch.attention.AttentionFunction` by locality-sensitive hashing.

    Memory and time for a query grow with `chunk`, not with the number of keys: each round compares it with three chunks
    of keys. If there are no more keys than that, it attends to all of them.

    Parameters
    ----------
    rounds : int
        Number of rounds, each with a hash of its own.
    buckets : int
        Number of values of a hash, even.
    chunk : int
        Number of queries that attend to the same run of keys.
    nearby : bool
        Add a round over the keys that are near in time.
    seed : int
        Seed of the random rotations.

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
        minimum = {"rounds": 1 - self.nearby, "buckets": 2, "chunk": 1}
        for name, lowest in minimum.items():
            if getattr(self, name) < lowest:
                raise OptionError(name, getattr(self, name), f"an integer from {lowest} on")
        if self.buckets % 2:
            raise OptionError("buckets", self.buckets, "an even number")

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None
    ) -> Tensor:
        """Compute attention (see `AttentionFunction`); `mask` has the shape (batch, 1, 1, keys)."""
        keys_per_chunk = 3 * self.chunk
        if key.shape[1] <= keys_per_chunk:
            return attend(query, key, value, heads, mask)
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        key_mask = torch.zeros(k.shape[:2], device=k.device)
        if mask is not None:
            key_mask = mask[:, 0, 0].float().clamp(min=MASKED_SCORE).repeat_interleave(heads, 0)
        earlier_rounds: list[_HashRound] = []
        online_softmax = _OnlineSoftmax(q)
        for query_hashes, key_hashes in self._hashes(q, k, key_mask):
            hash_round = _HashRound(query_hashes, key_hashes, self.chunk, keys_per_chunk)
            chunk_queries, chunk_keys = hash_round.chunk_queries(), hash_round.chunk_keys()
            scores = (
                _gather_rows(q, chunk_queries).float()
                @ _gather_rows(k, chunk_keys).float().mT
                * q.shape[-1] ** -0.5
            )
            scores += key_mask.gather(1, chunk_keys.flatten(1)).view(chunk_keys.shape)[:, :, None]
            for earlier in earlier_rounds:
                scores.masked_fill_(earlier.has_attended(chunk_queries, chunk_keys), MASKED_SCORE)
            online_softmax.add(scores, _gather_rows(v, chunk_keys), hash_round)
            earlier_rounds.append(hash_round)
        return online_softmax.output().to(query.dtype).unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)

    def _hashes(self, query: Tensor, key: Tensor, key_mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield hashes of queries, shape (groups, queries), and of keys, for each round; masked keys sort last."""
        masked, last_hash = key_mask < 0, key.shape[1] + self.buckets
        if self.nearby:
            times = torch.arange(key.shape[1], device=key.device).expand(len(key), -1)
            yield times[:, -query.shape[1] :], times.masked_fill(masked, last_hash)
        visible = (~masked)[..., None].to(key.dtype)
        centred = key - (key * visible).sum(1, keepdim=True) / visible.sum(1, keepdim=True)
        shape = (self.rounds, key.shape[-1], self.buckets // 2)
        for rotation in torch.randn(shape, generator=torch.Generator().manual_seed(self.seed)).to(key):
            query_hashes, key_hashes = (
                torch.cat([x @ rotation, x @ -rotation], -1).argmax(-1) for x in (query, centred)
            )
            yield query_hashes, key_hashes.masked_fill(masked, last_hash)


class _HashRound:
    """The pairs of one round: each chunk of queries attends to a run of keys, both in the order of their hashes.

    Parameters
    ----------
    query_hashes : Tensor of shape (groups, queries), int64
    key_hashes : Tensor of shape (groups, keys), int64
    chunk : int
        Number of queries of a chunk.
    keys_per_chunk : int
        Length of the run of keys that a chunk attends to.
    """

    def __init__(self, query_hashes: Tensor, key_hashes: Tensor, chunk: int, keys_per_chunk: int) -> None:
        self._chunk, self._keys_per_chunk = chunk, keys_per_chunk
        sorted_queries, self._query_order = query_hashes.sort(dim=1, stable=True)
        sorted_keys, self._key_order = key_hashes.sort(dim=1, stable=True)
        missing = -sorted_queries.shape[1] % chunk
        chunks = _repeat_last(sorted_queries, missing).unflatten(1, (-1, chunk))
        first_key = torch.searchsorted(sorted_keys, chunks[:, :, 0].contiguous())
        last_key = torch.searchsorted(sorted_keys, chunks[:, :, -1].contiguous(), right=True)
        max_start = key_hashes.shape[1] - keys_per_chunk
        self._chunk_starts = ((first_key + last_key - keys_per_chunk) // 2).clamp(0, max_start)
        self._chunk_queries = _repeat_last(self._query_order, missing).unflatten(1, (-1, chunk))
        self._query_ranks = _inverse_permutation(self._query_order)
        self._key_ranks = _inverse_permutation(self._key_order).int()
        self._query_starts = self._chunk_starts.repeat_interleave(chunk, 1).gather(1, self._query_ranks).int()

    def chunk_queries(self) -> Tensor:
        """Return the queries of each chunk, shape (groups, chunks, chunk); the last query pads the last chunk."""
        return self._chunk_queries

    def chunk_keys(self) -> Tensor:
        """Return the keys that each chunk attends to, shape (groups, chunks, keys_per_chunk)."""
        slots = self._chunk_starts[:, :, None] + torch.arange(
            self._keys_per_chunk, device=self._chunk_starts.device
        )
        return self._key_order.gather(1, slots.flatten(1)).view(slots.shape)

    def has_attended(self, chunk_queries: Tensor, chunk_keys: Tensor) -> Tensor:
        """Return which queries attend to which keys in this round, shape (groups, chunks, chunk, keys_per_chunk)."""
        start = self._query_starts.gather(1, chunk_queries.flatten(1)).view(chunk_queries.shape)
        rank = self._key_ranks.gather(1, chunk_keys.flatten(1)).view(chunk_keys.shape)
        offset = rank[:, :, None] - start[..., None]
        return (offset >= 0) & (offset < self._keys_per_chunk)

    def unsort(self, chunks: Tensor) -> Tensor:
        """Return results of shape (groups, chunks, chunk, n) in the order of queries, shape (groups, queries, n)."""
        return _gather_rows(chunks.flatten(1, 2), self._query_ranks)


class _OnlineSoftmax:
    """A softmax over scores that come in rounds: sums of weights and of weighted values, scaled by the best score."""

    def __init__(self, query: Tensor) -> None:
        self._max_score = torch.full((*query.shape[:2], 1), MASKED_SCORE, device=query.device)
        self._weight_sum = torch.zeros_like(self._max_score)
        self._value_sum = torch.zeros_like(self._max_score)

    def add(self, scores: Tensor, values: Tensor, hash_round: _HashRound) -> None:
        """Add a round: scores (groups, chunks, chunk, keys_per_chunk), values (groups, chunks, keys_per_chunk, n)."""
        max_score = scores.amax(-1, keepdim=True)
        weights = (scores - max_score).exp_().masked_fill_(scores <= MASKED_SCORE, 0)
        round_sums = [
            hash_round.unsort(x) for x in (max_score, weights.sum(-1, keepdim=True), weights @ values.float())
        ]
        max_score = torch.maximum(self._max_score, round_sums[0])
        old_scale, round_scale = (self._max_score - max_score).exp(), (round_sums[0] - max_score).exp()
        self._weight_sum = old_scale * self._weight_sum + round_scale * round_sums[1]
        self._value_sum = old_scale * self._value_sum + round_scale * round_sums[2]
        self._max_score = max_score

    def output(self) -> Tensor:
        """Return the weighted mean of the values, shape (groups, queries, n)."""
        return self._value_sum / self._weight_sum


def _repeat_last(x: Tensor, missing: int) -> Tensor:
    """Append the last column `missing` times."""
    return torch.cat([x, x[:, -1:].expand(-1, missing)], 1)


def _inverse_permutation(order: Tensor) -> Tensor:
    """Return the rank of each index in an order, row by row."""
    ranks = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks)


def _gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather rows of (groups, rows, n) by an index of shape (groups, ...) into each group: (groups, ..., n)."""
    first = torch.arange(len(x), device=x.device).view(-1, *[1] * (index.dim() - 1)) * x.shape[1]
    return x.reshape(-1, x.shape[-1]).index_select(0, (index + first).flatten()).view(*index.shape, -1)
