"""Dynamic time warping of text tokens along the encoder positions that they attend to.

Source: openai/whisper, timing.py, find_alignment and dtw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats, Ints


def token_starts(attention: Floats) -> Ints:
    """Return the position at which each token begins, on the monotonic path with the highest attention.

    The path leads from the first token and position to the last, by one token, one position or both at a time.

    Parameters
    ----------
    attention : ndarray of shape (tokens, positions), float32
        From `harken.decoding.alignment_attention.alignment_matrix`.

    Returns
    -------
    ndarray of shape (tokens,), int64
        In rising order, from 0.
    """
    entered, diagonal = _dtw_trace(-attention.astype(np.float64))
    starts = np.zeros(len(attention), np.int64)
    position = attention.shape[1] - 1
    for token in range(len(attention) - 1, 0, -1):
        starts[token] = position = entered[token, position]
        position -= diagonal[token, position]
    return starts


def _dtw_trace(cost: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Return the trace of the cheapest path to each token and position.

    A row of the table is computed at once: staying at a token up to position j costs the running sum S(j), so the
    cheapest path to it costs S(j) + min over k <= j of (cheapest entry at k - S(k - 1)).

    Returns
    -------
    entered : ndarray of shape (tokens, positions), int64
        Position at which the path enters the token.
    diagonal : ndarray of shape (tokens, positions), int64
        1 where a path that enters the token at this position comes from the position before, 0 where it does not.
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
