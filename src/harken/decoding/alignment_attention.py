"""The audio positions that each token attends to, from the cross-attention of the alignment heads.

Source: openai/whisper, timing.py, find_alignment and median_filter.
"""

from __future__ import annotations

import numpy as np

from harken.contract import Floats

FILTER_WIDTH = 7
# Compare-and-swap pairs that put the median of seven in the middle (Devillard 1998, "Fast median search: an ANSI C
# implementation", opt_med7).
_MEDIAN_OF_7 = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4),
)  # fmt: skip


def alignment_matrix(attention: Floats, n_positions: int, last_n: int | None = None) -> Floats:
    """Return the attention of each token relative to that of the other tokens.

    Parameters
    ----------
    attention : ndarray of shape (heads, tokens, positions), float32
        Softmax weights of the alignment heads.
    n_positions : int
        Number of positions, from the first one, that hold audio; at least 1.
    last_n : int or None
        Number of tokens, counted from the end, to return; None returns all. All of them enter the statistics.

    Returns
    -------
    ndarray of shape (last_n or tokens, n_positions), float32
        Weights within the first `n_positions` positions, standardized over the tokens, filtered by the median of 7
        positions, averaged over the heads.
    """
    first = 0 if last_n is None else attention.shape[1] - last_n
    normalized = _normalized(attention, n_positions)
    mean, std = normalized.mean(axis=1, keepdims=True), normalized.std(axis=1, keepdims=True)
    return _filtered_mean_of_heads(normalized[:, first:], mean, std)


class RunningAlignment:
    """The row of `alignment_matrix` of one token after another, for the cost of the new tokens.

    Parameters
    ----------
    n_positions : int
        As for `alignment_matrix`.
    """

    def __init__(self, n_positions: int) -> None:
        self._n_positions, self._n_tokens = n_positions, 0
        self._mean = self._squares = np.zeros(0, np.float32)

    def last_row(self, attention: Floats) -> Floats:
        """Return the row of the last token, shape (n_positions,).

        Parameters
        ----------
        attention : ndarray of shape (heads, tokens, positions), float32
            Attention of all tokens so far: one more than at the call before, and the same ones before it.

        Notes
        -----
        Source: Welford 1962, "Note on a method for calculating corrected sums of squares and products".
        """
        new = _normalized(attention[:, self._n_tokens :], self._n_positions)
        if not self._n_tokens:
            self._mean = new.mean(axis=1, keepdims=True)
            self._squares = np.square(new - self._mean).sum(axis=1, keepdims=True)
        else:
            difference = new - self._mean
            self._mean = self._mean + difference / np.float32(attention.shape[1])
            self._squares = self._squares + difference * (new - self._mean)
        self._n_tokens = attention.shape[1]
        std = np.sqrt(self._squares / np.float32(self._n_tokens))
        row: Floats = _filtered_mean_of_heads(new[:, -1:], self._mean, std)[0]
        return row


def _normalized(attention: Floats, n_positions: int) -> Floats:
    """Return the weights within the first positions, which sum to 1."""
    weights = attention[:, :, :n_positions]
    normalized: Floats = weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    return normalized


def _filtered_mean_of_heads(weights: Floats, mean: Floats, std: Floats) -> Floats:
    """Return weights standardized by statistics of all tokens, filtered, and averaged over the heads."""
    divisor: Floats = np.where(std > 0, std, 1)
    standardized: Floats = (weights - mean) / divisor
    mean_of_heads = np.zeros(standardized.shape[1:], np.float32)
    for filtered in _median_of_7(standardized):
        mean_of_heads += filtered / np.float32(len(weights))
    return mean_of_heads


def _median_of_7(rows: Floats) -> Floats:
    """Return the median of each value and the three to either side of it, mirrored at the ends."""
    width = rows.shape[-1]
    if width <= FILTER_WIDTH // 2:
        return rows
    edge = FILTER_WIDTH // 2
    padded = np.concatenate([rows[..., edge:0:-1], rows, rows[..., -2 : -2 - edge : -1]], axis=-1)
    shifted = [padded[..., i : i + width] for i in range(FILTER_WIDTH)]
    for low, high in _MEDIAN_OF_7:
        shifted[low], shifted[high] = (
            np.minimum(shifted[low], shifted[high]),
            np.maximum(shifted[low], shifted[high]),
        )
    return shifted[FILTER_WIDTH // 2]
