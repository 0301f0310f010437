"""Confidence intervals of an error rate, by drawing the test set anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harken.evaluation.compare import Tally

SEED = 0
RESAMPLES = 1000
CONFIDENCE = 0.95


def interval(tallies: Sequence[Tally]) -> tuple[float, float]:
    """Interval that holds the error rate with 95 % confidence.

    Source: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation"
    (ICASSP 2004): test sets of as many units are drawn with replacement, and of their rates the middle 95 % taken.

    Parameters
    ----------
    tallies : sequence of Tally
        One for each unit that is independent of the others, with a reference that is not empty.

    Returns
    -------
    low, high : float
        The same for the same tallies: the draws are seeded.
    """
    low, high = np.quantile(resampled(tallies), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def resampled(tallies: Sequence[Tally]) -> NDArray[np.float64]:
    """Error rates of test sets drawn anew, shape (1000,).

    The draws depend on the number of tallies only, so those of two engines on one test set can be subtracted.
    """
    counts = np.array([(tally.errors, tally.reference) for tally in tallies], np.float64)
    rng = np.random.default_rng(SEED)
    drawn = (counts[rng.integers(len(counts), size=len(counts))].sum(axis=0) for _ in range(RESAMPLES))
    return np.array([errors / reference for errors, reference in drawn])
