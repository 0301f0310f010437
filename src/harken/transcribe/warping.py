"""When each token was spoken: a path of dynamic time warping through the cross-attention of the alignment heads.

Source: openai/whisper, timing.py, find_alignment, median_filter and dtw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats, Ints

FILTER_WIDTH = 7
# Exchanges that put the median of seven in the middle (Devillard 1998, "Fast median search: an ANSI C
# implementation", opt_med7).
_MEDIAN_OF_7 = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4),
)  # fmt: skip


def listening(attention: Floats, steps: int) -> Floats:
    """What each token listens to more than the others do.

    Parameters
    ----------
    attention : ndarray of shape (heads, tokens, positions), float32
        Softmax weights of the alignment heads.
    steps : int
        How many of the positions hold sound, at least 1.

    Returns
    -------
    ndarray of shape (tokens, steps), float32
        Mean over the heads of the weights among the first `steps` positions, in standard deviations over the
        tokens, filtered by the median of 7 positions.
    """
    heard = attention[:, :, :steps]
    mean_of_heads = np.zeros(heard.shape[1:], np.float32)
    for weights in heard:
        shares = weights / np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
        deviation = shares.std(axis=0)
        distinct = (shares - shares.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
        mean_of_heads += _median_of_7(distinct) / np.float32(len(heard))
    return mean_of_heads


def token_starts(matrix: Floats) -> Ints:
    """Step at which each token begins, along the monotonic path that listens best.

    The path goes from the first token and step to the last, by one token, one step or both at a time.

    Parameters
    ----------
    matrix : ndarray of shape (tokens, steps), float32
        From `listening`.

    Returns
    -------
    ndarray of shape (tokens,), int64
        In rising order, the first of them 0.
    """
    entered, diagonal = _moves(-matrix.astype(np.float64))
    starts = np.zeros(len(matrix), np.int64)
    step = matrix.shape[1] - 1
    for token in range(len(matrix) - 1, 0, -1):
        starts[token] = step = entered[token, step]
        step -= diagonal[token, step]
    return starts


def _moves(cost: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """For each token and step, where the best path there has entered the token, and how many steps entering it took.

    A row of the table is computed at once: to stay at a token up to step j costs the running sum S(j), so the best
    way to be there is S(j) + min over k <= j of (cheapest way in at k - S(k - 1)).
    """
    entered = np.zeros(cost.shape, np.int64)
    diagonal = np.zeros(cost.shape, np.int64)
    position = np.arange(cost.shape[1])
    total = np.cumsum(cost[0])
    for token in range(1, len(cost)):
        above = total
        before = np.concatenate([[np.inf], above[:-1]])
        way_in = np.minimum(before, above)
        staying = np.cumsum(cost[token])
        total = staying + np.minimum.accumulate(way_in - (staying - cost[token]))
        stay = np.concatenate([[np.inf], total[:-1]])
        entered[token] = np.maximum.accumulate(np.where(way_in < stay, position, 0))
        diagonal[token] = before < above
    return entered, diagonal


def _median_of_7(rows: Floats) -> Floats:
    """Median of each value and the three to either side of it, mirrored at the ends."""
    width = rows.shape[-1]
    if width <= FILTER_WIDTH // 2:
        return rows
    padded = np.pad(rows, ((0, 0), (FILTER_WIDTH // 2,) * 2), mode="reflect")
    lanes = [padded[:, i : i + width] for i in range(FILTER_WIDTH)]
    for low, high in _MEDIAN_OF_7:
        lanes[low], lanes[high] = np.minimum(lanes[low], lanes[high]), np.maximum(lanes[low], lanes[high])
    return lanes[FILTER_WIDTH // 2]
