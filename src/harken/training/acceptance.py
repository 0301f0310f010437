"""How many of its tokens an assistant has accepted, by what it foretells about texts it has not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAFT_LENGTH = 4
"""Tokens of a draft, for which `Acceptance.tokens_per_forward` is told."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts over some texts; add them up with ``+``.

    Parameters
    ----------
    positions : int
        Tokens that were to be foretold.
    right : int
        Those of them that the assistant thinks best, of all before them being right.
    forwards : int
        Forward passes of the main model for these texts, with drafts of `DRAFT` tokens.
    loss : float
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
        """Share of tokens that are foretold."""
        return self.correct / max(1, self.positions)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens that a forward pass of the main model yields; 1 is a decode without a draft."""
        return self.positions / max(1, self.forward_passes)

    @property
    def ranking_key(self) -> tuple[float, float]:
        """By which one is better than another: what it foretells, then how sure it is."""
        return self.acceptance_rate, -self.mean_loss

    @property
    def mean_loss(self) -> float:
        """Cross-entropy a position."""
        return self.total_loss / max(1, self.positions)


def count_acceptance(correct: NDArray[np.bool_], total_loss: float) -> Acceptance:
    """Count one text, of which the tokens are given that are foretold rightly."""
    return Acceptance(len(correct), int(correct.sum()), count_forward_passes(correct), total_loss)


def count_forward_passes(correct: NDArray[np.bool_], draft_length: int = DRAFT_LENGTH) -> int:
    """How many times a text is verified: each time as many tokens as are right, but `draft`, and one more.

    What follows an accepted draft is what the main model would have said, so that a text foretold from its own past
    tells this exactly.
    """
    position, passes = 0, 0
    while position < len(correct):
        mismatches = np.flatnonzero(~correct[position : position + draft_length])
        position += (int(mismatches[0]) if len(mismatches) else draft_length) + 1
        passes += 1
    return passes
