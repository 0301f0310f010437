"""Drafts: guesses at the next tokens, made by something cheap and verified by the model in one forward pass.

Whoever can make such guesses is a `Draft`. What it proposes changes how fast a text is decoded, never the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRequest:
    """One row that may be drafted.

    Parameters
    ----------
    row : int
        Which row; it keeps its number for as long as the draft lives.
    prefix : sequence of int
        Tokens sampled in it so far, behind the prompt.
    limit : int
        Most tokens to propose; 0 for a row that is only to be kept in mind.
    trust : float
        How much more often than a draft thinks its tokens are accepted in this row, as measured.
    floor : float
        A token is not worth a further step of the draft if the chance that all before it are accepted is lower than
        this.
    least : float
        A token that has been thought of is not worth verifying if the chance that it and all before it are accepted is
        lower than this.
    """

    row: int
    prefix: Sequence[int]
    max_tokens: int
    calibration: float = 1.0
    draft_threshold: float = 0.0
    verify_threshold: float = 0.0

    def acceptance_prob(self, confidence: float) -> float:
        """Chance that a token is accepted if its draft claims this one."""
        return min(confidence * self.calibration, 0.99)


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """Tokens that may come next.

    Parameters
    ----------
    tokens : tuple of int
    claimed : tuple of float
        With which probability, by the draft's own account, each is right if those before it are.
    """

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()


class CandidateGenerator(Protocol):
    """Guesses for the rows of one decode."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        """Guess what follows, one proposal for each row asked for, maybe an empty one.

        Rows that were asked for before and are missing now have ended.
        """
        ...

    @property
    def forwards(self) -> int:
        """Forward passes that guessing has taken so far."""
        ...


def common_prefix_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
