"""Settling words: the reference's corrections, and silence cut out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harken.results import Segment, Word
from harken.transcribe.word_boundaries import MIN_WORD_S, SpeechInterval, refine_word_boundaries

USUAL_S = 0.3


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
    return [(word.start_s, word.end_s) for its in segments for word in its.words]


def settled(
    *segments: Segment, last_s: float = 0.0, speech: list[SpeechInterval] | None = None
) -> list[tuple[float, float]]:
    found, last = refine_word_boundaries(
        segments, median_duration_s=USUAL_S, last_speech_s=last_s, speech=speech
    )
    assert last == times(found)[-1][1]
    assert [len(its.words) for its in found] == [len(its.words) for its in segments]
    return times(found)


def test_words_that_fit_stay_as_they_are() -> None:
    assert settled(segment(1, 2, (1, 1.4), (1.4, 2))) == [(1, 1.4), (1.4, 2)]


def test_a_segment_begins_and_ends_with_its_words() -> None:
    (found,), last_s = refine_word_boundaries(
        [segment(0.8, 2.3, (1, 1.4), (1.4, 2))], median_duration_s=USUAL_S, last_speech_s=0.9, speech=None
    )
    assert (found.start_s, found.end_s, last_s) == (1, 2, 2)


def test_a_segment_without_words_stays() -> None:
    empty = segment(3, 4)
    assert refine_word_boundaries([empty], median_duration_s=USUAL_S, last_speech_s=2) == ([empty], 4)
    assert refine_word_boundaries([], median_duration_s=USUAL_S, last_speech_s=2) == ([], 2)


def test_the_first_word_after_a_pause_is_shortened() -> None:
    assert settled(segment(4.5, 6, (3, 5), (5, 5.5)), last_s=0.5) == [(4.4, 5), (5, 5.5)]


def test_the_first_word_right_behind_the_last_one_is_not() -> None:
    assert settled(segment(3, 6, (3, 4.1), (4.1, 4.5)), last_s=3) == [(3, 4.1), (4.1, 4.5)]


def test_two_words_after_a_pause_are_shortened() -> None:
    assert settled(segment(6, 7, (3, 5), (5, 7)), last_s=0.5) == [(5.8, 6.4), (6.4, 7)]


def test_the_segment_is_believed_where_its_first_word_is_much_longer() -> None:
    # 0.3 s before the end of the word, and that is before the segment begins.
    assert settled(segment(1.9, 3, (1, 2), (2, 3)), last_s=1) == [(1.7, 2), (2, 3)]
    assert settled(segment(1.6, 3, (1, 2), (2, 3)), last_s=1) == [(1.6, 2), (2, 3)]


def test_the_segment_is_believed_where_its_last_word_is_much_longer() -> None:
    (found,), last_s = refine_word_boundaries(
        [segment(1, 2.5, (1, 2), (2, 4))], median_duration_s=USUAL_S, last_speech_s=1
    )
    assert times([found]) == [(1, 2), (2, 2.5)]
    assert (found.end_s, last_s) == (2.5, 2.5)


def test_what_is_corrected_last_is_the_pause_for_the_next_segment() -> None:
    found = settled(segment(0, 1, (0, 1)), segment(5, 6, (1, 5.5), (5.5, 6)), last_s=0)
    assert found == [(0, 1), (4.9, 5.5), (5.5, 6)]


def test_no_word_begins_before_the_last_window_has_ended() -> None:
    assert settled(segment(1, 2, (1, 1.2), (1.2, 1.6), (1.6, 2)), last_s=1.3) == [
        (1.3, 1.3),
        (1.3, 1.6),
        (1.6, 2),
    ]


@pytest.mark.parametrize(
    ("word", "region"),
    [
        ((1.5, 3.1), (1.5, 2)),  # drawn out over the pause behind it
        ((1.9, 3.4), (3, 3.4)),  # begun in the pause before it
        ((2.1, 2.4), (1.98, 2)),  # heard where there is silence, nearer to what is before it
        ((2.6, 2.9), (3, 3.02)),  # and nearer to what is behind it
        ((1.2, 1.2), (1.2, 1.22)),  # no duration
    ],
)
def test_silence_is_cut_out(word: tuple[float, float], region: SpeechInterval) -> None:
    (found,) = settled(segment(1, 4, word), last_s=1, speech=[(1, 2), (3, 4)])
    assert found == region


def test_segments_follow_their_words() -> None:
    (found,), last_s = refine_word_boundaries(
        [segment(1, 4, (1, 1.5), (1.5, 2.4))], median_duration_s=0.7, last_speech_s=1, speech=[(1.2, 2)]
    )
    assert times([found]) == [(1.2, 1.5), (1.5, 2)]
    assert (found.start_s, found.end_s, last_s) == (1.2, 2, 2)


def test_words_without_duration_share_what_there_is() -> None:
    found = settled(segment(1, 2, (1, 1.98), (2, 2), (2, 2), (2, 2)), last_s=1, speech=[(1, 2)])
    assert found == [(1, 1.94), (1.94, 1.96), (1.96, 1.98), (1.98, 2)]


def test_more_words_than_speech() -> None:
    found = settled(segment(1, 2, *[(1, 1)] * 10), last_s=1, speech=[(1, 1.1)])
    assert found == [(round(1 + i / 100, 2), round(1.01 + i / 100, 2)) for i in range(10)]


def test_speech_far_away_moves_no_word() -> None:
    word = (5, 5.3)
    assert settled(segment(5, 6, word), last_s=4.9, speech=[(1, 2), (8, 9)]) == [word]


def test_speech_before_the_last_word_is_taken() -> None:
    found = settled(segment(1, 2, (1.1, 1.5)), last_s=1.4, speech=[(1, 1.45), (1.6, 2)])
    assert found == [(1.4, 1.45)]


def test_words_in_order_whatever_the_speech() -> None:
    found = settled(
        segment(0, 3, (0, 1.2), (1.2, 1.3), (1.3, 1.35), (1.35, 3)),
        segment(3, 6, (3, 3), (3, 5.5)),
        speech=[(0.2, 0.9), (1.4, 1.5), (2.9, 4)],
    )
    assert all(one[1] <= other[0] for one, other in pairwise(found))
    assert all(end - start >= MIN_WORD_S - 1e-9 for start, end in found)
