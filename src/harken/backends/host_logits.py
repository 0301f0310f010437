"""The logits of the backends on the CPU, in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harken.backends.encoding import columns_of
from harken.contract import Floats, Ints, TokenRange

TOPK_BLOCK = 256


class HostLogits:
    """`harken.contract.Logits` over an array that this object owns and changes.

    Parameters
    ----------
    values : ndarray of shape (P, columns), float32
    token_ids : ndarray of shape (columns,), int64, or None
        Ascending ids of the tokens of the columns; None is the whole vocabulary. A token without a column counts as
        one with the logit -inf: every method takes it, and none chooses it.
    """

    def __init__(self, values: Floats, token_ids: Ints | None = None) -> None:
        self.values, self._token_ids = values, token_ids

    def __len__(self) -> int:
        return len(self.values)

    def select_positions(self, positions: Sequence[int]) -> HostLogits:
        return HostLogits(self.values[list(positions)], self._token_ids)

    def probability(self, token: int) -> Floats:
        logits = self.values[:, self._columns(token, token + 1)]
        probability: Floats = np.exp(logits - self._log_normalizer()[:, None]).sum(axis=1)
        return probability

    def suppress_ranges(self, token_ranges: Sequence[Sequence[TokenRange]]) -> None:
        for row, ranges in zip(self.values, token_ranges, strict=True):
            for start, stop in ranges:
                row[self._columns(start, stop)] = -np.inf

    def suppress_tokens(self, tokens: Ints) -> None:
        self.values[:, columns_of(tokens, self._token_ids)] = -np.inf

    def bias(self, bonuses: Sequence[Mapping[int, float]]) -> None:
        for row, row_bonuses in zip(self.values, bonuses, strict=True):
            for token, bonus in row_bonuses.items():
                row[self._columns(token, token + 1)] += np.float32(bonus)

    def prefer_timestamps(self, timestamp_begin: int) -> None:
        first = self._columns(timestamp_begin, timestamp_begin).start
        text, timestamps = self.values[:, :first], self.values[:, first:]
        if not text.size:
            return
        text[_log_sum_exp(timestamps) > text.max(axis=1)] = -np.inf

    def top(self, k: int) -> tuple[Ints, Floats]:
        columns = self.values.argmax(axis=1)[:, None] if k == 1 else _top_columns(self.values, k)
        best = np.take_along_axis(self.values, columns, axis=1)
        return self._to_token_ids(columns), best - self._log_normalizer()[:, None]

    def sample(self, temperature: float, uniforms: Sequence[float]) -> tuple[Ints, Floats]:
        drawn = [_sample_column(row, temperature, u) for row, u in zip(self.values, uniforms, strict=True)]
        columns = np.array(drawn, np.int64)
        picked = np.take_along_axis(self.values, columns[:, None], axis=1)[:, 0]
        return self._to_token_ids(columns), picked - self._log_normalizer()

    def _log_normalizer(self) -> Floats:
        """Return logits minus log-probabilities at each position; 0 where all tokens are suppressed."""
        total = _log_sum_exp(self.values)
        return np.where(np.isneginf(total), np.float32(0), total)

    def _columns(self, start: int, stop: int) -> slice:
        """Return the columns of the tokens from `start` up to `stop`, exclusive."""
        if self._token_ids is None:
            return slice(start, stop)
        return slice(*self._token_ids.searchsorted((start, stop)).tolist())

    def _to_token_ids(self, columns: Ints) -> Ints:
        return columns if self._token_ids is None else self._token_ids[columns]


def _sample_column(row: Floats, temperature: float, uniform: float) -> int:
    """Return the first column at which the cumulative distribution exceeds a number in [0, 1)."""
    cumulative = ((row - row.max()) / temperature).astype(np.float64)
    np.cumsum(np.exp(cumulative, out=cumulative), out=cumulative)
    return int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))


def _log_sum_exp(values: Floats) -> Floats:
    """Return the log of the sum of exponentials of each row; -inf for a row of -inf."""
    peak = values.max(axis=1, initial=-np.inf)
    finite = np.where(np.isfinite(peak), peak, np.float32(0))
    total, shifted = np.empty_like(finite), np.empty(values.shape[1], np.float32)
    for row, row_values in enumerate(values):  # row by row, so that the shifted values stay in the CPU cache
        total[row] = np.exp(np.subtract(row_values, finite[row], out=shifted), out=shifted).sum()
    with np.errstate(divide="ignore"):
        return finite + np.log(total)


def _top_columns(values: Floats, k: int) -> Ints:
    """Return the columns of the k largest values of each row, largest first, the lower column first among equals.

    The k largest lie in the k blocks with the largest maxima, so only those are sorted.
    """
    rows, width = values.shape
    k = min(k, width)
    starts = np.arange(0, width, TOPK_BLOCK)
    maxima = np.maximum.reduceat(values, starts, axis=1)
    best = np.empty((rows, k), np.int64)
    for row in range(rows):
        blocks = np.sort(np.argsort(-maxima[row], kind="stable")[:k])
        columns = (starts[blocks, None] + np.arange(TOPK_BLOCK)).ravel()
        columns = columns[columns < width]
        best[row] = columns[np.argsort(-values[row, columns], kind="stable")[:k]]
    return best
