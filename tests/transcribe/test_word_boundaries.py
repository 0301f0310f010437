"""Refinement of word boundaries: the reference's corrections, and silence cut out of words."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.results import Segment, Word
from harken.transcribe.word_boundaries import (
    MIN_WORD_S,
    SEGMENT_TOLERANCE_S,
    SpeechInterval,
    refine_word_boundaries,
)

MEDIAN_S = 0.3
POSITION_S = 0.02


def segment(start_s: float, end_s: float, *words: tuple[float, float]) -> Segment:
    return Segment(
        index=0,
        start_s=start_s,
        end_s=end_s,
        text="",
        tokens=(),
        temperature=0,
        avg_logprob=0,
        compression_ratio=1,
        no_speech_prob=0,
        seek_s=0,
        words=tuple(Word(start_s=a, end_s=b, text=f" {i}", probability=0.5) for i, (a, b) in enumerate(words)),
    )


def times(segments: list[Segment]) -> list[tuple[float, float]]:
    return [(word.start_s, word.end_s) for segment in segments for word in segment.words]


def refined_times(
    *segments: Segment, last_s: float = 0.0, speech: list[SpeechInterval] | None = None
) -> list[tuple[float, float]]:
    refined, last = refine_word_boundaries(
        segments, median_duration_s=MEDIAN_S, last_speech_s=last_s, speech=speech
    )
    assert last == times(refined)[-1][1]
    assert [len(segment.words) for segment in refined] == [len(segment.words) for segment in segments]
    return times(refined)


@pytest.mark.parametrize(
    ("bounds", "words", "last_s", "refined"),
    [
        # A first word, or two words, that are long after a pause.
        ((4.5, 6), [(3, 5), (5, 5.5)], 0.5, [(4.4, 5), (5, 5.5)]),
        ((6, 7), [(3, 5), (5, 7)], 0.5, [(5.8, 6.4), (6.4, 7)]),
        # A first word that starts much earlier than its segment. In the first case the median duration, 0.3 s,
        # before the end of the word is before the start of the segment.
        ((1.9, 3), [(1, 2), (2, 3)], 1, [(1.7, 2), (2, 3)]),
        ((1.6, 3), [(1, 2), (2, 3)], 1, [(1.6, 2), (2, 3)]),
        # No word begins before the end of the last window.
        ((1, 2), [(1, 1.2), (1.2, 1.6), (1.6, 2)], 1.3, [(1.3, 1.3), (1.3, 1.6), (1.6, 2)]),
        ((1, 2), [(1, 1.4), (1.4, 2)], 0, [(1, 1.4), (1.4, 2)]),
    ],
)
def test_words_are_corrected_as_in_the_reference(
    bounds: SpeechInterval, words: list[SpeechInterval], last_s: float, refined: list[SpeechInterval]
) -> None:
    assert refined_times(segment(*bounds, *words), last_s=last_s) == refined


def test_last_word_ends_with_its_segment_when_it_ends_much_later() -> None:
    (refined,), last_s = refine_word_boundaries(
        [segment(1, 2.5, (1, 2), (2, 4))], median_duration_s=MEDIAN_S, last_speech_s=1
    )
    assert times([refined]) == [(1, 2), (2, 2.5)]
    assert (refined.end_s, last_s) == (2.5, 2.5)


@pytest.mark.parametrize(
    ("word", "region"),
    [
        ((1.5, 3.1), (1.5, 2)),  # stretched over the pause behind it
        ((1.9, 3.4), (3, 3.4)),  # begun in the pause before it
        ((2.1, 2.4), (1.98, 2)),  # in silence, nearer to the speech before it
        ((2.6, 2.9), (3, 3.02)),  # in silence, nearer to the speech behind it
        ((1.2, 1.2), (1.2, 1.22)),  # no duration
    ],
)
def test_silence_is_cut_out_of_words(word: tuple[float, float], region: SpeechInterval) -> None:
    (word_times,) = refined_times(segment(1, 4, word), last_s=1, speech=[(1, 2), (3, 4)])
    assert word_times == region


def test_words_without_duration_share_the_speech_region() -> None:
    refined = refined_times(segment(1, 2, (1, 1.98), (2, 2), (2, 2), (2, 2)), last_s=1, speech=[(1, 2)])
    assert refined == [(1, 1.94), (1.94, 1.96), (1.96, 1.98), (1.98, 2)]


def test_speech_before_the_end_of_the_last_window_is_not_used() -> None:
    refined = refined_times(segment(1, 2, (1.1, 1.5)), last_s=1.4, speech=[(1, 1.45), (1.6, 2)])
    assert refined == [(1.4, 1.45)]


@st.composite
def rising_s(draw: st.DrawFn, count: int) -> list[float]:
    return [
        position * POSITION_S
        for position in sorted(draw(st.lists(st.integers(0, 800), min_size=count, max_size=count)))
    ]


@st.composite
def windows(draw: st.DrawFn) -> list[Segment]:
    counts = draw(st.lists(st.integers(0, 6), max_size=4))
    times = draw(rising_s(2 * sum(counts)))
    ends = iter(draw(rising_s(2 * len(counts))))
    words = zip(times[::2], times[1::2], strict=True)
    return [segment(next(ends), next(ends), *(next(words) for _ in range(count))) for count in counts]


@st.composite
def regions(draw: st.DrawFn) -> list[tuple[float, float]]:
    times = sorted(set(draw(rising_s(2 * draw(st.integers(0, 5))))))
    return list(zip(times[::2], times[1::2], strict=False))


@given(windows(), regions(), st.integers(0, 60), st.integers(0, 100))
def test_refined_words_are_in_order_and_in_speech(segments, speech, median_positions, last) -> None:
    last_s = round(last * POSITION_S, 2)
    refined, end_s = refine_word_boundaries(
        segments, median_duration_s=median_positions * POSITION_S, last_speech_s=last_s, speech=speech
    )
    assert [[word.text for word in segment.words] for segment in refined] == [
        [word.text for word in segment.words] for segment in segments
    ]
    words = [word for segment in refined for word in segment.words]
    assert all(word.end_s <= following.start_s for word, following in pairwise(words))
    assert all(word.start_s >= last_s for word in words)
    assert end_s == (words[-1].end_s if words else segments[-1].end_s if segments else last_s)
    for segment in refined:
        if segment.words:
            assert (segment.start_s, segment.end_s) == (segment.words[0].start_s, segment.words[-1].end_s)
    original = [word for segment in segments for word in segment.words]
    near = [
        (max(start, last_s), end)
        for start, end in speech
        if original
        and end > max(last_s, original[0].start_s - SEGMENT_TOLERANCE_S)
        and start < original[-1].end_s + SEGMENT_TOLERANCE_S
    ]
    for word in words if near else []:
        assert any(start - 1e-3 <= word.start_s and word.end_s <= end + 1e-3 for start, end in near)


@given(windows(), st.integers(1, 60))
def test_refined_words_in_long_speech_have_the_shortest_duration(segments, median_positions) -> None:
    refined, _ = refine_word_boundaries(
        segments, median_duration_s=median_positions * POSITION_S, last_speech_s=0, speech=[(0, 100)]
    )
    words = [word for segment in refined for word in segment.words]
    assert all(word.end_s - word.start_s >= MIN_WORD_S - 1e-3 for word in words)
