"""The last samples of a stream."""

from __future__ import annotations

import numpy as np

from harken.contract import Floats


class Tape:
    """Samples by their number in the stream; those that nobody needs any more are forgotten."""

    def __init__(self) -> None:
        self._samples = np.empty(0, np.float32)
        self._first = 0

    @property
    def end(self) -> int:
        """How many samples there have been."""
        return self._first + len(self._samples)

    def add(self, samples: Floats) -> None:
        self._samples = np.concatenate([self._samples, samples])

    def between(self, start: int, end: int) -> Floats:
        """Samples from one to the one before another; fewer where there are no more."""
        assert start >= self._first, "these samples have been forgotten"
        return self._samples[start - self._first : end - self._first]

    def forget(self, before: int) -> None:
        """Forget samples before one."""
        if before > self._first:
            self._samples = self._samples[before - self._first :].copy()
            self._first = before
