"""The decoding state of the native decoder, whose rows are in the library and their lengths here, and its logits."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np

from harken.backends.encoding import NO_TOKEN, columns_of, grammar_state
from harken.backends.host_logits import HostLogits
from harken.backends.native.decoder import NativeDecoder, PackedWindow, close_when_collected
from harken.backends.native.library import Picked, Rules
from harken.contract import Floats, GreedyRules, Ints, PickedSoFar

MOST_INSERTED = 256
"""Most columns that the library chooses: it inserts each among the best so far, and numpy sorts."""


class NativeSession:
    """`harken.contract.Session` over a session of the library."""

    def __init__(
        self,
        decoder: NativeDecoder,
        windows: Sequence[PackedWindow],
        row_windows: Sequence[int],
        capacity: int,
        *,
        attention: bool,
    ) -> None:
        assert capacity <= decoder.dims.n_text_ctx, "the library has room for the model's context"
        self._decoder, self._capacity, self._attention = decoder, capacity, attention
        self._positions = max(window.positions for window in windows)
        self._lengths = [0] * len(row_windows)
        self._handle = decoder.open_session(windows, row_windows, attention)
        close_when_collected(self, decoder.close_session, self._handle, windows)

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> NativeLogits:
        decoder = self._decoder
        counts = array("i", map(len, tokens))
        flat = array("i", chain.from_iterable(tokens))
        lengths = [length + count for length, count in zip(self._lengths, counts, strict=True)]
        assert max(lengths, default=0) <= self._capacity, "a row has outgrown the session"
        logits = np.empty((sum([min(last_n, count) for count in counts]), decoder.stride), np.float32)
        if flat:
            assert 0 <= min(flat) <= max(flat) < decoder.dims.n_vocab, "tokens are ids of the vocabulary"
            decoder.call(
                "session_extend",
                self._handle,
                flat.buffer_info()[0],
                counts.buffer_info()[0],
                last_n,
                logits.ctypes.data,
                decoder.stride,
            )
        self._lengths = lengths
        return NativeLogits(decoder, logits, decoder.n_columns, decoder.vocab_subset)

    def pick_best(self, rules: GreedyRules, picked: Sequence[PickedSoFar], most: int) -> tuple[Ints, Floats]:
        decoder, n_rows = self._decoder, len(self._lengths)
        logits = np.empty((n_rows, decoder.stride), np.float32)
        ids, logprobs = np.empty((most, n_rows), np.int64), np.empty((most, n_rows), np.float32)
        suppressed = columns_of(rules.suppressed, decoder.vocab_subset)
        begin = NO_TOKEN if rules.timestamp_begin is None else rules.timestamp_begin
        unread = [array("i", row.unread or row.tokens[-1:]) for row in picked]
        rows = [
            Picked(
                first.buffer_info()[0],
                len(first),
                *grammar_state(row, rules.timestamp_begin),
                *(row.left, row.calibration, row.least_prob),
            )
            for row, first in zip(picked, unread, strict=True)
        ]
        steps = decoder.call(
            "session_pick_best",
            self._handle,
            Rules(suppressed.ctypes.data, len(suppressed), rules.eot, begin),
            (Picked * n_rows)(*rows),
            most,
            logits.ctypes.data,
            decoder.stride,
            ids.ctypes.data,
            logprobs.ctypes.data,
        )
        self._lengths = [
            length + len(first) + steps - 1 for length, first in zip(self._lengths, unread, strict=True)
        ]
        return ids[:steps], logprobs[:steps]

    def rewind(self, lengths: Sequence[int]) -> None:
        kept = array("i", map(min, lengths, self._lengths))
        self._decoder.call("session_rewind", self._handle, kept.buffer_info()[0])
        self._lengths = kept.tolist()

    def reorder(self, rows: Sequence[int]) -> None:
        order = array("i", rows)
        lengths = [self._lengths[row] for row in rows]
        self._decoder.call("session_reorder", self._handle, order.buffer_info()[0], len(order))
        self._lengths = lengths

    def attention(self, row: int, *, words: bool = False) -> Floats:
        assert self._attention, "attention is kept in sessions that were opened with attention=True"
        decoder, positions = self._decoder, self._positions
        weights = np.empty((len(decoder.heads.all), self._lengths[row], positions), np.float32)
        decoder.call("session_attention", self._handle, row, weights.ctypes.data, positions)
        return decoder.heads.select(weights, words=words)


class NativeLogits(HostLogits):
    """`harken.contract.Logits` over an array of the native decoder.

    Parameters
    ----------
    decoder : NativeDecoder
    padded : ndarray of shape (P, stride), float32
        Logits, and numbers without a meaning behind them; owned and changed by this object.
    n_columns : int
        Number of logits at a position.
    token_ids : ndarray of shape (n_columns,), int64, or None
        Ascending ids of the tokens of the columns; None is the whole vocabulary.
    """

    def __init__(
        self, decoder: NativeDecoder, padded: Floats, n_columns: int, token_ids: Ints | None = None
    ) -> None:
        assert padded.flags.c_contiguous
        super().__init__(padded[:, :n_columns], token_ids)
        self._decoder, self._padded, self._n_columns = decoder, padded, n_columns

    def select_positions(self, positions: Sequence[int]) -> NativeLogits:
        padded = self._padded[list(positions)]
        return NativeLogits(self._decoder, padded, self._n_columns, self._token_ids)

    def prefer_timestamps(self, timestamp_begin: int) -> None:
        self._call("prefer_timestamps", self._columns(timestamp_begin, timestamp_begin).start)

    def top(self, k: int) -> tuple[Ints, Floats]:
        if k > MOST_INSERTED:
            return super().top(k)
        shape = (len(self), min(k, self._n_columns))
        best, logprobs = np.empty(shape, np.int64), np.empty(shape, np.float32)
        self._call("top", shape[1], best.ctypes.data, logprobs.ctypes.data)
        return self._to_token_ids(best), logprobs

    def sample(self, temperature: float, uniforms: Sequence[float]) -> tuple[Ints, Floats]:
        numbers = np.array(uniforms, np.float64)
        assert len(numbers) == len(self), "one number a position"
        drawn, logprobs = np.empty(len(self), np.int64), np.empty(len(self), np.float32)
        self._call("sample", temperature, numbers.ctypes.data, drawn.ctypes.data, logprobs.ctypes.data)
        return self._to_token_ids(drawn), logprobs

    def _log_normalizer(self) -> Floats:
        normalizer = np.empty(len(self), np.float32)
        self._call("normalizer", normalizer.ctypes.data)
        return normalizer

    def _call(self, name: str, *arguments: float) -> None:
        """Call a function of the library on these logits, ``harken_logits_NAME``."""
        decoder = self._decoder
        decoder.call(
            f"logits_{name}",
            decoder.handle,
            self._padded.ctypes.data,
            len(self._padded),
            self._n_columns,
            self._padded.shape[1],
            *arguments,
        )
