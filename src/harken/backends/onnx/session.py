"""The decoding state of the CPU engine: a KV cache for each window, and the slots of it that each row uses.

The KV cache of a window has S slots; a slot holds the keys and values of one token. A row is a list of slots, those of
its tokens in order. A mask over slots selects what a query attends to, so

* rows of one window share the slots of their common tokens: a prompt is computed and stored once;
* `reorder` permutes lists of slots and `rewind` shortens them: neither moves a key;
* drafted tokens, hypotheses of a beam and plain rows are the same to the graph.

Slots that no row uses are free and will be overwritten. The cache doubles when it is full and otherwise stays at its
address: the graph writes the keys and values of new tokens into it.

Attention sums over slots, so its last bits depend on their order. Rows that continue one prompt therefore have a
layout: the slot of a token follows from its position in the row, not from the number of tokens that were new at once
or from other rows. In addition, up to 16 tokens a row are multiplied one query at a time, which is also faster than all
at once. So the logits of a row are the same to the last bit, drafted or not. Only rows of a beam, which continue one
another, take the free slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np

from harken.backends.encoding import EncodedWindows, FrozenPadding
from harken.backends.host_logits import HostLogits
from harken.backends.onnx.runtimes import Graph, OnnxRuntimeGraph
from harken.checkpoints.alignment_heads import KeptHeads
from harken.contract import Floats, Ints
from harken.types import Dims

MASKED = np.float32(-1e9)
"""Score of a masked key; finite, since a row of padding is masked throughout, and -inf would make it NaN."""
INITIAL_SLOTS = 64
MAX_SINGLE_QUERY_TOKENS = 16
"""Most new tokens of a row whose attention is computed query by query; a longer prompt is faster in one product."""
ATTENTION_CACHE = "alignment_weights"
"""Key of the cached cross-attention, beside the keys and values."""


class SlotLayout(NamedTuple):
    """The slots of a row from its token `first_token` on: every `stride`-th slot from `first_slot` on."""

    first_token: int
    first_slot: int
    stride: int


class OnnxFeatures(EncodedWindows):
    """The encoder's output for some windows, and the cross-attention's keys and values.

    Parameters
    ----------
    encoder_output : ndarray of shape (windows, positions, n_audio_state), float32
    cross_kv : dict of str to ndarray
        One array for each input of the decoder graph, with the windows along axis 0.
    lengths : sequence of int, optional
        Number of positions of each window, where they differ; after them the arrays hold any finite values.
    padding : FrozenPadding, optional
        What stands for the padding of all windows.
    """

    def __init__(
        self,
        encoder_output: Floats,
        cross_kv: dict[str, Floats],
        lengths: Sequence[int] | None = None,
        padding: FrozenPadding | None = None,
    ) -> None:
        self.encoder_output, self.cross_kv = encoder_output, cross_kv
        self.lengths, self.padding = lengths, padding
        self._cross_attention_mask = np.zeros((self.n_windows, 1, 1, 1, self.positions), np.float32)
        if padding:
            self._cross_attention_mask += padding.key_bias
        for window, length in enumerate(lengths or ()):
            self._cross_attention_mask[window, ..., length:] = MASKED

    @property
    def n_windows(self) -> int:
        return len(self.encoder_output)

    def outputs(self) -> list[Floats]:
        lengths = self.lengths or [self.positions] * self.n_windows
        return [output[:length] for output, length in zip(self.encoder_output, lengths, strict=True)]

    @property
    def positions(self) -> int:
        """Number of positions of each window, with those behind the end of shorter ones."""
        return int(self.encoder_output.shape[1])

    def decoder_inputs(self, windows: Sequence[int]) -> dict[str, Floats]:
        """Return the graph's inputs for the given windows, without a copy if these are all windows in order."""
        index = slice(None) if list(windows) == list(range(self.n_windows)) else list(windows)
        cross_kv = {name: array[index, :, None] for name, array in self.cross_kv.items()}
        return {**cross_kv, "cross_attention_mask": self._cross_attention_mask[index]}


class OnnxSession:
    """`harken.contract.Session` over a decoder graph (see `harken.backends.onnx.graphs.decoder`).

    The `heads` are those of the graph, if their cross-attention is to be cached; `vocab_subset` are the ids that it
    computes logits of, None for all.
    """

    def __init__(
        self,
        graph: OnnxRuntimeGraph,
        dims: Dims,
        features: OnnxFeatures,
        row_windows: Sequence[int],
        capacity: int,
        *,
        heads: KeptHeads | None,
        vocab_subset: Ints | None,
    ) -> None:
        self._graph, self._dims, self._features, self._capacity = graph, dims, features, capacity
        self._heads, self._vocab_subset = heads, vocab_subset
        self._windows = list(dict.fromkeys(row_windows))
        self._cross_kv = features.decoder_inputs(self._windows)
        self._cache_windows = [self._windows.index(window) for window in row_windows]
        self._row_slots: list[list[int]] = [[] for _ in row_windows]
        self._layouts: list[SlotLayout | None] = [
            SlotLayout(
                0, self._cache_windows[:row].count(cache_window), self._cache_windows.count(cache_window)
            )
            for row, cache_window in enumerate(self._cache_windows)
        ]
        self._n_slots = INITIAL_SLOTS
        self._kv_cache = self._allocate_cache(INITIAL_SLOTS)
        self._run_graph: Graph | None = None

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        rows_by_window: list[list[int]] = [[] for _ in self._windows]
        for row, window in enumerate(self._cache_windows):
            if len(tokens[row]):
                rows_by_window[window].append(row)
        columns = self._dims.n_vocab if self._vocab_subset is None else len(self._vocab_subset)
        if not any(rows_by_window):
            return HostLogits(np.empty((0, columns), np.float32), self._vocab_subset)
        new_slots = self._reserve_slots(rows_by_window, tokens)
        inputs = self._decoder_inputs(rows_by_window, tokens, last_n, new_slots)
        outputs = {"logits": np.empty((len(inputs["logit_positions"]), columns), np.float32)}
        if self._heads:
            queries = inputs["self_attention_mask"].shape[2:4]
            shape = (len(rows_by_window), len(self._heads.all), *queries, self._features.positions)
            outputs["alignment_weights"] = np.empty(shape, np.float32)
        self._run_graph = self._run_graph or self._bind()
        self._run_graph(inputs, outputs)
        self._append_slots(outputs, rows_by_window, tokens, new_slots)
        return HostLogits(outputs["logits"], self._vocab_subset)

    def _bind(self) -> Graph:
        """Bind the arrays that stay at their address: KV cache, cross-attention keys and values, and mask."""
        past = {name: array for name, array in self._kv_cache.items() if name != ATTENTION_CACHE}
        present = {name.replace("past", "present"): array for name, array in past.items()}
        return self._graph.bind({**self._cross_kv, **past}, present)

    def _decoder_inputs(
        self,
        rows_by_window: list[list[int]],
        tokens: Sequence[Sequence[int]],
        last_n: int,
        new_slots: list[list[int]],
    ) -> dict[str, Any]:
        """Return the graph's inputs: the new tokens of each window's rows, their slots, and their masks."""
        width, heads = len(new_slots[0]), self._dims.n_text_head
        group_size = 1 if max(map(len, tokens)) <= MAX_SINGLE_QUERY_TOKENS else width
        ids = np.zeros((len(rows_by_window), width), np.int64)
        positions = np.zeros((len(rows_by_window), width), np.int64)
        mask = np.full((len(rows_by_window), width, self._n_slots), MASKED)
        slots = np.zeros((len(rows_by_window), heads, width, 4), np.int64)
        slots[..., 0] = np.arange(len(rows_by_window))[:, None, None]
        slots[..., 1] = np.arange(heads)[:, None]
        slots[..., 3] = np.array(new_slots)[:, None]
        logit_positions: dict[int, range] = {}
        for window, rows in enumerate(rows_by_window):
            offset = 0
            for row in rows:
                n, length = len(tokens[row]), len(self._row_slots[row])
                assert length + n <= self._capacity, "a row has outgrown the session"
                row_queries = slice(offset, offset + n)
                ids[window, row_queries] = tokens[row]
                positions[window, row_queries] = np.arange(length, length + n)
                mask[window, row_queries][:, self._row_slots[row]] = 0
                mask[window, row_queries][:, new_slots[window][row_queries]] = _causal_mask(n)
                offset += n
                logit_positions[row] = range(window * width + offset - min(last_n, n), window * width + offset)
        return {
            "tokens": ids,
            "positions": positions,
            "slots": slots,
            "self_attention_mask": mask.reshape(len(rows_by_window), 1, -1, group_size, self._n_slots),
            "group_size": np.array([group_size]),
            "logit_positions": np.array(
                [query for row in sorted(logit_positions) for query in logit_positions[row]], np.int64
            ),
            "alignment_queries": np.array([width if self._heads else 0]),
        }

    def rewind(self, lengths: Sequence[int]) -> None:
        for row_slots, length in zip(self._row_slots, lengths, strict=True):
            del row_slots[length:]

    def reorder(self, rows: Sequence[int]) -> None:
        self._layouts = self._reordered_layouts(rows)
        self._row_slots = [list(self._row_slots[row]) for row in rows]
        self._cache_windows = [self._cache_windows[row] for row in rows]
        live_windows = sorted(set(self._cache_windows))
        if 2 * len(live_windows) <= len(self._windows):
            self._drop_idle_windows(live_windows)

    def attention(self, row: int, *, words: bool = False) -> Floats:
        assert self._heads, "attention is kept in sessions that were opened with attention=True"
        window, slots = self._cache_windows[row], self._row_slots[row]
        weights: Floats = self._kv_cache[ATTENTION_CACHE][window, :, 0, slots].transpose(1, 0, 2)
        return self._heads.select(weights, words=words)

    def _allocate_cache(self, n_slots: int) -> dict[str, Floats]:
        """Allocate the KV cache by the names of the graph's inputs, and the cache of alignment weights."""
        heads = self._dims.n_text_head
        shape = (len(self._windows), heads, 1, n_slots, self._dims.n_text_state // heads)
        cache = {
            f"past_{part}.{i}": np.zeros(shape, np.float32)
            for i in range(self._dims.n_text_layer)
            for part in "kv"
        }
        if self._heads:
            shape = (len(self._windows), len(self._heads.all), 1, n_slots, self._features.positions)
            cache[ATTENTION_CACHE] = np.empty(shape, np.float32)
        return cache

    def _reserve_slots(
        self, rows_by_window: list[list[int]], tokens: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Choose slots for the new tokens of each window; double the cache until every window has enough free ones.

        Every window gets as many slots as the one with the most new tokens, because the graph writes the same number
        in each: what it writes for padding stays in free slots.
        """
        width = max(sum(len(tokens[row]) for row in rows) for rows in rows_by_window)
        preferred = [
            [slot for row in rows for slot in self._preferred_slots(row, len(tokens[row]))]
            for rows in rows_by_window
        ]
        used: list[set[int]] = [set() for _ in rows_by_window]
        for window, row_slots in zip(self._cache_windows, self._row_slots, strict=True):
            used[window].update(row_slots)
        n_slots, last = self._n_slots, max(chain(*preferred))
        while last >= n_slots or any(n_slots - len(window_used) < width for window_used in used):
            n_slots *= 2
        if n_slots > self._n_slots:
            grown = self._allocate_cache(n_slots)
            for name, array in self._kv_cache.items():
                grown[name][..., : self._n_slots, :] = array
            self._n_slots, self._kv_cache, self._run_graph = n_slots, grown, None
        return [
            _assign_slots(window_preferred, window_used, width)
            for window_preferred, window_used in zip(preferred, used, strict=True)
        ]

    def _preferred_slots(self, row: int, n: int) -> list[int]:
        """Return the slots that the layout of a row has for its next tokens; -1 without a layout."""
        layout, length = self._layouts[row], len(self._row_slots[row])
        if layout is None or length < layout.first_token:
            return [-1] * n
        first = layout.first_slot + (length - layout.first_token) * layout.stride
        return list(range(first, first + n * layout.stride, layout.stride))

    def _reordered_layouts(self, rows: Sequence[int]) -> list[SlotLayout | None]:
        """Return the layouts of rows that continue the given ones; the only continuation of a row keeps its layout.

        Several continuations of a row that was alone in its window get interleaved slots behind it.
        """
        layouts: list[SlotLayout | None] = []
        for new_row, row in enumerate(rows):
            layout, copies = self._layouts[row], rows.count(row)
            if copies > 1:
                only_row = self._cache_windows.count(self._cache_windows[row]) == 1
                first_slot = max(self._row_slots[row], default=-1) + 1 + rows[:new_row].count(row)
                layout = SlotLayout(len(self._row_slots[row]), first_slot, copies) if only_row else None
            layouts.append(layout)
        return layouts

    def _append_slots(
        self,
        outputs: dict[str, Floats],
        rows_by_window: list[list[int]],
        tokens: Sequence[Sequence[int]],
        new_slots: list[list[int]],
    ) -> None:
        """Append the slots of the new tokens to their rows, and cache the alignment weights of these tokens."""
        if self._heads:
            for window_cache, new_weights, window_slots in zip(
                self._kv_cache[ATTENTION_CACHE], outputs["alignment_weights"], new_slots, strict=True
            ):
                window_cache[:, 0, window_slots] = new_weights.reshape(len(new_weights), len(window_slots), -1)
        for rows, slots in zip(rows_by_window, map(iter, new_slots), strict=True):
            for row in rows:
                self._row_slots[row] += islice(slots, len(tokens[row]))

    def _drop_idle_windows(self, live_windows: list[int]) -> None:
        """Keep only the given windows; this copies the cache, so it is done when half of the windows are idle."""
        self._windows = [self._windows[window] for window in live_windows]
        self._cross_kv = self._features.decoder_inputs(self._windows)
        self._kv_cache = {name: array[live_windows] for name, array in self._kv_cache.items()}
        self._run_graph = None
        self._cache_windows = [live_windows.index(window) for window in self._cache_windows]


def _assign_slots(preferred: list[int], used: set[int], width: int) -> list[int]:
    """Return the preferred slots that are free, and the first free slots for all other tokens."""
    free = (slot for slot in count() if slot not in used and slot not in preferred)
    assigned = [slot if slot >= 0 and slot not in used else next(free) for slot in preferred]
    return assigned + list(islice(free, width - len(assigned)))


@lru_cache(maxsize=16)
def _causal_mask(n: int) -> Floats:
    """Return the mask of n new tokens of one row: each attends to itself and those before it."""
    mask: Floats = np.triu(np.full((n, n), MASKED), k=1)
    mask.flags.writeable = False
    return mask
