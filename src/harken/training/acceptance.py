"""Acceptance of an assistant: the share of tokens that it predicts in held-out texts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAFT_LENGTH = 4
"""Draft length for which `Acceptance.tokens_per_forward` holds."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over some texts; add them up with ``+``.

    Parameters
    ----------
    positions : int
        Tokens to predict.
    correct : int
        Tokens that the assistant ranks first, given the correct tokens before them.
    forward_passes : int
        Forward passes of the main model for these texts, with drafts of `DRAFT_LENGTH` tokens.
    total_loss : float
        Cross-entropy, summed over positions.
    """

    positions: int = 0
    correct: int = 0
    forward_passes: int = 0
    total_loss: float = 0.0

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.positions + other.positions,
            self.correct + other.correct,
            self.forward_passes + other.forward_passes,
            self.total_loss + other.total_loss,
        )

    @property
    def acceptance_rate(self) -> float:
        """Share of tokens predicted correctly."""
        return self.correct / max(1, self.positions)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that each forward pass of the main model yields; 1 without a draft."""
        return self.positions / max(1, self.forward_passes)

    @property
    def ranking_key(self) -> tuple[float, float]:
        """Key by which measurements compare: the acceptance rate, then the lower loss."""
        return self.acceptance_rate, -self.mean_loss

    @property
    def mean_loss(self) -> float:
        """Cross-entropy per position."""
        return self.total_loss / max(1, self.positions)


def count_acceptance(correct: NDArray[np.bool_], total_loss: float) -> Acceptance:
    """Count one text from the correctness of each of its tokens."""
    return Acceptance(len(correct), int(correct.sum()), count_forward_passes(correct), total_loss)


def count_forward_passes(correct: NDArray[np.bool_], draft_length: int = DRAFT_LENGTH) -> int:
    """Return the number of forward passes that verify a text: each accepts up to `draft_length` tokens and adds one.

    After an accepted draft the main model continues with its own text, so predicting a text from its own past gives the
    exact number.
    """
    position, passes = 0, 0
    while position < len(correct):
        mismatches = np.flatnonzero(~correct[position : position + draft_length])
        position += (int(mismatches[0]) if len(mismatches) else draft_length) + 1
        passes += 1
    return passes
