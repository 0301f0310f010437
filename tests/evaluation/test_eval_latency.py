"""Tests of harken.evaluation.latency and simulation: display and commit times of words, and simulated real time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("jiwer")
pytest.importorskip("whisper_normalizer")

from fakes.live_sessions import ScriptedLiveSession, final_segment, interim_text, speech_ended, speech_started
from harken.evaluation.latency import (
    Display,
    Latencies,
    Latency,
    Percentiles,
    matching_positions,
    measure_latencies,
    unit_splitter,
)
from harken.evaluation.simulation import EmissionTime, simulate_real_time
from harken.results import Word
from harken.streaming import Event

split_units = unit_splitter("en")
SLOW_S = 0.25
"""Computing time that `emitted_at` adds to the audio."""


def emitted_at(at_s: float) -> EmissionTime:
    return EmissionTime(computation_unaware_s=at_s, computation_aware_s=at_s + SLOW_S)


def display(*events: Event) -> Display:
    """Apply some events, each emitted `SLOW_S` after its audio."""
    screen = Display(split_units)
    for event in events:
        screen.update(event, emitted_at(event.emitted_samples / 16000))
    return screen


def times(*events: Event) -> list[tuple[str, float, float]]:
    """Return the words with the times of their display and commit, without computing time."""
    return [
        (
            word.text,
            word.displayed_at.computation_unaware_s,
            word.committed_at.computation_unaware_s if word.committed_at else -1,
        )
        for word in display(*events).words()
    ]


class TestUnitSplitter:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (" Hello,  World!", ["hello", "world"]),
            ("I'm", ["i", "am"]),
            ("Mr. Hale", ["mister", "hale"]),
            ("um, well", ["well"]),
            ("twenty three", ["20", "3"]),
            ("", []),
        ],
    )
    def test_english_text_is_split_into_normalized_words(self, text: str, expected: list[str]) -> None:
        assert split_units(text) == expected

    def test_text_without_spaces_is_split_into_letters(self) -> None:
        assert unit_splitter("zh")("你好。") == ["你", "好"]

    def test_units_of_a_growing_text_do_not_change(self) -> None:
        text = "It was twenty three dollars and I'm sure Mr. Hale won't pay one hundred"
        cut = [split_units(text[:end]) for end, letter in enumerate(text) if letter == " "]
        assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(cut))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", []),
        ("", "a", []),
        ("a b", "", []),
        ("a b", "a b", [(0, 0), (1, 1)]),
        ("a b", "a b c", [(0, 0), (1, 1)]),
        ("a x c", "a c", [(0, 0), (2, 1)]),
        ("a c", "a x c", [(0, 0), (1, 2)]),
        ("a x c", "a y c", [(0, 0), (2, 2)]),
        ("x", "y", []),
    ],
)
def test_matching_positions_have_the_fewest_edits(
    before: str, after: str, expected: list[tuple[int, int]]
) -> None:
    assert [*matching_positions(before.split(), after.split())] == expected


class TestDisplay:
    def test_words_have_their_first_display_and_commit(self) -> None:
        assert times(
            speech_started(0),
            interim_text(1, "", " One"),
            interim_text(2, " One", " dog"),
            interim_text(3, " One dog", " barks"),
            final_segment(4, " One dog barks."),
            speech_ended(4),
        ) == [("one", 1, 2), ("dog", 2, 3), ("barks", 3, 4)]

    def test_word_first_seen_in_a_segment_counts_from_the_segment(self) -> None:
        assert times(interim_text(1, " One"), final_segment(2, " One dog.")) == [("one", 1, 1), ("dog", 2, 2)]

    def test_word_that_disappeared_counts_from_its_return(self) -> None:
        events = (
            interim_text(1, "", " dog"),
            interim_text(2, "", " fog"),
            interim_text(3, "", " dog"),
            interim_text(4, " dog"),
        )
        assert times(*events, final_segment(5, " dog")) == [("dog", 3, 4)]
        assert display(*events).flickered == 2

    def test_word_that_moves_does_not_flicker(self) -> None:
        events = (
            interim_text(1, "", " dog barks"),
            interim_text(2, "", " A dog barks"),
            final_segment(3, " A dog barks"),
        )
        assert times(*events) == [("a", 2, 3), ("dog", 1, 3), ("barks", 1, 3)]
        assert display(*events).flickered == 0

    def test_committed_word_that_segments_replace_is_revised(self) -> None:
        screen = display(
            interim_text(1, " One fog barks", " loud"), final_segment(2, " One dog barks"), speech_ended(2)
        )
        assert [
            (word.text, word.committed_at.computation_unaware_s) for word in screen.words() if word.committed_at
        ] == [*(("one", 1), ("dog", 2), ("barks", 1))]
        assert screen.revised() == 1
        assert screen.retractions == 0
        assert (screen.interim_texts, screen.final_texts) == ([" One fog barks loud"], [" One dog barks"])

    def test_case_and_punctuation_do_not_count_as_revisions(self) -> None:
        assert display(interim_text(1, " one dog"), final_segment(2, " One, dog!")).revised() == 0

    def test_changed_committed_text_is_a_retraction(self) -> None:
        assert (
            display(
                interim_text(1, " One"), interim_text(2, " One dog"), interim_text(3, " One fog")
            ).retractions
            == 1
        )

    def test_new_utterance_is_no_retraction(self) -> None:
        events = (
            interim_text(1, " One"),
            final_segment(2, " One."),
            speech_ended(2),
            speech_started(3),
            interim_text(4, " Two"),
            speech_ended(5),
        )
        screen = display(*events)
        # The second utterance has no segment, so its committed word counts as revised.
        assert screen.retractions == screen.flickered == screen.revised() - 1 == 0
        assert screen.interim_texts == [" One", " Two"]

    def test_utterance_split_at_its_limit_continues_in_the_next(self) -> None:
        """Words behind the split are displayed again in the next utterance, and count from their first display."""
        events = (
            *(speech_started(0), interim_text(1, "A dog", " barks"), interim_text(2, "A dog barks", " loud")),
            *(final_segment(3, " A dog"), speech_ended(3, "limit"), speech_started(3)),
            *(interim_text(4, "barks loudly", " and"), final_segment(5, " barks loudly and"), speech_ended(5)),
        )
        screen = display(*events)
        assert screen.interim_texts == ["a dog", "barks loudly and"]
        assert (screen.retractions, screen.revised(), screen.flickered) == (0, 0, 1)
        expected = [("a", 1, 1), ("dog", 1, 1), ("barks", 1, 2), ("loudly", 4, 4), ("and", 4, 5)]
        assert times(*events) == expected

    def test_segments_after_the_end_of_the_utterance_match_its_words(self) -> None:
        events = (
            interim_text(1, " A"),
            speech_ended(2),
            speech_started(2),
            interim_text(3, " dog"),
            final_segment(4, " A"),
            speech_ended(5),
        )
        assert times(*events, final_segment(6, " dog")) == [("a", 1, 1), ("dog", 3, 3)]


def word(text: str, end_s: float) -> Word:
    return Word(start_s=0.0, end_s=end_s, text=text, probability=1.0)


class TestLatencies:
    def test_latencies_count_from_the_end_of_the_word(self) -> None:
        events = (interim_text(1, "", " One"), interim_text(2, " One"))
        assert display(*events).words() == []  # only segments give words
        displayed = display(*events, final_segment(3, " One")).words()
        (timed,) = measure_latencies(displayed, [word("one", 0.5)], split_units).words
        assert (timed.text, timed.end_s) == ("one", 0.5)
        assert timed.interim_latency == Latency(computation_unaware_s=0.5, computation_aware_s=0.5 + SLOW_S)
        assert timed.commit_latency == Latency(computation_unaware_s=1.5, computation_aware_s=1.5 + SLOW_S)

    def test_unmatched_words_are_counted(self) -> None:
        displayed = display(final_segment(3, " One fog barks")).words()
        latencies = measure_latencies(displayed, [word("one", 1), word("dog", 2)], split_units)
        assert [timed.text for timed in latencies.words] == ["one"]
        assert (latencies.unmatched_hypothesis_words, latencies.unmatched_reference_words) == (2, 1)

    def test_latencies_add_up(self) -> None:
        displayed = display(final_segment(3, " One")).words()
        one = measure_latencies(displayed, [word("one", 1)], split_units)
        none = measure_latencies(displayed, [], split_units)
        both = one + none + Latencies(unmatched_reference_words=3)
        assert (len(both.words), both.unmatched_hypothesis_words, both.unmatched_reference_words) == (1, 1, 3)


def test_percentiles_of_values() -> None:
    assert Percentiles.of([]) is None
    assert Percentiles.of(range(101)) == Percentiles(p50=50, p95=95, max=100)


class TestSimulation:
    def test_stream_is_fed_in_blocks_and_closed(self) -> None:
        session = ScriptedLiveSession([speech_started(0.05), speech_ended(0.25)])
        calls = [*simulate_real_time(session, np.zeros(2500, np.float32), 1000)]
        assert session.blocks == [1000, 1000, 500]
        assert [call.position_samples for call in calls] == [1000, 2000, 2500, 2500]
        assert [len(call.events) for call in calls] == [1, 0, 0, 1]
        assert calls[0].emission_time(calls[0].events[0]).computation_unaware_s == 0.05
        assert calls[-1].emission_time(calls[-1].events[0]).computation_unaware_s == 2500 / 16000

    def test_empty_stream_is_closed(self) -> None:
        (call,) = simulate_real_time(ScriptedLiveSession([]), np.zeros(0, np.float32), 320)
        assert call.position_samples == 0

    def test_calls_wait_for_their_audio_and_for_the_previous_call(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Blocks of 1 s; the calls take 0.5, 1.75, 0.5 s, and closing 0.25 s."""
        # Each call reads the clock before and after; no time passes between two calls.
        readings = iter([0.0, 0.5, 0.5, 2.25, 2.25, 2.75, 2.75, 3.0])
        monkeypatch.setattr("harken.evaluation.simulation.perf_counter", lambda: next(readings))
        calls = [*simulate_real_time(ScriptedLiveSession([]), np.zeros(48000, np.float32), 16000)]
        assert [call.wall_s for call in calls] == [0.5, 1.75, 0.5, 0.25]
        assert [call.done_s for call in calls] == [1.5, 3.75, 4.25, 4.5]
        assert [call.lag_s for call in calls] == [0.5, 1.75, 1.25, 1.5]

    def test_one_core_counts_cpu_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Closing takes 0.25 s on two processors."""
        monkeypatch.setattr("harken.evaluation.simulation.perf_counter", iter([0.0, 0.25]).__next__)
        monkeypatch.setattr("harken.evaluation.simulation.process_time", iter([7.0, 7.5]).__next__)
        (call,) = simulate_real_time(ScriptedLiveSession([]), np.zeros(0, np.float32), 320, one_core=True)
        assert (call.wall_s, call.cpu_s, call.done_s) == (0.25, 0.5, 0.5)
