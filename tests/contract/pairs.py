"""A backend beside the reference backend: the same windows in both, sessions that are changed and compared together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harken.contract import Backend, Features, Floats, Logits, Session
from tiny_models import BACKENDS, DIMS, TOKENIZER

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])


@dataclass(frozen=True, slots=True)
class SessionPair:
    """A session of the backend under test and one of the reference backend, in step, with the lengths of their rows."""

    tested: Session
    reference: Session
    tolerance: float
    lengths: list[int]

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> Floats:
        """Extend both, compare, and return the log-probabilities, shape (P, n_vocab)."""
        expected = log_probabilities(self.reference.extend(tokens, last_n))
        actual = log_probabilities(self.tested.extend(tokens, last_n))
        assert actual.shape == expected.shape
        self.lengths[:] = [length + len(new) for length, new in zip(self.lengths, tokens, strict=True)]
        if len(expected):
            assert np.abs(actual - expected).max() <= self.tolerance * expected.std()
        return actual

    def attention(self, row: int) -> Floats:
        """Compare the cross-attention of a row and return it, shape (heads, tokens, positions)."""
        expected = self.reference.attention(row)
        actual = self.tested.attention(row)
        assert actual.shape == expected.shape
        assert actual.dtype == np.float32
        assert np.abs(actual - expected).max() <= self.tolerance * expected.max()
        return actual

    def rewind(self, lengths: Sequence[int]) -> None:
        self.tested.rewind(lengths)
        self.reference.rewind(lengths)
        self.lengths[:] = map(min, self.lengths, lengths)

    def reorder(self, rows: Sequence[int]) -> None:
        self.tested.reorder(rows)
        self.reference.reorder(rows)
        self.lengths[:] = [self.lengths[row] for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPair:
    """A backend under test and the reference backend, with some windows encoded by each."""

    name: str
    tested: Backend
    reference: Backend
    features: Features
    reference_features: Features
    tolerance: float

    def encode(self, mel: Floats, *, padded: bool = False) -> BackendPair:
        """Return both backends with other windows."""
        tested, reference = (backend.encode(mel, padded=padded) for backend in (self.tested, self.reference))
        return replace(self, features=tested, reference_features=reference)

    def compare_output(self) -> None:
        """Compare the encoder's output of all windows."""
        own = self.tested.encoder_output(self.features)
        reference = self.reference.encoder_output(self.reference_features)
        assert (own.shape, own.dtype) == (reference.shape, np.float32)
        assert self.features.n_windows == self.reference_features.n_windows == len(own)
        tolerance = BACKENDS[self.name].encoder or self.tolerance
        for output, expected in zip(own, reference, strict=True):
            expected = expected[~np.isnan(expected).any(axis=1)]  # behind the end of a shorter window it is NaN
            assert np.abs(output[: len(expected)] - expected).max() <= tolerance * expected.std()

    def open_session(
        self, row_windows: Sequence[int], capacity: int = DIMS.n_text_ctx, *, attention: bool = False
    ) -> SessionPair:
        return SessionPair(
            self.tested.open_session(self.features, row_windows, capacity, attention=attention),
            self.reference.open_session(self.reference_features, row_windows, capacity, attention=attention),
            self.tolerance,
            [0] * len(row_windows),
        )


def log_probabilities(logits: Logits) -> Floats:
    """Read all log-probabilities through the contract alone, shape (P, n_vocab)."""
    table = np.empty((len(logits), DIMS.n_vocab), np.float32)
    if len(logits):
        ids, values = logits.top(DIMS.n_vocab)
        np.put_along_axis(table, ids, values, axis=1)
    return table


def decode(backend: Backend, features: Features, row_windows: Sequence[int] = (0,), last_n: int = 1) -> Floats:
    """Return the log-probabilities after `PROMPT` in a new session with a row for each of the given windows."""
    session = backend.open_session(features, row_windows, DIMS.n_text_ctx)
    return log_probabilities(session.extend([PROMPT] * len(row_windows), last_n))
