"""The KV caches of sessions, with the steps captured over them; both are reused by later sessions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harken.backends.torch.cuda_graphs import (
    CAPTURED_STEP_TOKENS,
    MIN_PAST_POSITIONS,
    CudaGraphCache,
    GraphCapture,
)
from harken.backends.torch.model import KVCache, WhisperModel

MIN_STEP_TOKENS = {("cpu", torch.bfloat16): 2}
"""Fewest new tokens of a step: on a CPU in bfloat16, PyTorch's attention takes three times as long for one query as for
two, and the other layers take hardly less time."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of a static cache: windows, rows of each, and whether it keeps queries for alignment."""

    windows: int
    rows_per_window: int
    attention: bool


class StaticCache:
    """The KV cache of one session at a time, at a fixed address.

    Parameters
    ----------
    model : WhisperModel
    shape : CacheShape
    capture : GraphCapture or None
        None if steps are not captured.
    """

    def __init__(self, model: WhisperModel, shape: CacheShape, capture: GraphCapture | None) -> None:
        self.model, self.shape = model, shape
        self.kv_cache: KVCache = model.allocate_cache(shape.windows, shape.rows_per_window, shape.attention)
        self._cuda_graphs = CudaGraphCache(capture) if capture is not None else None
        self._min_step_tokens = MIN_STEP_TOKENS.get((model.device.type, model.dtype), 1)

    @property
    def cache_rows(self) -> int:
        """Number of rows."""
        return self.shape.windows * self.shape.rows_per_window

    def padded_step_tokens(self, needed: int) -> int:
        """Return the number of new tokens that a step is padded to."""
        sizes = CAPTURED_STEP_TOKENS if self._cuda_graphs is not None else (self._min_step_tokens,)
        return next((size for size in sizes if size >= needed), needed)

    def decode_step(
        self, lengths_and_tokens: Tensor, longest_row: int, audio_positions: int, ragged: bool
    ) -> Tensor:
        """Read new tokens in every cache row (see `WhisperModel.decode`).

        Parameters
        ----------
        lengths_and_tokens : Tensor of shape (cache rows, 1 + n), int64
        longest_row : int
            Number of positions that the longest row has in use.
        audio_positions : int
            Number of positions of the windows.
        ragged : bool
            True if some windows are shorter.
        """
        n = lengths_and_tokens.shape[1] - 1
        past_positions = _round_up_positions(longest_row, self.model.dims.n_text_ctx)
        step = partial(
            self.model.decode,
            kv_cache=self.kv_cache,
            past_positions=past_positions,
            audio_positions=audio_positions,
            ragged=ragged,
        )
        if self._cuda_graphs is None or n > CAPTURED_STEP_TOKENS[-1]:
            return step(lengths_and_tokens)
        return self._cuda_graphs((n, past_positions, audio_positions, ragged), step, lengths_and_tokens)


class StaticCachePool:
    """A pool of idle static caches, reused by sessions of the same shape; the longest idle are dropped first.

    Parameters
    ----------
    model : WhisperModel
    graph_capture : callable or None
        Makes a `GraphCapture` for each cache.
    max_idle : int
        Most idle caches.
    """

    def __init__(
        self, model: WhisperModel, graph_capture: Callable[[], GraphCapture] | None, max_idle: int
    ) -> None:
        self.model, self._graph_capture = model, graph_capture
        self._idle: deque[StaticCache] = deque(maxlen=max_idle)

    def acquire(self, shape: CacheShape) -> StaticCache:
        """Return a cache with zeroed keys and values: a NaN of an earlier session would pass even a mask."""
        for cache in tuple(self._idle):
            if cache.shape == shape and self._try_remove(cache):
                cache.kv_cache.kv.zero_()
                return cache
        return StaticCache(self.model, shape, self._graph_capture and self._graph_capture())

    def release(self, cache: StaticCache) -> None:
        """Return a cache to the pool; any thread may call it, as the garbage collector does."""
        self._idle.append(cache)

    def _try_remove(self, cache: StaticCache) -> bool:
        try:
            self._idle.remove(cache)
        except ValueError:
            return False  # another thread took it
        return True


def _round_up_positions(needed: int, maximum: int) -> int:
    """Round up to a doubling of `MIN_PAST_POSITIONS`, so that few different steps are captured."""
    positions = MIN_PAST_POSITIONS
    while positions < needed:
        positions *= 2
    return min(positions, maximum)
