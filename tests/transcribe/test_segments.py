"""Segments of the tokens of a window, against a copy of the reference's loop."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from harken.transcribe.segments import TokenSegment, split_at_timestamps

BEGIN = 100
POSITIONS = 1500.0


def at(position: int) -> int:
    return BEGIN + position


# tokens, (start, end, number of tokens) of each segment, positions to the next window
def reference(tokens: Sequence[int], size: float) -> tuple[list[tuple[float, float, list[int]]], float]:
    """Return segments and seek as whisper/transcribe.py does, from `timestamp_tokens` to the word timestamps."""
    segments: list[tuple[float, float, list[int]]] = []
    is_timestamp = [token >= BEGIN for token in tokens]
    single_timestamp_ending = is_timestamp[-2:] == [False, True]
    consecutive = [i + 1 for i in range(len(tokens) - 1) if is_timestamp[i] and is_timestamp[i + 1]]
    if len(consecutive) > 0:
        slices = list(consecutive)
        if single_timestamp_ending:
            slices.append(len(tokens))
        last_slice = 0
        for current_slice in slices:
            sliced = list(tokens[last_slice:current_slice])
            segments.append((sliced[0] - BEGIN, sliced[-1] - BEGIN, sliced))
            last_slice = current_slice
        seek = size if single_timestamp_ending else tokens[last_slice - 1] - BEGIN
    else:
        duration = size
        timestamps = [token for token in tokens if token >= BEGIN]
        if len(timestamps) > 0 and timestamps[-1] != BEGIN:
            duration = timestamps[-1] - BEGIN
        segments.append((0, duration, list(tokens)))
        seek = size
    return segments, seek


text = st.lists(st.integers(0, BEGIN - 1), min_size=1, max_size=4)
positions = st.integers(0, 1500)
any_tokens = st.lists(st.integers(0, BEGIN + 1500) | positions.map(at), max_size=12)


@st.composite
def legal(draw: st.DrawFn) -> list[int]:
    """Draw tokens that the timestamp rules allow: pairs that never decrease, the last of them perhaps unfinished."""
    times = sorted(draw(st.lists(positions, min_size=2, max_size=10)))
    times = times[: len(times) // 2 * 2]
    tokens: list[int] = []
    for start, end in zip(times[::2], times[1::2], strict=True):
        tokens += [at(start), *draw(text), at(end)]
    ending = draw(st.sampled_from(["closed", "pair", "unfinished", "open"]))
    tokens += {"pair": [tokens[-1]], "unfinished": [tokens[-1], 5]}.get(ending, [])
    return tokens[:-1] if ending == "open" else tokens


@given(tokens=any_tokens | legal(), size=st.integers(1, 3000).map(lambda frames: frames / 2))
@example(tokens=[at(0), at(0)], size=0.5)
def test_segments_are_those_of_the_reference(tokens: list[int], size: float) -> None:
    segments, advance = split_at_timestamps(tokens, BEGIN, size)
    expected, seek = reference(tokens, size)
    assert segments == [
        TokenSegment(start=start, end=end, tokens=tuple(segment_tokens))
        for start, end, segment_tokens in expected
    ]
    # Where the reference would decode the same window for ever, this one is done.
    assert advance == (seek or size)
    assert advance > 0
