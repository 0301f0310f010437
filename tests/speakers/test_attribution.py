"""Tests of the attribution of words and segments to speakers."""

from __future__ import annotations

import pytest

from harken.results import Segment, SpeakerTurn, Word
from harken.speakers.attribution import SpeakerAttribution


def turn(start_s, end_s, speaker):
    return SpeakerTurn(start_s=start_s, end_s=end_s, speaker=speaker)


def segment(*words, index=0):
    """Return a segment of words, each of its start, its end and its text."""
    return Segment(
        index=index,
        start_s=words[0][0],
        end_s=words[-1][1],
        text="".join(text for *_, text in words),
        tokens=(1, 2, 3),
        temperature=0.0,
        avg_logprob=-0.1,
        compression_ratio=1.0,
        no_speech_prob=0.0,
        seek_s=0.0,
        words=tuple(Word(start_s=a, end_s=b, text=text, probability=1.0) for a, b, text in words),
    )


def attributed(turns, *segments):
    attribution = SpeakerAttribution(turns, encode=lambda text: [len(text)])
    return attribution.segments(segments)


def said(segments):
    return [(each.speakers, each.text) for each in segments]


TWO_TURNS = [turn(0, 2, "A"), turn(2, 4, "B")]
APART = [turn(0, 1, "A"), turn(5, 6, "B")]
LONG_AMONG_SHORT = [turn(0, 100, "A"), *(turn(second, second + 0.2, "B") for second in range(40))]


def test_segment_of_one_speaker_stays_whole():
    before = segment((0.1, 0.5, " Yes"), (0.6, 1.5, " indeed."))
    (after,) = attributed(TWO_TURNS, before)
    assert said([after]) == [(("A",), " Yes indeed.")]
    assert after.tokens == before.tokens


def test_segment_is_cut_where_the_speaker_changes_and_segments_are_numbered_anew():
    first = segment((0.0, 1.0, " Are you?"), (2.1, 2.5, " Yes."), (2.6, 3.0, " And you?"))
    second = segment((3.1, 3.4, " Hm."), index=1)
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
    parts = attributed(turns, segment((2.2, 2.6, " I"), (2.7, 3.0, " think"), (3.2, 4.0, " so.")))
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
    assert said(attributed(turns, segment(*words))) == [expected]


def test_segment_without_words_has_who_speaks_most_and_half_of_it():
    (part,) = attributed([turn(0, 4, "A"), turn(1, 4, "B"), turn(3, 4, "C")], wordless(0.0, 4.0))
    assert part.speakers == ("A", "B")


def wordless(start_s, end_s):
    base = segment((start_s, end_s, " text"))
    return Segment(**{name: getattr(base, name) for name in base.__slots__ if name != "words"})
