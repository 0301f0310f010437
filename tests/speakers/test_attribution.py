"""Tests of the attribution of words and segments to speakers."""

from __future__ import annotations

import pytest

from harken.results import SpeakerTurn
from harken.speakers.attribution import SpeakerAttribution
from transcripts import segment, spoken


def turn(start_s, end_s, speaker):
    return SpeakerTurn(start_s=start_s, end_s=end_s, speaker=speaker)


def attributed(turns, *segments):
    attribution = SpeakerAttribution(turns, encode=lambda text: [len(text)])
    return attribution.segments(segments)


def said(segments):
    return [(each.speakers, each.text) for each in segments]


TWO_TURNS = [turn(0, 2, "A"), turn(2, 4, "B")]
APART = [turn(0, 1, "A"), turn(5, 6, "B")]
LONG_AMONG_SHORT = [turn(0, 100, "A"), *(turn(second, second + 0.2, "B") for second in range(40))]


def test_segment_of_one_speaker_stays_whole():
    before = spoken((0.1, 0.5, " Yes"), (0.6, 1.5, " indeed."), tokens=(1, 2, 3))
    (after,) = attributed(TWO_TURNS, before)
    assert said([after]) == [(("A",), " Yes indeed.")]
    assert after.tokens == before.tokens


def test_segment_is_cut_where_the_speaker_changes_and_segments_are_numbered_anew():
    first = spoken((0.0, 1.0, " Are you?"), (2.1, 2.5, " Yes."), (2.6, 3.0, " And you?"))
    second = spoken((3.1, 3.4, " Hm."), index=1)
    parts = attributed(TWO_TURNS, first, second)
    assert said(parts) == [(("A",), " Are you?"), (("B",), " Yes. And you?"), (("B",), " Hm.")]
    assert [(part.index, part.start_s, part.end_s) for part in parts] == [
        (0, 0.0, 1.0),
        (1, 2.1, 3.0),
        (2, 3.1, 3.4),
    ]
    assert parts[0].tokens == (len(" Are you?"),)


def test_word_that_two_say_names_both_and_goes_with_its_segment():
    turns = [turn(0, 3, "A"), turn(2, 6, "B")]
    parts = attributed(turns, spoken((2.2, 2.6, " I"), (2.7, 3.0, " think"), (3.2, 4.0, " so.")))
    assert said(parts) == [(("B", "A"), " I think so.")]
    assert [word.speakers for word in parts[0].words] == [("B", "A"), ("B", "A"), ("B",)]


@pytest.mark.parametrize(
    ("turns", "words", "expected"),
    [
        (TWO_TURNS, [(1.8, 2.6, " maybe")], (("B",), " maybe")),  # who says more of it
        (APART, [(4.2, 4.6, " near")], (("B",), " near")),  # the nearest turn
        (APART, [(0.5, 0.9, " said"), (60.0, 60.5, " far")], (("A",), " said far")),  # who spoke before
        (APART, [(60.0, 60.5, " nobody")], ((), " nobody")),
        (LONG_AMONG_SHORT, [(50.0, 50.5, " here")], (("A",), " here")),
        ([], [(0.0, 1.0, " alone")], ((), " alone")),
    ],
)
def test_word_across_or_outside_of_turns(turns, words, expected):
    assert said(attributed(turns, spoken(*words))) == [expected]


def test_segment_without_words_has_who_speaks_most_and_half_of_it():
    (part,) = attributed([turn(0, 4, "A"), turn(1, 4, "B"), turn(3, 4, "C")], segment(0.0, 4.0, " text"))
    assert part.speakers == ("A", "B")
