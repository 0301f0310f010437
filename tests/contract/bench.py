"""A backend beside the reference: the same windows in both, sessions that are changed and compared together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Backend, Features, Floats, Logits, Session
from tiny_models import DIMS


@dataclass(frozen=True, slots=True)
class Pair:
    """A session of the backend under test and one of the reference, in step."""

    session: Session
    expected: Session
    tolerance: float

    @property
    def lengths(self) -> tuple[int, ...]:
        assert self.session.lengths == self.expected.lengths
        return self.session.lengths

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> Floats:
        """Extend both, compare, and return the log-probabilities, shape (P, n_vocab)."""
        expected = log_probabilities(self.expected.extend(tokens, last_n))
        actual = log_probabilities(self.session.extend(tokens, last_n))
        assert actual.shape == expected.shape
        if len(expected):
            assert np.abs(actual - expected).max() <= self.tolerance * expected.std()
        return actual

    def attention(self, row: int) -> Floats:
        """Ask both what a row has listened to, compare, and return it, shape (heads, tokens, positions)."""
        expected = self.expected.attention(row)
        actual = self.session.attention(row)
        assert actual.shape == expected.shape
        assert actual.dtype == np.float32
        assert np.abs(actual - expected).max() <= self.tolerance * expected.max()
        return actual

    def rewind(self, lengths: Sequence[int]) -> None:
        self.session.rewind(lengths)
        self.expected.rewind(lengths)

    def reorder(self, rows: Sequence[int]) -> None:
        self.session.reorder(rows)
        self.expected.reorder(rows)


@dataclass(frozen=True, slots=True)
class Bench:
    """A backend under test, with some windows encoded by it and by the reference."""

    name: str
    backend: Backend
    reference_backend: Backend
    features: Features
    expected: Features
    tolerance: float

    def open(self, rows: Sequence[int], capacity: int = DIMS.n_text_ctx, *, attention: bool = False) -> Pair:
        return Pair(
            self.backend.open_session(self.features, rows, capacity, attention=attention),
            self.reference_backend.open_session(self.expected, rows, capacity, attention=attention),
            self.tolerance,
        )


def log_probabilities(logits: Logits) -> Floats:
    """Read all log-probabilities through the contract alone, shape (P, n_vocab)."""
    table = np.empty((len(logits), DIMS.n_vocab), np.float32)
    if len(logits):
        ids, values = logits.top(DIMS.n_vocab)
        np.put_along_axis(table, ids, values, axis=1)
    return table
