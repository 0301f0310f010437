"""The last samples of a stream."""

from __future__ import annotations

import numpy as np

from harken.contract import Floats


class SampleBuffer:
    """Samples by their number in the stream; those that nobody needs any more are forgotten."""

    def __init__(self) -> None:
        self._samples = np.empty(0, np.float32)
        self._start = 0

    @property
    def end(self) -> int:
        """How many samples there have been."""
        return self._start + len(self._samples)

    def add(self, samples: Floats) -> None:
        self._samples = np.concatenate([self._samples, samples])

    def between(self, start: int, end: int) -> Floats:
        """Samples from one to the one before another; fewer where there are no more."""
        assert start >= self._start, "these samples have been forgotten"
        return self._samples[start - self._start : end - self._start]

    def discard_before(self, sample: int) -> None:
        """Forget samples before one."""
        if sample > self._start:
            self._samples = self._samples[sample - self._start :].copy()
            self._start = sample
