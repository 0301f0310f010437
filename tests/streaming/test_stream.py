"""The sample buffer of a stream."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.streaming.stream import SampleBuffer


@given(
    lengths=st.lists(st.integers(0, 50), max_size=12),
    reads=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), min_size=12, max_size=12),
)
def test_samples_are_addressed_by_their_number_in_the_stream(
    lengths: list[int], reads: list[tuple[int, int]]
) -> None:
    samples = np.arange(sum(lengths), dtype=np.float32)
    buffer, discarded = SampleBuffer(), 0
    for (first, length), block in zip(reads, np.split(samples, np.cumsum(lengths)), strict=False):
        buffer.add(block)
        assert buffer.end == (block[-1] + 1 if len(block) else buffer.end)
        start = discarded + first % (buffer.end - discarded + 1)
        np.testing.assert_array_equal(
            buffer.between(start, start + length), samples[: buffer.end][start : start + length]
        )
        buffer.discard_before(start)
        buffer.discard_before(discarded)
        discarded = start
        np.testing.assert_array_equal(buffer.between(start, buffer.end), samples[start : buffer.end])


def test_discarded_samples_are_freed() -> None:
    buffer = SampleBuffer()
    for _ in range(100):
        buffer.add(np.zeros(1000, np.float32))
        buffer.discard_before(buffer.end - 10)
    assert buffer.end == 100_000
    rest = buffer.between(buffer.end - 10, buffer.end)
    assert rest.base is not None
    assert len(rest.base) == 10, "a view would keep all samples"
    with pytest.raises(AssertionError, match="discarded"):
        buffer.between(buffer.end - 11, buffer.end)
