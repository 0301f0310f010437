"""Decoding state of the CPU engine: one store of keys and values a window, and who may look at what.

Every window in work has a *lane*: a store of S slots, each the keys and values of one token. A row is a path: the
slots of its tokens, in order. What a query may look at is a mask over slots, so

* rows of one window share the slots of what they have in common: a prompt is computed and kept once;
* `select` reorders paths and `rewind` shortens them: neither touches a key;
* drafted tokens, hypotheses of a beam and plain rows are the same thing to the graph.

Slots that no path uses are free and written again. The store doubles when it is full, else it never moves: the graph
writes the keys and values of new tokens into it.

Attention sums over slots, so its last bits depend on their order. Rows that go on from one prompt therefore have
columns: which slot a token takes follows from its place in the row, not from how many were new at once or what became
of other rows. Up to 16 tokens a row are also multiplied one query at a time, which is faster than all together. So the
logits of a row are the same to the last bit, drafted or not. Only rows of a beam, which go on from one another, take
what is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harken.backends.host import HostLogits
from harken.backends.onnx.runtimes import BindableGraph, Run
from harken.contract import Floats, Ints
from harken.types import Dims

HIDDEN = np.float32(-1e9)
FIRST_SLOTS = 64
ONE_BY_ONE = 16
"""Most tokens of a row whose attention is computed query by query; a prompt of more is read faster in one product."""
ATTENTION = "past_attention"


class Column(NamedTuple):
    """Slots that are laid out for a row: every `stride`-th, from that of its token number `token`, counted from 0."""

    token: int
    slot: int
    stride: int


class OnnxFeatures:
    """What the encoder heard in some windows, and the cross-attention's keys and values that a decoder makes of it.

    Parameters
    ----------
    heard : ndarray of shape (audios, positions, n_audio_state), float32
        The encoder's output, kept for decoders that adopt it.
    cross : dict of str to ndarray
        One array a graph input, with the windows along axis 0.
    lengths : sequence of int, or None
        How many positions each window has, where they differ; behind them the arrays hold anything finite.
    """

    def __init__(self, heard: Floats, cross: dict[str, Floats], lengths: Sequence[int] | None = None) -> None:
        self.heard, self.cross, self.lengths = heard, cross, lengths
        self._silent = np.zeros((len(heard), 1, 1, 1, heard.shape[1]), np.float32)
        for audio, length in enumerate(lengths or ()):
            self._silent[audio, ..., length:] = HIDDEN

    @property
    def audios(self) -> int:
        return len(self.heard)

    @property
    def positions(self) -> int:
        return int(self.heard.shape[1])

    def take(self, audios: Sequence[int]) -> dict[str, Floats]:
        """The arrays of the given windows as the graph takes them; no copy when these are all of them in order."""
        its = slice(None) if list(audios) == list(range(self.audios)) else list(audios)
        cross = {name: array[its, :, None] for name, array in self.cross.items()}
        return {**cross, "silent": self._silent[its]}


class OnnxSession:
    """`harken.contract.Session` over a decoder graph (see `harken.backends.onnx.graphs.decoder`).

    Parameters
    ----------
    graph : BindableGraph
    dims : Dims
    features : OnnxFeatures
    rows : sequence of int
        Window of each row.
    capacity : int
        Most tokens of a row.
    alignment_heads : int
        How many of them the graph has, if their cross-attention is to be kept in slots too; else 0.
    vocabulary : ndarray of int64, or None
        Ids of the tokens that the graph gives logits of; None is all.
    """

    def __init__(
        self,
        graph: BindableGraph,
        dims: Dims,
        features: OnnxFeatures,
        rows: Sequence[int],
        capacity: int,
        *,
        alignment_heads: int = 0,
        vocabulary: Ints | None = None,
    ) -> None:
        self._graph, self._dims, self._features, self._capacity = graph, dims, features, capacity
        self._alignment_heads, self._vocabulary = alignment_heads, vocabulary
        self._audios = list(dict.fromkeys(rows))
        self._cross = features.take(self._audios)
        self._lane = [self._audios.index(audio) for audio in rows]
        self._paths: list[list[int]] = [[] for _ in rows]
        self._columns: list[Column | None] = [
            Column(0, self._lane[:row].count(its), self._lane.count(its)) for row, its in enumerate(self._lane)
        ]
        self._seen = np.zeros((len(rows), FIRST_SLOTS), bool)
        self._store = self._allocate(FIRST_SLOTS)
        self._run: Run | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self._paths))

    def extend(self, tokens: Sequence[Sequence[int]], tail: int = 1) -> HostLogits:
        lanes = [
            [row for row, its in enumerate(self._lane) if its == lane and len(tokens[row])]
            for lane in range(len(self._audios))
        ]
        columns = self._dims.n_vocab if self._vocabulary is None else len(self._vocabulary)
        if not any(lanes):
            return HostLogits(np.empty((0, columns), np.float32), self._vocabulary)
        free = self._reserve(lanes, tokens)
        queries = self._queries(lanes, tokens, tail, free)
        out = {"logits": np.empty((len(queries["wanted"]), columns), np.float32)}
        if self._alignment_heads:
            shape = (len(lanes), self._alignment_heads, *queries["mask"].shape[2:4], self._features.positions)
            out["fresh_attention"] = np.empty(shape, np.float32)
        self._run = self._run or self._bind()
        self._run(queries, out)
        self._advance(out, lanes, tokens, free)
        return HostLogits(out["logits"], self._vocabulary)

    def _bind(self) -> Run:
        """Tell the graph what stays where it is: the store, which it reads and writes, and what windows hold."""
        past = {name: array for name, array in self._store.items() if name != ATTENTION}
        present = {name.replace("past", "present"): array for name, array in past.items()}
        return self._graph.bind({**self._cross, **past}, present)

    def _queries(
        self, lanes: list[list[int]], tokens: Sequence[Sequence[int]], tail: int, free: list[list[int]]
    ) -> dict[str, Any]:
        """New tokens of all rows side by side in their lanes, where they go, and what each of them may look at."""
        width, heads = len(free[0]), self._dims.n_text_head
        together = 1 if max(map(len, tokens)) <= ONE_BY_ONE else width
        ids = np.zeros((len(lanes), width), np.int64)
        positions = np.zeros((len(lanes), width), np.int64)
        mask = np.full((len(lanes), width, self._slots), HIDDEN)
        slots = np.zeros((len(lanes), heads, width, 4), np.int64)
        slots[..., 0] = np.arange(len(lanes))[:, None, None]
        slots[..., 1] = np.arange(heads)[:, None]
        slots[..., 3] = np.array(free)[:, None]
        wanted: dict[int, range] = {}
        for lane, members in enumerate(lanes):
            at = 0
            for row in members:
                n, length = len(tokens[row]), len(self._paths[row])
                assert length + n <= self._capacity, "a row has outgrown the session"
                here = slice(at, at + n)
                ids[lane, here] = tokens[row]
                positions[lane, here] = np.arange(length, length + n)
                mask[lane, here][:, self._seen[row]] = 0
                mask[lane, here][:, free[lane][here]] = _causal(n)
                at += n
                wanted[row] = range(lane * width + at - min(tail, n), lane * width + at)
        return {
            "tokens": ids,
            "positions": positions,
            "slots": slots,
            "mask": mask.reshape(len(lanes), 1, -1, together, self._slots),
            "together": np.array([together]),
            "wanted": np.array([query for row in sorted(wanted) for query in wanted[row]], np.int64),
            "aligned": np.array([width if self._alignment_heads else 0]),
        }

    def rewind(self, lengths: Sequence[int]) -> None:
        for row, length in enumerate(lengths):
            path = self._paths[row]
            self._seen[row, path[length:]] = False
            del path[length:]

    def select(self, rows: Sequence[int]) -> None:
        self._columns = self._columns_of(rows)
        self._paths = [list(self._paths[row]) for row in rows]
        self._seen = self._seen[list(rows)]
        self._lane = [self._lane[row] for row in rows]
        busy = sorted(set(self._lane))
        if 2 * len(busy) <= len(self._audios):
            self._drop_lanes(busy)

    def attention(self, row: int) -> Floats:
        assert self._alignment_heads, "a session keeps attention if it was opened to"
        weights: Floats = self._store[ATTENTION][self._lane[row], :, 0, self._paths[row]].transpose(1, 0, 2)
        return weights

    @property
    def _slots(self) -> int:
        return self._seen.shape[1]

    def _allocate(self, slots: int) -> dict[str, Floats]:
        """What is kept of every token, by the name of the graph's input; its attention is not for the graph."""
        heads = self._dims.n_text_head
        shape = (len(self._audios), heads, 1, slots, self._dims.n_text_state // heads)
        store = {
            f"past_{part}.{i}": np.zeros(shape, np.float32)
            for i in range(self._dims.n_text_layer)
            for part in "kv"
        }
        if self._alignment_heads:
            shape = (len(self._audios), self._alignment_heads, 1, slots, self._features.positions)
            store[ATTENTION] = np.empty(shape, np.float32)
        return store

    def _reserve(self, lanes: list[list[int]], tokens: Sequence[Sequence[int]]) -> list[list[int]]:
        """Slots for the new tokens of each lane; the store doubles until every lane has enough free ones.

        All get as many as the widest, for the graph writes in all lanes alike: what it writes where nothing is new
        stays in free slots.
        """
        width = max(sum(len(tokens[row]) for row in members) for members in lanes)
        laid_out = [
            [slot for row in members for slot in self._laid_out(row, len(tokens[row]))] for members in lanes
        ]
        used = [self._used(lane) for lane in range(len(lanes))]
        slots, last = self._slots, max(chain(*laid_out))
        while last >= slots or any(slots - taken.sum() < width for taken in used):
            slots *= 2
        if added := slots - self._slots:
            grown = self._allocate(slots)
            for name, array in self._store.items():
                grown[name][..., : self._slots, :] = array
            self._store, self._run = grown, None
            self._seen = np.pad(self._seen, ((0, 0), (0, added)))
            used = [np.pad(taken, (0, added)) for taken in used]
        return [_grant(asked, taken, width) for asked, taken in zip(laid_out, used, strict=True)]

    def _laid_out(self, row: int, n: int) -> list[int]:
        """Slots of the next tokens of a row, negative where none is laid out."""
        column, length = self._columns[row], len(self._paths[row])
        if column is None or length < column.token:
            return [-1] * n
        first = column.slot + (length - column.token) * column.stride
        return list(range(first, first + n * column.stride, column.stride))

    def _columns_of(self, rows: Sequence[int]) -> list[Column | None]:
        """Columns of rows that are to go on from the given ones: a row that alone goes on from one keeps its own.

        Behind a row that was alone in its window, columns are laid out side by side.
        """
        columns: list[Column | None] = []
        for place, row in enumerate(rows):
            column, siblings = self._columns[row], rows.count(row)
            if siblings > 1:
                alone = self._lane.count(self._lane[row]) == 1
                first = int(self._seen[row].nonzero()[0].max(initial=-1)) + 1
                column = (
                    Column(len(self._paths[row]), first + rows[:place].count(row), siblings) if alone else None
                )
            columns.append(column)
        return columns

    def _used(self, lane: int) -> NDArray[np.bool_]:
        """Which slots of a lane lie on some row's path."""
        rows = [row for row, its in enumerate(self._lane) if its == lane]
        return np.asarray(self._seen[rows].any(axis=0))

    def _advance(
        self,
        out: dict[str, Floats],
        lanes: list[list[int]],
        tokens: Sequence[Sequence[int]],
        free: list[list[int]],
    ) -> None:
        """Lengthen the paths by the slots of the new tokens, and keep what these have listened to."""
        if self._alignment_heads:
            for kept, fresh, into in zip(self._store[ATTENTION], out["fresh_attention"], free, strict=True):
                kept[:, 0, into] = fresh.reshape(len(fresh), len(into), -1)
        for members, slots in zip(lanes, map(iter, free), strict=True):
            for row in members:
                new = list(islice(slots, len(tokens[row])))
                self._paths[row] += new
                self._seen[row, new] = True

    def _drop_lanes(self, busy: list[int]) -> None:
        """Keep only the given lanes; costs a copy, so it is done when half of them are idle."""
        self._audios = [self._audios[lane] for lane in busy]
        self._cross = self._features.take(self._audios)
        self._store, self._run = {name: array[busy] for name, array in self._store.items()}, None
        self._lane = [busy.index(lane) for lane in self._lane]


def _grant(asked: list[int], taken: NDArray[np.bool_], width: int) -> list[int]:
    """Slots as asked for where they are free, and for all others the first that are."""
    free = (slot for slot in np.flatnonzero(~taken).tolist() if slot not in asked)
    granted = [slot if slot >= 0 and not taken[slot] else next(free) for slot in asked]
    return granted + list(islice(free, width - len(granted)))


@lru_cache(maxsize=16)
def _causal(n: int) -> Floats:
    """Mask of n new tokens of one row: each sees itself and those before it."""
    mask: Floats = np.triu(np.full((n, n), HIDDEN), k=1)
    mask.flags.writeable = False
    return mask
