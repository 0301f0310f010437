"""Memory of sessions, with the steps that were recorded over it, kept for the sessions that follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harken.backends.torch.graphs import FIRST_KEYS, STEPS, Recorder, Replays
from harken.backends.torch.model import Memory, Model

NARROWEST = {("cpu", torch.bfloat16): 2}
"""How many new tokens a step has at least: PyTorch's attention on a processor takes three times as long for one query
in bfloat16 as for two, and all else hardly less."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many windows an arena has room for, how many rows each, and whether it keeps what alignment takes."""

    lanes: int
    width: int
    attention: bool


class Arena:
    """Memory of one session at a time.

    Parameters
    ----------
    model : Model
    shape : Shape
    record : Recorder or None
        None where steps are computed as they come.
    """

    def __init__(self, model: Model, shape: Shape, record: Recorder | None) -> None:
        self.model, self.shape = model, shape
        self.memory: Memory = model.memory(shape.lanes, shape.width, shape.attention)
        self._replays = Replays(record) if record is not None else None
        self._narrowest = NARROWEST.get((model.device.type, model.dtype), 1)

    @property
    def seats(self) -> int:
        """Number of rows that it has room for."""
        return self.shape.lanes * self.shape.width

    def padded(self, n: int) -> int:
        """With how many new tokens a step is computed where n are needed."""
        sizes = STEPS if self._replays is not None else (self._narrowest,)
        return next((size for size in sizes if size >= n), n)

    def step(self, grid: Tensor, longest: int, span: int, ragged: bool) -> Tensor:
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
        n, keys = grid.shape[1] - 1, _bucket(longest, self.model.dims.n_text_ctx)
        step = partial(self.model.decode, memory=self.memory, keys=keys, span=span, ragged=ragged)
        if self._replays is None or n > STEPS[-1]:
            return step(grid)
        return self._replays((n, keys, span, ragged), step, grid)


class Pool:
    """Arenas that wait for a session of their shape; the ones that have waited longest go where there are many.

    Parameters
    ----------
    model : Model
    recorder : callable or None
        Makes a `Recorder` for an arena.
    most : int
        How many may wait.
    """

    def __init__(self, model: Model, recorder: Callable[[], Recorder] | None, most: int) -> None:
        self.model, self._recorder = model, recorder
        self._idle: deque[Arena] = deque(maxlen=most)

    def borrow(self, shape: Shape) -> Arena:
        """Take an arena whose tracks are blank: what an earlier session left must not be seen even if it was nan."""
        for arena in tuple(self._idle):
            if arena.shape == shape and self._take(arena):
                arena.memory.tracks.zero_()
                return arena
        return Arena(self.model, shape, self._recorder() if self._recorder is not None else None)

    def give_back(self, arena: Arena) -> None:
        """Keep an arena for others; may be called by any thread, as the garbage collector does."""
        self._idle.append(arena)

    def _take(self, arena: Arena) -> bool:
        try:
            self._idle.remove(arena)
        except ValueError:
            return False  # another thread was faster
        return True


def _bucket(needed: int, most: int) -> int:
    """Round up to a doubling of `FIRST_KEYS`, so that few different steps have to be recorded."""
    keys = FIRST_KEYS
    while keys < needed:
        keys *= 2
    return min(keys, most)
