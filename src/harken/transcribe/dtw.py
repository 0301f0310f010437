"""When each token was spoken: a path of dynamic time warping through what it listens to.

Source: openai/whisper, timing.py, find_alignment and dtw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats, Ints


def token_starts(attention: Floats) -> Ints:
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
    entered, diagonal = _dtw_trace(-attention.astype(np.float64))
    starts = np.zeros(len(attention), np.int64)
    position = attention.shape[1] - 1
    for token in range(len(attention) - 1, 0, -1):
        starts[token] = position = entered[token, position]
        position -= diagonal[token, position]
    return starts


def _dtw_trace(cost: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """For each token and step, where the best path there has entered the token, and how many steps entering it took.

    A row of the table is computed at once: to stay at a token up to step j costs the running sum S(j), so the best
    way to be there is S(j) + min over k <= j of (cheapest way in at k - S(k - 1)).
    """
    entered = np.zeros(cost.shape, np.int64)
    diagonal = np.zeros(cost.shape, np.int64)
    position = np.arange(cost.shape[1])
    total = np.cumsum(cost[0])
    for token in range(1, len(cost)):
        vertical_cost = total
        diagonal_cost = np.concatenate([[np.inf], vertical_cost[:-1]])
        entry_cost = np.minimum(diagonal_cost, vertical_cost)
        staying = np.cumsum(cost[token])
        total = staying + np.minimum.accumulate(entry_cost - (staying - cost[token]))
        stay_cost = np.concatenate([[np.inf], total[:-1]])
        entered[token] = np.maximum.accumulate(np.where(entry_cost < stay_cost, position, 0))
        diagonal[token] = diagonal_cost < vertical_cost
    return entered, diagonal
