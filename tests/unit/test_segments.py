"""How the tokens of a window are cut into segments, against a transcription of the reference's loop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harken.transcribe.segments import TokenSegment, split_at_timestamps

BEGIN = 100
SIZE = 1500.0


def at(step: int) -> int:
    return BEGIN + step


# tokens, (start, end) of each segment and how many tokens it has, steps to the next window
CASES = {
    "nothing was said": ([], [(0, SIZE, 0)], SIZE),
    "text without timestamps": ([1, 2], [(0, SIZE, 2)], SIZE),
    "one timestamp that opens": ([at(0), 1], [(0, SIZE, 2)], SIZE),
    "a later one that opens": ([at(20), 1], [(0, 20, 2)], SIZE),
    "one segment": ([at(10), 1, at(50)], [(0, 50, 3)], SIZE),
    "two segments": ([at(0), 1, at(50), at(60), 2, at(90)], [(0, 50, 3), (60, 90, 3)], SIZE),
    "the second is unfinished": ([at(0), 1, at(50), at(60), 2], [(0, 50, 3)], 50),
    "ends with a pair": ([at(0), 1, at(50), at(50)], [(0, 50, 3)], 50),
    "two before an unfinished one": (
        [at(0), 1, at(9), at(9), 2, at(30), at(40), 3],
        [(0, 9, 3), (9, 30, 3)],
        30,
    ),
    "a pair at the very start": ([at(0), at(0)], [(0, 0, 1)], SIZE),
    "only a timestamp": ([at(7)], [(0, 7, 1)], SIZE),
    "three in a row": ([at(3), at(4), at(5)], [(3, 3, 1), (4, 4, 1)], 4),
}


@pytest.mark.parametrize(("tokens", "spans", "advance"), CASES.values(), ids=CASES.keys())
def test_table(tokens: list[int], spans: list[tuple[float, float, int]], advance: float) -> None:
    cuts, far = split_at_timestamps(tokens, BEGIN, SIZE)
    assert [(piece.start, piece.end, len(piece.tokens)) for piece in cuts] == spans
    assert far == advance


def reference(tokens: Sequence[int], size: float) -> tuple[list[tuple[float, float, list[int]]], float]:
    """What whisper/transcribe.py, `transcribe`, does between `timestamp_tokens` and the word timestamps."""
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
steps = st.integers(0, 1500)
anything = st.lists(st.integers(0, BEGIN + 1500) | steps.map(at), max_size=12)


@st.composite
def legal(draw: st.DrawFn) -> list[int]:
    """Draw what the rules of timestamps allow: pairs that never decrease, perhaps without the last of them."""
    times = sorted(draw(st.lists(steps, min_size=2, max_size=10)))
    times = times[: len(times) // 2 * 2]
    tokens: list[int] = []
    for start, end in zip(times[::2], times[1::2], strict=True):
        tokens += [at(start), *draw(text), at(end)]
    ending = draw(st.sampled_from(["closed", "pair", "unfinished", "open"]))
    tokens += {"pair": [tokens[-1]], "unfinished": [tokens[-1], 5]}.get(ending, [])
    return tokens[:-1] if ending == "open" else tokens


@given(tokens=anything | legal(), size=st.integers(1, 3000).map(lambda frames: frames / 2))
@example(tokens=[at(0), at(0)], size=0.5)
def test_cuts_are_those_of_the_reference(tokens: list[int], size: float) -> None:
    cuts, advance = split_at_timestamps(tokens, BEGIN, size)
    expected, seek = reference(tokens, size)
    assert cuts == [TokenSegment(start=start, end=end, tokens=tuple(its)) for start, end, its in expected]
    # Where the reference would stay on the spot for ever, the window counts as done.
    assert advance == (seek or size)
    assert advance > 0


@given(tokens=legal())
def test_legal_cuts_follow_one_another_and_lose_nothing_but_the_unfinished(tokens: list[int]) -> None:
    cuts, advance = split_at_timestamps(tokens, BEGIN, SIZE)
    times = [time for piece in cuts for time in (piece.start, piece.end)]
    assert times == sorted(times)
    kept = [token for piece in cuts for token in piece.tokens]
    assert kept == tokens[: len(kept)]
    assert advance == SIZE or (advance == cuts[-1].end and len(kept) < len(tokens))
