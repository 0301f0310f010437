"""Memory of sessions, with the steps that were recorded over it, kept for the sessions that follow."""

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
"""How many new tokens a step has at least: PyTorch's attention on a processor takes three times as long for one query
in bfloat16 as for two, and all else hardly less."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """How many windows an arena has room for, how many rows each, and whether it keeps what alignment takes."""

    windows: int
    rows_per_window: int
    attention: bool


class StaticCache:
    """Memory of one session at a time.

    Parameters
    ----------
    model : Model
    shape : Shape
    record : Recorder or None
        None where steps are computed as they come.
    """

    def __init__(self, model: WhisperModel, shape: CacheShape, capture: GraphCapture | None) -> None:
        self.model, self.shape = model, shape
        self.kv_cache: KVCache = model.allocate_cache(shape.windows, shape.rows_per_window, shape.attention)
        self._cuda_graphs = CudaGraphCache(capture) if capture is not None else None
        self._min_step_tokens = MIN_STEP_TOKENS.get((model.device.type, model.dtype), 1)

    @property
    def cache_rows(self) -> int:
        """Number of rows that it has room for."""
        return self.shape.windows * self.shape.rows_per_window

    def padded_step_tokens(self, needed: int) -> int:
        """With how many new tokens a step is computed where n are needed."""
        sizes = CAPTURED_STEP_TOKENS if self._cuda_graphs is not None else (self._min_step_tokens,)
        return next((size for size in sizes if size >= needed), needed)

    def decode_step(
        self, lengths_and_tokens: Tensor, longest_row: int, audio_positions: int, ragged: bool
    ) -> Tensor:
        """Read new tokens in every seat (see `Model.decode`).

        Parameters
        ----------
        grid : Tensor of shape (seats, 1 + n), int64
        longest : int
            How many positions the longest row has in use.
        span : int
            How many positions the windows have.
        ragged : bool
            Whether some have less.
        """
        n, past_positions = (
            lengths_and_tokens.shape[1] - 1,
            _round_up_positions(longest_row, self.model.dims.n_text_ctx),
        )
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
    """Arenas that wait for a session of their shape; the ones that have waited longest go where there are many.

    Parameters
    ----------
    model : Model
    recorder : callable or None
        Makes a `Recorder` for an arena.
    most : int
        How many may wait.
    """

    def __init__(
        self, model: WhisperModel, graph_capture: Callable[[], GraphCapture] | None, max_idle: int
    ) -> None:
        self.model, self._graph_capture = model, graph_capture
        self._idle: deque[StaticCache] = deque(maxlen=max_idle)

    def acquire(self, shape: CacheShape) -> StaticCache:
        """Take an arena whose tracks are blank: what an earlier session left must not be seen even if it was nan."""
        for cache in tuple(self._idle):
            if cache.shape == shape and self._try_remove(cache):
                cache.kv_cache.kv.zero_()
                return cache
        return StaticCache(
            self.model, shape, self._graph_capture() if self._graph_capture is not None else None
        )

    def release(self, cache: StaticCache) -> None:
        """Keep an arena for others; may be called by any thread, as the garbage collector does."""
        self._idle.append(cache)

    def _try_remove(self, cache: StaticCache) -> bool:
        try:
            self._idle.remove(cache)
        except ValueError:
            return False  # another thread was faster
        return True


def _round_up_positions(needed: int, maximum: int) -> int:
    """Round up to a doubling of `FIRST_KEYS`, so that few different steps have to be recorded."""
    positions = MIN_PAST_POSITIONS
    while positions < needed:
        positions *= 2
    return min(positions, maximum)
