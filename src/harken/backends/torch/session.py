"""Decoding state of the GPU engine: which seat of an arena each row sits in, and how many tokens it has seen."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
from torch import Tensor

from harken.backends.torch.arena import Arena, Pool, Shape
from harken.backends.torch.device import upload
from harken.backends.torch.logits import TorchLogits, Vocabulary
from harken.contract import Floats


@dataclass(frozen=True, slots=True)
class TorchFeatures:
    """What a decoder needs of some windows, and what another one of the same encoder would start from.

    Parameters
    ----------
    encoded : Tensor of shape (audios, positions, n_audio_state)
    cross : Tensor of shape (layers, 2, audios, positions, n_text_state)
        Cross-attention keys and values.
    lengths : tuple of int, or None
        How many of the positions each window has, where some have less than all.
    """

    encoded: Tensor
    cross: Tensor
    lengths: tuple[int, ...] | None = None

    @property
    def audios(self) -> int:
        return int(self.cross.shape[2])

    @property
    def span(self) -> int:
        """Number of positions of each window, those included that it lacks."""
        return int(self.cross.shape[3])


@dataclass(frozen=True, slots=True)
class _Row:
    seat: int
    length: int


class TorchSession:
    """`harken.contract.Session` in an arena.

    Rewinding changes a number. Selecting leaves every row that goes on in its seat, and copies only for the second
    row and those after it that go on from the same one. The session moves to a wider arena when it is fanned out, and
    to a smaller one when half of its lanes or seats are idle.
    """

    def __init__(
        self,
        pool: Pool,
        vocabulary: Vocabulary,
        features: TorchFeatures,
        rows: Sequence[int],
        capacity: int,
        attention: bool,
    ) -> None:
        self._pool, self._vocabulary, self._capacity = pool, vocabulary, capacity
        self._span, self._ragged = features.span, features.lengths is not None
        self._longest = max(features.lengths or [features.span])
        audios = list(dict.fromkeys(rows))
        width = max(Counter(rows).values(), default=1)
        self._sit(pool.borrow(Shape(len(audios), width, attention)))
        for lane, audio in enumerate(audios):
            self._cross[:, :, lane] = features.cross[:, :, audio]
            if features.lengths is not None:
                self._beyond[lane] = 0
                self._beyond[lane, features.lengths[audio] :] = -math.inf
        self._rows = [_Row(seat, 0) for seat in _spread([audios.index(audio) for audio in rows], width)]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(row.length for row in self._rows)

    def extend(self, tokens: Sequence[Sequence[int]], tail: int = 1) -> TorchLogits:
        arena, before, most = self._arena, self._rows, max(map(len, tokens), default=0)
        device = arena.model.device
        after = [replace(row, length=row.length + len(new)) for row, new in zip(before, tokens, strict=True)]
        longest = max((row.length for row in after), default=0)
        assert longest <= self._capacity, "a row has outgrown the session"
        if not most:
            return TorchLogits(torch.empty((0, len(self._vocabulary)), device=device), self._vocabulary)
        n = arena.padded(most)
        grid = np.zeros((arena.seats, 1 + n), np.int64)
        wanted: list[int] = []
        for row, new in zip(before, tokens, strict=True):
            grid[row.seat, 0] = row.length
            grid[row.seat, 1 : 1 + len(new)] = new
            first = row.seat * n
            wanted += range(first + max(0, len(new) - tail), first + len(new))
        x = arena.step(upload(grid, device), longest, self._span, self._ragged).flatten(0, 1)
        self._rows = after
        chosen = x.index_select(0, upload(wanted, device))
        return TorchLogits(arena.model.logits(chosen), self._vocabulary)

    def rewind(self, lengths: Sequence[int]) -> None:
        self._rows = [
            replace(row, length=min(row.length, n)) for row, n in zip(self._rows, lengths, strict=True)
        ]

    def select(self, rows: Sequence[int]) -> None:
        chosen = [self._rows[row] for row in rows]
        listeners = Counter(self._lane(row) for row in chosen)
        most, shape = max(listeners.values(), default=1), self._arena.shape
        fitting = replace(
            shape,
            lanes=_halved(shape.lanes, max(1, len(listeners))),
            width=max(most, _halved(shape.width, most)),
        )
        if fitting == shape:
            self._reseat(chosen)
        else:
            self._move(chosen, fitting)

    def attention(self, row: int) -> Floats:
        its, model, shape = self._rows[row], self._arena.model, self._arena.shape
        assert shape.attention, "a session keeps attention if it was opened to"
        queries = self._arena.memory.tracks[2 * model.dims.n_text_layer :, its.seat, : its.length]
        lane, longest = self._lane(its), self._longest
        beyond = self._beyond[lane, :longest] if self._ragged else None
        weights: Floats = model.alignment(queries, self._cross[:, 0, lane, :longest], beyond).cpu().numpy()
        return weights

    @property
    def _cross(self) -> Tensor:
        """Keys and values of the windows that are listened to, shape (layers, 2, lanes, positions, n_text_state)."""
        return self._arena.memory.cross[:, :, :, : self._span]

    @property
    def _beyond(self) -> Tensor:
        """Where windows have ended, shape (lanes, positions)."""
        return self._arena.memory.beyond[:, : self._span]

    def _lane(self, row: _Row) -> int:
        return row.seat // self._arena.shape.width

    def _sit(self, arena: Arena) -> None:
        """Take an arena, and give it back when the session is forgotten, or `_leave` is called."""
        self._arena = arena
        self._leave = weakref.finalize(self, self._pool.give_back, arena)

    def _reseat(self, chosen: Sequence[_Row]) -> None:
        """Let the first row that goes on from a seat stay there, and copy it for others into seats that are free."""
        going_on, width = {row.seat for row in chosen}, self._arena.shape.width
        free = {
            lane: iter([seat for seat in range(lane * width, (lane + 1) * width) if seat not in going_on])
            for lane in map(self._lane, chosen)
        }
        seats: list[int] = []
        for row in chosen:
            seats.append(next(free[self._lane(row)]) if row.seat in seats else row.seat)
        self._copy(self._arena, chosen, seats)

    def _move(self, chosen: Sequence[_Row], shape: Shape) -> None:
        """Go on in an arena of another shape."""
        old, cross, beyond, leave = self._arena, self._cross, self._beyond, self._leave
        lanes = [self._lane(row) for row in chosen]
        busy = sorted(set(lanes))
        self._sit(self._pool.borrow(shape))
        self._cross[:, :, : len(busy)] = cross[:, :, busy]
        self._beyond[: len(busy)] = beyond[busy]
        self._copy(old, chosen, _spread([busy.index(lane) for lane in lanes], shape.width))
        leave()

    def _copy(self, old: Arena, chosen: Sequence[_Row], seats: Sequence[int]) -> None:
        """Let the chosen rows of an arena go on in the given seats of this one."""
        pairs = list(zip(chosen, seats, strict=True))
        moves = [pair for pair in pairs if old is not self._arena or pair[0].seat != pair[1]]
        if moves:
            longest = max(row.length for row, _ in moves)
            sources = [row.seat for row, _ in moves]
            targets = [seat for _, seat in moves]
            self._arena.memory.tracks[:, targets, :longest] = old.memory.tracks[:, sources, :longest]
        self._rows = [replace(row, seat=seat) for row, seat in pairs]


def _spread(lanes: Sequence[int], width: int) -> list[int]:
    """A seat for each row, given the lane of each: the first free one of its lane."""
    next_seat = {lane: count(lane * width) for lane in lanes}
    return [next(next_seat[lane]) for lane in lanes]


def _halved(size: int, needed: int) -> int:
    """Halve a size as long as it is at least twice what is needed."""
    while size >= 2 * needed:
        size //= 2
    return size
