"""Tests of harken.evaluation.latency and simulation: display and commit times of words, and simulated real time."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")

from fakes.live_sessions import ScriptedLiveSession, final_segment, interim_text, speech_ended, speech_started
from harken.evaluation.error_rate import count_word_errors
from harken.evaluation.latency import (
    Display,
    Percentiles,
    StreamTime,
    matching_positions,
    measure_latencies,
    simulate_real_time,
    unit_splitter,
)
from harken.results import Word

split_units = unit_splitter("en")
SLOW_S = 0.25
"""Computing time that `emitted_at` adds to the audio."""


def emitted_at(at_s):
    return StreamTime(computation_unaware_s=at_s, computation_aware_s=at_s + SLOW_S)


def display(*events):
    """Apply some events, each emitted `SLOW_S` after its audio."""
    screen = Display(split_units)
    for event in events:
        screen.update(event, emitted_at(event.emitted_samples / 16000))
    return screen


def test_text_is_split_into_normalized_words_and_that_without_spaces_into_letters():
    for text, expected in {
        " Hello,  World!": ["hello", "world"],
        "I'm": ["i", "am"],
        "Mr. Hale": ["mister", "hale"],
        "um, well": ["well"],
        "twenty three": ["20", "3"],
        "": [],
    }.items():
        assert split_units(text) == expected
    assert unit_splitter("zh")("你好。") == ["你", "好"]


words = st.lists(st.sampled_from("abc"), max_size=7)


@given(words, words)
def test_matching_positions_are_of_equal_words_and_leave_the_fewest_edits(before, after):
    pairs = [*matching_positions(before, after)]
    assert all(before[i] == after[j] for i, j in pairs)
    edges = pairwise([(-1, -1), *pairs, (len(before), len(after))])
    gaps = [(i - last_i - 1, j - last_j - 1) for (last_i, last_j), (i, j) in edges]
    assert all(min(gap) >= 0 for gap in gaps)
    assert sum(map(max, gaps)) == count_word_errors(" ".join(before), " ".join(after)).errors


DISPLAYS = {
    "words have their first display and commit": (
        (
            *(speech_started(0), interim_text(1, "", " One"), interim_text(2, " One", " dog")),
            *(interim_text(3, " One dog", " barks"), final_segment(4, " One dog barks."), speech_ended(4)),
        ),
        [("one", 1, 2), ("dog", 2, 3), ("barks", 3, 4)],
        (0, 0, 0),
    ),
    "a word first seen in a segment counts from the segment": (
        (interim_text(1, " One"), final_segment(2, " One dog.")),
        [("one", 1, 1), ("dog", 2, 2)],
        (0, 0, 0),
    ),
    "a word that disappeared counts from its return": (
        (
            *(interim_text(1, "", " dog"), interim_text(2, "", " fog"), interim_text(3, "", " dog")),
            *(interim_text(4, " dog"), final_segment(5, " dog")),
        ),
        [("dog", 3, 4)],
        (2, 0, 0),
    ),
    "a word that moves does not flicker": (
        (
            *(interim_text(1, "", " dog barks"), interim_text(2, "", " A dog barks")),
            final_segment(3, " A dog barks"),
        ),
        [("a", 2, 3), ("dog", 1, 3), ("barks", 1, 3)],
        (0, 0, 0),
    ),
    "a committed word that segments replace is revised": (
        (interim_text(1, " One fog barks", " loud"), final_segment(2, " One dog barks"), speech_ended(2)),
        [("one", 1, 1), ("dog", 2, 2), ("barks", 1, 1)],
        (0, 1, 0),
    ),
    "case and punctuation do not count as revisions": (
        (interim_text(1, " one dog"), final_segment(2, " One, dog!")),
        [("one", 1, 1), ("dog", 1, 1)],
        (0, 0, 0),
    ),
    "changed committed text is a retraction": (
        (interim_text(1, " One"), interim_text(2, " One dog"), interim_text(3, " One fog")),
        [],
        (1, 2, 1),
    ),
    "a new utterance is no retraction, and without a segment its committed word is revised": (
        (
            *(interim_text(1, " One"), final_segment(2, " One."), speech_ended(2)),
            *(speech_started(3), interim_text(4, " Two"), speech_ended(5)),
        ),
        [("one", 1, 1)],
        (0, 1, 0),
    ),
    "words behind the limit of an utterance are displayed again, and count from their first display": (
        (
            *(speech_started(0), interim_text(1, "A dog", " barks"), interim_text(2, "A dog barks", " loud")),
            *(final_segment(3, " A dog"), speech_ended(3, "limit"), speech_started(3)),
            *(interim_text(4, "barks loudly", " and"), final_segment(5, " barks loudly and"), speech_ended(5)),
        ),
        [("a", 1, 1), ("dog", 1, 1), ("barks", 1, 2), ("loudly", 4, 4), ("and", 4, 5)],
        (1, 0, 0),
    ),
    "segments after the end of the utterance match its words": (
        (
            *(interim_text(1, " A"), speech_ended(2), speech_started(2), interim_text(3, " dog")),
            *(final_segment(4, " A"), speech_ended(5), final_segment(6, " dog")),
        ),
        [("a", 1, 1), ("dog", 3, 3)],
        (0, 0, 0),
    ),
}
"""Events; words with the times of their display and commit, without computing time; flickered, revised, retracted."""


@pytest.mark.parametrize("case", DISPLAYS)
def test_words_have_their_first_display_and_commit_and_changes_of_them_are_counted(case):
    events, expected, counts = DISPLAYS[case]
    screen = display(*events)
    assert [
        (word.text, word.displayed_at.computation_unaware_s, word.committed_at.computation_unaware_s)
        for word in screen.words()
        if word.committed_at
    ] == expected
    assert (screen.flickered, screen.revised(), screen.retractions) == counts


def word(text, end_s):
    return Word(start_s=0.0, end_s=end_s, text=text, probability=1.0)


def test_latencies_count_from_the_end_of_the_word():
    events = (interim_text(1, "", " One"), interim_text(2, " One"))
    assert display(*events).words() == []  # only segments give words
    displayed = display(*events, final_segment(3, " One")).words()
    (timed,) = measure_latencies(displayed, [word("one", 0.5)], split_units).words
    assert (timed.text, timed.end_s) == ("one", 0.5)
    assert timed.interim_latency == StreamTime(computation_unaware_s=0.5, computation_aware_s=0.5 + SLOW_S)
    assert timed.commit_latency == StreamTime(computation_unaware_s=1.5, computation_aware_s=1.5 + SLOW_S)


def test_percentiles_of_values():
    assert Percentiles.of([]) is None
    assert Percentiles.of(range(101)) == Percentiles(p50=50, p95=95, max=100)


def test_stream_is_fed_in_blocks_and_closed():
    session = ScriptedLiveSession([speech_started(0.05), speech_ended(0.25)])
    calls = [*simulate_real_time(session, np.zeros(2500, np.float32), 1000)]
    assert session.blocks == [1000, 1000, 500]
    assert [call.position_samples for call in calls] == [1000, 2000, 2500, 2500]
    assert [len(call.events) for call in calls] == [1, 0, 0, 1]
    assert calls[0].emission_time(calls[0].events[0]).computation_unaware_s == 0.05
    assert calls[-1].emission_time(calls[-1].events[0]).computation_unaware_s == 2500 / 16000


def test_calls_wait_for_their_audio_and_for_the_previous_call(monkeypatch):
    """Blocks of 1 s; the calls take 0.5, 1.75, 0.5 s, and closing 0.25 s."""
    # Each call reads the clock before and after; no time passes between two calls.
    readings = iter([0.0, 0.5, 0.5, 2.25, 2.25, 2.75, 2.75, 3.0])
    monkeypatch.setattr("harken.evaluation.latency.perf_counter", lambda: next(readings))
    calls = [*simulate_real_time(ScriptedLiveSession([]), np.zeros(48000, np.float32), 16000)]
    assert [call.wall_s for call in calls] == [0.5, 1.75, 0.5, 0.25]
    assert [call.done_s for call in calls] == [1.5, 3.75, 4.25, 4.5]
    assert [call.lag_s for call in calls] == [0.5, 1.75, 1.25, 1.5]
    # On one core the two processors for closing count both.
    monkeypatch.setattr("harken.evaluation.latency.perf_counter", iter([0.0, 0.25]).__next__)
    monkeypatch.setattr("harken.evaluation.latency.process_time", iter([7.0, 7.5]).__next__)
    (call,) = simulate_real_time(ScriptedLiveSession([]), np.zeros(0, np.float32), 320, one_core=True)
    assert (call.wall_s, call.cpu_s, call.done_s) == (0.25, 0.5, 0.5)
