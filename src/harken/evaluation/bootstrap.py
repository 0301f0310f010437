"""Confidence intervals of an error rate, by drawing the test set anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harken.evaluation.error_rate import ErrorCounts

SEED = 0
RESAMPLES = 1000
RESAMPLES_PER_BATCH = 100
"""Test sets that are drawn at once: all of them would take much memory."""
CONFIDENCE_LEVEL = 0.95


def bootstrap_error_rates(error_counts: Sequence[ErrorCounts]) -> NDArray[np.float64]:
    """Error rates of test sets drawn anew, with replacement and as large as the one there is.

    Source: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation" (ICASSP 2004).

    Parameters
    ----------
    tallies : sequence of Tally
        One for each unit that is independent of the others, with a reference that is not empty.

    Returns
    -------
    ndarray of shape (1000,), float64
        The same for the same tallies. What is drawn depends on their number only, so the rates of two engines on one
        test set can be subtracted.
    """
    counts = np.array([(tally.errors, tally.reference_length) for tally in error_counts], np.float64)
    rng = np.random.default_rng(SEED)
    shape = (RESAMPLES_PER_BATCH, len(counts))
    resampled_counts = [
        counts[rng.integers(len(counts), size=shape)].sum(axis=1)
        for _ in range(RESAMPLES // RESAMPLES_PER_BATCH)
    ]
    errors, reference = np.concatenate(resampled_counts).T
    return np.asarray(errors / reference)


def confidence_interval(rates: NDArray[np.float64]) -> tuple[float, float]:
    """Lowest and highest of the middle 95 % of some rates."""
    low, high = np.quantile(rates, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    return float(low), float(high)
