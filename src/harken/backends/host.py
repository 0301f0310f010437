"""Logits that live in host memory: what every backend on the CPU returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harken.contract import Floats, Ints, Span

BLOCK = 256


class HostLogits:
    """`harken.contract.Logits` over an array that this object owns and changes.

    Parameters
    ----------
    values : ndarray of shape (P, n_vocab), float32
    """

    def __init__(self, values: Floats) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, positions: Sequence[int]) -> HostLogits:
        return HostLogits(self.values[list(positions)])

    def probability(self, token: int) -> Floats:
        probability: Floats = np.exp(self.values[:, token] - self._log_sum())
        return probability

    def ban(self, spans: Sequence[Sequence[Span]]) -> None:
        for row, ranges in zip(self.values, spans, strict=True):
            for start, stop in ranges:
                row[start:stop] = -np.inf

    def suppress(self, tokens: Ints) -> None:
        self.values[:, tokens] = -np.inf

    def bias(self, bonuses: Sequence[Mapping[int, float]]) -> None:
        for row, bonus in zip(self.values, bonuses, strict=True):
            row[list(bonus)] += np.fromiter(bonus.values(), np.float32, len(bonus))

    def prefer_timestamps(self, begin: int) -> None:
        text, timestamps = self.values[:, :begin], self.values[:, begin:]
        if not text.size:
            return
        text[_log_sum_exp(timestamps) > text.max(axis=1)] = -np.inf

    def top(self, k: int) -> tuple[Ints, Floats]:
        ids = self.values.argmax(axis=1)[:, None] if k == 1 else _top_ids(self.values, k)
        best = np.take_along_axis(self.values, ids, axis=1)
        return ids, best - self._log_sum()[:, None]

    def sample(self, temperature: float, uniforms: Sequence[float]) -> tuple[Ints, Floats]:
        peak = self.values.max(axis=1, keepdims=True)
        mass = np.cumsum(np.exp((self.values - peak) / temperature, dtype=np.float64), axis=1)
        ids = np.array(
            [np.searchsorted(m, u * m[-1], side="right") for m, u in zip(mass, uniforms, strict=True)]
        )
        picked = np.take_along_axis(self.values, ids[:, None], axis=1)[:, 0]
        return ids, picked - self._log_sum()

    def _log_sum(self) -> Floats:
        return _log_sum_exp(self.values)


def _log_sum_exp(values: Floats) -> Floats:
    """Log of the sum of exponentials a row; -inf for a row that is -inf throughout."""
    peak = values.max(axis=1, initial=-np.inf)
    finite = np.where(np.isfinite(peak), peak, np.float32(0))
    with np.errstate(divide="ignore"):
        total: Floats = finite + np.log(np.exp(values - finite[:, None]).sum(axis=1))
    return total


def _top_ids(values: Floats, k: int) -> Ints:
    """Ids of the k largest values of each row, largest first, the lower id first among equals.

    The k largest lie in the k blocks with the largest maxima, so only those are sorted.
    """
    rows, width = values.shape
    k = min(k, width)
    starts = np.arange(0, width, BLOCK)
    maxima = np.maximum.reduceat(values, starts, axis=1)
    best = np.empty((rows, k), np.int64)
    for row in range(rows):
        blocks = np.sort(np.argsort(-maxima[row], kind="stable")[:k])
        ids = (starts[blocks, None] + np.arange(BLOCK)).ravel()
        ids = ids[ids < width]
        best[row] = ids[np.argsort(-values[row, ids], kind="stable")[:k]]
    return best
