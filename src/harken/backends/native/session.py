"""The decoding state of the native decoder: rows in the library, their lengths here."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from harken.backends.native.decoder import NativeDecoder, NativeFeatures, close_when_collected
from harken.backends.native.library import NO_MEMORY
from harken.backends.native.logits import NativeLogits
from harken.contract import Floats
from harken.errors import OutOfMemory


class NativeSession:
    """`harken.contract.Session` over a session of the library.

    Parameters
    ----------
    decoder : NativeDecoder
    features : NativeFeatures
    row_windows : sequence of int
        Window of each row.
    capacity : int
        Most tokens of a row.
    attention : bool
        Keep the cross-attention of the alignment heads.
    """

    def __init__(
        self,
        decoder: NativeDecoder,
        features: NativeFeatures,
        row_windows: Sequence[int],
        capacity: int,
        *,
        attention: bool = False,
    ) -> None:
        assert capacity <= decoder.dims.n_text_ctx, "the library has room for the model's context"
        self._decoder, self._features, self._capacity, self._attention = decoder, features, capacity, attention
        self._lengths = [0] * len(row_windows)
        self._handle = decoder.open_session(features.windows, row_windows, attention, features.key_bias)
        close_when_collected(self, decoder.close_session, self._handle, features)

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self._lengths)

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> NativeLogits:
        decoder = self._decoder
        counts = array("i", map(len, tokens))
        flat = array("i", chain.from_iterable(tokens))
        lengths = [length + count for length, count in zip(self._lengths, counts, strict=True)]
        assert max(lengths, default=0) <= self._capacity, "a row has outgrown the session"
        logits = np.empty((sum([min(last_n, count) for count in counts]), decoder.stride), np.float32)
        if flat:
            assert 0 <= min(flat) <= max(flat) < decoder.dims.n_vocab, "tokens are ids of the vocabulary"
            self._call(
                decoder.library.harken_session_extend,
                flat.buffer_info()[0],
                counts.buffer_info()[0],
                last_n,
                logits.ctypes.data,
                decoder.stride,
            )
        self._lengths = lengths
        return NativeLogits(decoder, logits, decoder.n_columns, decoder.vocab_subset)

    def rewind(self, lengths: Sequence[int]) -> None:
        kept = array("i", map(min, lengths, self._lengths))
        self._decoder.call(self._decoder.library.harken_session_rewind, self._handle, kept.buffer_info()[0])
        self._lengths = kept.tolist()

    def reorder(self, rows: Sequence[int]) -> None:
        order = array("i", rows)
        lengths = [self._lengths[row] for row in rows]
        self._call(self._decoder.library.harken_session_reorder, order.buffer_info()[0], len(order))
        self._lengths = lengths

    def attention(self, row: int) -> Floats:
        assert self._attention, "attention is kept in sessions that were opened with attention=True"
        decoder, positions = self._decoder, self._features.positions
        weights = np.empty((decoder.n_alignment_heads, self._lengths[row], positions), np.float32)
        decoder.call(
            decoder.library.harken_session_attention, self._handle, row, weights.ctypes.data, positions
        )
        return weights

    def _call(self, function: Callable[..., int], *arguments: int) -> None:
        """Call a function on this session that can run out of memory."""
        if self._decoder.call(function, self._handle, *arguments) == NO_MEMORY:
            raise OutOfMemory("not enough memory for computing")
