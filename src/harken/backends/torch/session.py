"""The decoding state of the GPU engine: the row of a static cache that each row uses, and its length."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from harken.backends.encoding import grammar_state
from harken.backends.torch.device import upload
from harken.backends.torch.logits import STATE_COLUMNS, LogitVocabulary, TorchLogits, steps_until_all_ended
from harken.backends.torch.static_cache import CacheShape, StaticCache, StaticCachePool
from harken.contract import Floats, GreedyRules, Ints, PickedSoFar

STEPS_TO_A_LOOK = 4
"""Draft tokens that are picked between two looks at them: a look takes a third of a small assistant's step."""


@dataclass(frozen=True, slots=True)
class TorchFeatures:
    """The encoder's output for some windows, and the cross-attention's keys and values.

    Parameters
    ----------
    encoder_output : Tensor of shape (windows, positions, n_audio_state)
        Kept for decoders that reuse it.
    cross_kv : Tensor of shape (layers, 2, windows, positions, n_text_state)
    lengths : tuple of int, or None
        Number of positions of each window, where some are shorter than others or padded.
    """

    encoder_output: Tensor
    cross_kv: Tensor
    lengths: tuple[int, ...] | None = None

    @property
    def n_windows(self) -> int:
        return int(self.cross_kv.shape[2])

    @property
    def positions(self) -> int:
        """Number of positions of each window, including padding."""
        return int(self.cross_kv.shape[3])


@dataclass(frozen=True, slots=True)
class _Row:
    cache_row: int
    length: int


class TorchSession:
    """`harken.contract.GreedySession` in a static cache.

    `rewind` changes a number. `reorder` leaves every surviving row in its cache row, and copies only for further rows
    that continue the same one. The session moves to a larger cache when it is fanned out, and to a smaller one when
    half of its windows or rows are idle.
    """

    def __init__(
        self,
        cache_pool: StaticCachePool,
        vocabulary: LogitVocabulary,
        features: TorchFeatures,
        row_windows: Sequence[int],
        capacity: int,
        attention: bool,
    ) -> None:
        self._cache_pool, self._vocabulary, self._capacity = cache_pool, vocabulary, capacity
        self._audio_positions, self._ragged = features.positions, features.lengths is not None
        self._longest_window = max(features.lengths or [features.positions])
        windows = list(dict.fromkeys(row_windows))
        rows_per_window = max(Counter(row_windows).values(), default=1)
        self._use_cache(cache_pool.acquire(CacheShape(len(windows), rows_per_window, attention)))
        for cache_window, window in enumerate(windows):
            self._cross_kv[:, :, cache_window] = features.cross_kv[:, :, window]
            if features.lengths is not None:
                self._padding_mask[cache_window] = 0
                self._padding_mask[cache_window, features.lengths[window] :] = -math.inf
        cache_windows = [windows.index(window) for window in row_windows]
        self._rows = [_Row(cache_row, 0) for cache_row in _assign_cache_rows(cache_windows, rows_per_window)]

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> TorchLogits:
        cache, before, max_new_tokens = self._cache, self._rows, max(map(len, tokens), default=0)
        device = cache.model.device
        after = [replace(row, length=row.length + len(new)) for row, new in zip(before, tokens, strict=True)]
        longest_row = max((row.length for row in after), default=0)
        assert longest_row <= self._capacity, "a row has outgrown the session"
        if not max_new_tokens:
            return TorchLogits(torch.empty((0, len(self._vocabulary)), device=device), self._vocabulary)
        step_tokens = cache.padded_step_tokens(max_new_tokens)
        lengths_and_tokens = np.zeros((cache.cache_rows, 1 + step_tokens), np.int64)
        logit_positions: list[int] = []
        for row, new in zip(before, tokens, strict=True):
            lengths_and_tokens[row.cache_row, 0] = row.length
            lengths_and_tokens[row.cache_row, 1 : 1 + len(new)] = new
            first_position = row.cache_row * step_tokens
            logit_positions += range(first_position + max(0, len(new) - last_n), first_position + len(new))
        hidden_states = cache.decode_step(
            upload(lengths_and_tokens, device), longest_row, self._audio_positions, self._ragged
        ).flatten(0, 1)
        self._rows = after
        chosen = hidden_states.index_select(0, upload(logit_positions, device))
        return TorchLogits(cache.model.logits(chosen), self._vocabulary)

    def pick_best(self, rules: GreedyRules, picked: Sequence[PickedSoFar], most: int) -> tuple[Ints, Floats]:
        cache, before = self._cache, self._rows
        unread = [tuple(row.unread or row.tokens[-1:]) for row in picked]
        step_tokens = cache.padded_step_tokens(max(map(len, unread)))
        inputs = np.zeros((cache.cache_rows, STATE_COLUMNS + step_tokens), np.int64)
        for row, own, new in zip(before, picked, unread, strict=True):
            state = row.length, len(new) - 1, *grammar_state(own, rules.timestamp_begin)
            inputs[row.cache_row, : STATE_COLUMNS + len(new)] = *state, *new
        n_steps = min(most, max(row.left for row in picked))
        longest = max(row.length + len(new) for row, new in zip(before, unread, strict=True))
        steps = cache.greedy_steps(
            upload(inputs, cache.model.device),
            self._vocabulary.choice(rules),
            n_steps,
            longest,
            self._audio_positions,
            self._ragged,
        )
        cache_rows, found = [row.cache_row for row in before], list[Ints]()
        # Who draws drafts stops where they become improbable, so the host looks after a few steps.
        look_every = STEPS_TO_A_LOOK if any(row.least_prob for row in picked) else n_steps
        while len(found) < n_steps:
            several = torch.stack([*islice(steps, look_every)])
            found.extend(several[:, cache_rows].cpu().numpy())
            ids, bits = np.array(found).transpose(2, 0, 1)
            logprobs = np.ascontiguousarray(bits.astype(np.int32)).view(np.float32)
            n_picked = steps_until_all_ended(ids, logprobs, picked, rules.eot)
            if n_picked is not None:
                break
        else:
            n_picked = n_steps
        self._rows = [
            replace(row, length=row.length + len(new) + n_picked - 1)
            for row, new in zip(before, unread, strict=True)
        ]
        return ids[:n_picked], logprobs[:n_picked]

    def rewind(self, lengths: Sequence[int]) -> None:
        self._rows = [
            replace(row, length=min(row.length, n)) for row, n in zip(self._rows, lengths, strict=True)
        ]

    def reorder(self, rows: Sequence[int]) -> None:
        parents = [self._rows[row] for row in rows]
        rows_per_window = Counter(self._cache_window(row) for row in parents)
        max_rows, shape = max(rows_per_window.values(), default=1), self._cache.shape
        new_shape = replace(
            shape,
            windows=_shrink_size(shape.windows, max(1, len(rows_per_window))),
            rows_per_window=max(max_rows, _shrink_size(shape.rows_per_window, max_rows)),
        )
        if new_shape == shape:
            self._reorder_in_place(parents)
        else:
            self._move_to_new_cache(parents, new_shape)

    def attention(self, row: int, *, words: bool = False) -> Floats:
        cached_row, model, shape = self._rows[row], self._cache.model, self._cache.shape
        assert shape.attention, "attention is kept in sessions that were opened with attention=True"
        kept_queries = self._cache.kv_cache.kv[2 * model.dims.n_text_layer :]
        queries = kept_queries[:, cached_row.cache_row, : cached_row.length]
        cache_window, longest_window = self._cache_window(cached_row), self._longest_window
        keys = self._cross_kv[:, 0, cache_window, :longest_window]
        padding_mask = self._padding_mask[cache_window, :longest_window] if self._ragged else None
        weights: Floats = model.alignment_weights(queries, keys, padding_mask).cpu().numpy()
        return model.heads.select(weights, words=words)

    @property
    def _cross_kv(self) -> Tensor:
        """Cross-attention keys and values, shape (layers, 2, windows, positions, n_text_state)."""
        return self._cache.kv_cache.cross_kv[:, :, :, : self._audio_positions]

    @property
    def _padding_mask(self) -> Tensor:
        """Mask of the positions behind the end of windows, shape (windows, positions)."""
        return self._cache.kv_cache.padding_mask[:, : self._audio_positions]

    def _cache_window(self, row: _Row) -> int:
        return row.cache_row // self._cache.shape.rows_per_window

    def _use_cache(self, cache: StaticCache) -> None:
        """Use a cache, and release it when the session is collected or `_release_cache` is called."""
        self._cache = cache
        self._release_cache = weakref.finalize(self, self._cache_pool.release, cache)

    def _reorder_in_place(self, parents: Sequence[_Row]) -> None:
        """Leave the first continuation of each row in place, and copy it to free cache rows for the others."""
        rows_per_window = self._cache.shape.rows_per_window
        free_cache_rows = sorted({*range(self._cache.cache_rows)} - {row.cache_row for row in parents})
        cache_rows: list[int] = []
        for row in parents:
            cache_row, window = row.cache_row, self._cache_window(row)
            if cache_row in cache_rows:
                cache_row = next(free for free in free_cache_rows if free // rows_per_window == window)
                free_cache_rows.remove(cache_row)
            cache_rows.append(cache_row)
        self._copy_rows(self._cache, parents, cache_rows)

    def _move_to_new_cache(self, parents: Sequence[_Row], shape: CacheShape) -> None:
        """Continue in a cache of another shape."""
        old_cache, release_old = self._cache, self._release_cache
        cross_kv, padding_mask = self._cross_kv, self._padding_mask
        cache_windows = [self._cache_window(row) for row in parents]
        live_windows = sorted(set(cache_windows))
        self._use_cache(self._cache_pool.acquire(shape))
        self._cross_kv[:, :, : len(live_windows)] = cross_kv[:, :, live_windows]
        self._padding_mask[: len(live_windows)] = padding_mask[live_windows]
        new_windows = [live_windows.index(cache_window) for cache_window in cache_windows]
        self._copy_rows(old_cache, parents, _assign_cache_rows(new_windows, shape.rows_per_window))
        release_old()

    def _copy_rows(self, source: StaticCache, parents: Sequence[_Row], cache_rows: Sequence[int]) -> None:
        """Continue rows of a cache in the given rows of the current one; copy those that are not in place."""
        pairs = list(zip(parents, cache_rows, strict=True))
        moves = [pair for pair in pairs if source is not self._cache or pair[0].cache_row != pair[1]]
        if moves:
            longest = max(row.length for row, _ in moves)
            source_rows = [row.cache_row for row, _ in moves]
            target_rows = [cache_row for _, cache_row in moves]
            self._cache.kv_cache.kv[:, target_rows, :longest] = source.kv_cache.kv[:, source_rows, :longest]
        self._rows = [replace(row, cache_row=cache_row) for row, cache_row in pairs]


def _assign_cache_rows(cache_windows: Sequence[int], rows_per_window: int) -> list[int]:
    """Return a cache row for each row of the given windows: the first free one of its window."""
    next_cache_row = {window: count(window * rows_per_window) for window in cache_windows}
    return [next(next_cache_row[window]) for window in cache_windows]


def _shrink_size(size: int, needed: int) -> int:
    """Halve a size as long as it is at least twice the needed one."""
    while size >= 2 * needed:
        size //= 2
    return size
