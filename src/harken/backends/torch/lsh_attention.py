"""Attention by locality-sensitive hashing (LSH): to the keys near in time, and to those with the query's hash.

After Kitaev et al. 2020, "Reformer", section 2. Vectors of similar direction are likely to get the same hash. Queries
and keys are sorted by hash, and a bucket of neighbouring queries attends to a run of keys with hashes around its own.
Several rounds with different hashes find keys that one round misses. It differs from the paper in three points:

* Queries are not keys here, so both are sorted separately, and the run of a bucket is found by its hashes. Keys are
  hashed relative to their mean: a component that all keys share changes no softmax, but would put most of them into the
  same bucket.
* A pair of query and key counts in the first round that finds it only, where the paper divides its weight by the
  number of rounds. So the result is exactly the softmax over all pairs found.
* One more round, the first, uses time as the hash, because Whisper's encoder mostly attends to near positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harken.backends.torch.model import attend

HASHES = 16
"""Values of a hash: the largest of 8 random directions, or the opposite of one."""
BUCKETS_PER_RUN = 3
MASKED_SCORE = -1e30
"""Score of a masked key; finite, so that a round of masked keys alone is not NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LSHAttention:
    """`harken.backends.torch.model.AttentionFunction` by locality-sensitive hashing.

    Time and memory for a query grow with `rounds` and `bucket_size`, not with the number of keys: each round compares
    it with three buckets of keys. If there are no more keys than that, it attends to all of them.

    Parameters
    ----------
    rounds : int
        Rounds with a hash of their own, after that over the keys near in time.
    bucket_size : int
        Number of queries that attend to the same run of keys.
    """

    rounds: int = 3
    bucket_size: int = 64

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None
    ) -> Tensor:
        """Compute attention (see `AttentionFunction`); `mask` has the shape (batch, 1, 1, keys)."""
        if key.shape[1] <= BUCKETS_PER_RUN * self.bucket_size:
            return attend(query, key, value, heads, mask)
        q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        masked = torch.zeros(k.shape[:2], dtype=torch.bool, device=k.device)
        if mask is not None:
            masked = (mask[:, 0, 0] < 0).repeat_interleave(heads, 0)
        rounds: list[_Round] = []
        outputs, log_totals = [], []
        for hashes in self._hashes(q, k, masked):
            found = _Round(*hashes, self.bucket_size)
            scores = _rows(q, found.queries).float() @ _rows(k, found.keys).float().mT * q.shape[-1] ** -0.5
            scores.masked_fill_(_rows(masked[..., None], found.keys)[..., 0][:, :, None], MASKED_SCORE)
            for earlier in rounds:
                scores.masked_fill_(earlier.contains(found.queries, found.keys), MASKED_SCORE)
            rounds.append(found)
            best = scores.amax(-1, keepdim=True)
            weights = (scores - best).exp_()
            total = weights.sum(-1, keepdim=True)
            outputs.append(found.unsort(weights @ _rows(v, found.keys).float() / total))
            log_totals.append(found.unsort(best + total.log()))
        shares = torch.stack(log_totals).softmax(0)
        output = (torch.stack(outputs) * shares).sum(0).to(query.dtype)
        return output.unflatten(0, (-1, heads)).transpose(1, 2).flatten(2)

    def _hashes(self, query: Tensor, key: Tensor, masked: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield hashes of queries, shape (groups, queries), and of keys, for each round; masked keys sort last."""
        last = key.shape[1] + HASHES
        times = torch.arange(key.shape[1], device=key.device).expand(len(key), -1)
        yield times[:, -query.shape[1] :], times.masked_fill(masked, last)
        visible = (~masked)[..., None].to(key.dtype)
        centred = key - (key * visible).sum(1, keepdim=True) / visible.sum(1, keepdim=True)
        shape = (self.rounds, key.shape[-1], HASHES // 2)
        for directions in torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(key):
            query_hashes, key_hashes = (
                torch.cat([x @ directions, x @ -directions], -1).argmax(-1) for x in (query, centred)
            )
            yield query_hashes, key_hashes.masked_fill(masked, last)


class _Round:
    """The pairs of one round: each bucket of queries attends to a run of keys, both in the order of their hashes.

    Attributes
    ----------
    queries : Tensor of shape (groups, buckets, bucket_size), int64
        The last query fills up the last bucket.
    keys : Tensor of shape (groups, buckets, run), int64
    """

    def __init__(self, query_hashes: Tensor, key_hashes: Tensor, bucket_size: int) -> None:
        missing, run = -query_hashes.shape[1] % bucket_size, BUCKETS_PER_RUN * bucket_size

        def buckets(x: Tensor) -> Tensor:
            return torch.cat([x, x[:, -1:].expand(-1, missing)], 1).unflatten(1, (-1, bucket_size))

        sorted_queries, query_order = query_hashes.sort(dim=1, stable=True)
        sorted_keys, key_order = key_hashes.sort(dim=1, stable=True)
        hashes = buckets(sorted_queries)
        first = torch.searchsorted(sorted_keys, hashes[:, :, 0].contiguous())
        last = torch.searchsorted(sorted_keys, hashes[:, :, -1].contiguous(), right=True)
        starts = ((first + last - run) // 2).clamp(0, key_hashes.shape[1] - run)
        self._run = torch.arange(run, device=starts.device)
        self.queries = buckets(query_order)
        self.keys = key_order.gather(1, (starts[..., None] + self._run).flatten(1)).unflatten(1, (-1, run))
        self._query_ranks, self._key_ranks = query_order.argsort(1), key_order.argsort(1).int()
        self._first_ranks = starts.repeat_interleave(bucket_size, 1).gather(1, self._query_ranks).int()

    def contains(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return which pairs are in this round: (groups, buckets, queries), (.., keys) to (.., queries, keys)."""
        ranks = self._key_ranks.gather(1, keys.flatten(1)).view(keys.shape)[:, :, None]
        first = self._first_ranks.gather(1, queries.flatten(1)).view(queries.shape)[..., None]
        return (ranks >= first) & (ranks < first + len(self._run))

    def unsort(self, x: Tensor) -> Tensor:
        """Return results of shape (groups, buckets, bucket_size, n) by query: shape (groups, queries, n)."""
        return _rows(x.flatten(1, 2), self._query_ranks)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather rows of (groups, rows, n) by an index of shape (groups, ...) into each group: (groups, ..., n)."""
    first = torch.arange(len(x), device=x.device).view(-1, *[1] * (index.dim() - 1)) * x.shape[1]
    return x.flatten(0, 1).index_select(0, (index + first).flatten()).view(*index.shape, -1)
