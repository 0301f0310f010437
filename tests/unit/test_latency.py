"""When words of a live stream are shown and committed, and how long that is after they were spoken."""

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
    Percentiles,
    matching_positions,
    measure_latencies,
    unit_splitter,
)
from harken.evaluation.simulation import EmissionTime, simulate_real_time
from harken.results import Word
from harken.streaming import Event

UNITS = unit_splitter("en")
SLOW_S = 0.25
"""What computing takes beyond the sound, in `moment`."""


def moment(at_s: float) -> EmissionTime:
    return EmissionTime(computation_unaware_s=at_s, computation_aware_s=at_s + SLOW_S)


def display(*events: Event) -> Display:
    """Show some events; each is known some time after its sound."""
    its = Display(UNITS)
    for event in events:
        its.update(event, moment(event.emitted_samples / 16000))
    return its


def times(*events: Event) -> list[tuple[str, float, float]]:
    """Words, since when they are shown, and since when they are committed."""
    return [
        (
            its.text,
            its.displayed_at.computation_unaware_s,
            its.committed_at.computation_unaware_s if its.committed_at else -1,
        )
        for its in display(*events).words()
    ]


class TestUnits:
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
    def test_english(self, text: str, expected: list[str]) -> None:
        assert UNITS(text) == expected

    def test_letters_where_there_are_no_spaces(self) -> None:
        assert unit_splitter("zh")("你好。") == ["你", "好"]

    def test_a_text_that_grows_keeps_its_words(self) -> None:
        text = "It was twenty three dollars and I'm sure Mr. Hale won't pay one hundred"
        cut = [UNITS(text[:end]) for end, letter in enumerate(text) if letter == " "]
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
def test_matches(before: str, after: str, expected: list[tuple[int, int]]) -> None:
    assert [*matching_positions(before.split(), after.split())] == expected


class TestDisplay:
    def test_words_count_from_when_they_were_shown_and_committed(self) -> None:
        assert times(
            speech_started(0),
            interim_text(1, "", " One"),
            interim_text(2, " One", " dog"),
            interim_text(3, " One dog", " barks"),
            final_segment(4, " One dog barks."),
            speech_ended(4),
        ) == [("one", 1, 2), ("dog", 2, 3), ("barks", 3, 4)]

    def test_a_word_that_was_never_shown_before(self) -> None:
        assert times(interim_text(1, " One"), final_segment(2, " One dog.")) == [("one", 1, 1), ("dog", 2, 2)]

    def test_one_that_went_away_counts_from_its_return(self) -> None:
        events = (
            interim_text(1, "", " dog"),
            interim_text(2, "", " fog"),
            interim_text(3, "", " dog"),
            interim_text(4, " dog"),
        )
        assert times(*events, final_segment(5, " dog")) == [("dog", 3, 4)]
        assert display(*events).flickered == 2

    def test_one_that_only_moves_stays(self) -> None:
        events = (
            interim_text(1, "", " dog barks"),
            interim_text(2, "", " A dog barks"),
            final_segment(3, " A dog barks"),
        )
        assert times(*events) == [("a", 2, 3), ("dog", 1, 3), ("barks", 1, 3)]
        assert display(*events).flickered == 0

    def test_what_segments_have_otherwise_is_revised(self) -> None:
        its = display(
            interim_text(1, " One fog barks", " loud"), final_segment(2, " One dog barks"), speech_ended(2)
        )
        assert [
            (word.text, word.committed_at.computation_unaware_s) for word in its.words() if word.committed_at
        ] == [*(("one", 1), ("dog", 2), ("barks", 1))]
        assert its.revised() == 1
        assert its.retractions == 0
        assert (its.interim_texts, its.final_texts) == ([" One fog barks loud"], [" One dog barks"])

    def test_case_and_punctuation_revise_nothing(self) -> None:
        assert display(interim_text(1, " one dog"), final_segment(2, " One, dog!")).revised() == 0

    def test_committed_text_that_is_taken_back_is_a_retraction(self) -> None:
        its = display(interim_text(1, " One"), interim_text(2, " One dog"), interim_text(3, " One fog"))
        assert its.retractions == 1

    def test_a_new_utterance_takes_nothing_back(self) -> None:
        events = (
            interim_text(1, " One"),
            final_segment(2, " One."),
            speech_ended(2),
            speech_started(3),
            interim_text(4, " Two"),
            speech_ended(5),
        )
        its = display(*events)
        assert its.retractions == its.flickered == its.revised() - 1 == 0  # nothing confirms the second
        assert its.interim_texts == [" One", " Two"]

    def test_an_utterance_that_is_cut_goes_on_in_the_next(self) -> None:
        """What is behind the cut is shown again there, and counts from when it was shown first."""
        events = (
            *(speech_started(0), interim_text(1, "A dog", " barks"), interim_text(2, "A dog barks", " loud")),
            *(final_segment(3, " A dog"), speech_ended(3, "limit"), speech_started(3)),
            *(interim_text(4, "barks loudly", " and"), final_segment(5, " barks loudly and"), speech_ended(5)),
        )
        its = display(*events)
        assert (its.interim_texts, its.retractions, its.revised()) == (["a dog", "barks loudly and"], 0, 0)
        assert its.flickered == 1
        expected = [("a", 1, 1), ("dog", 1, 1), ("barks", 1, 2), ("loudly", 4, 4), ("and", 4, 5)]
        assert times(*events) == expected

    def test_segments_may_come_behind_the_end_of_the_utterance(self) -> None:
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
    def test_from_the_end_of_a_word(self) -> None:
        shown = display(interim_text(1, "", " One"), interim_text(2, " One")).words()
        assert shown == []  # no segment has confirmed it
        shown = display(interim_text(1, "", " One"), interim_text(2, " One"), final_segment(3, " One")).words()
        (its,) = measure_latencies(shown, [word("one", 0.5)], UNITS).words
        assert (its.text, its.end_s) == ("one", 0.5)
        assert (its.interim_latency.computation_unaware_s, its.commit_latency.computation_unaware_s) == (
            0.5,
            1.5,
        )
        assert (its.interim_latency.computation_aware_s, its.commit_latency.computation_aware_s) == (
            0.5 + SLOW_S,
            1.5 + SLOW_S,
        )

    def test_what_has_no_partner_is_counted(self) -> None:
        shown = display(final_segment(3, " One fog barks")).words()
        found = measure_latencies(shown, [word("one", 1), word("dog", 2)], UNITS)
        assert (
            [its.text for its in found.words],
            found.unmatched_hypothesis_words,
            found.unmatched_reference_words,
        ) == (["one"], 2, 1)

    def test_they_add_up(self) -> None:
        shown = display(final_segment(3, " One")).words()
        one, none = measure_latencies(shown, [word("one", 1)], UNITS), measure_latencies(shown, [], UNITS)
        both = one + none + Latencies(unmatched_reference_words=3)
        assert (len(both.words), both.unmatched_hypothesis_words, both.unmatched_reference_words) == (1, 1, 3)


def test_a_spread() -> None:
    assert Percentiles.of([]) is None
    assert Percentiles.of(range(101)) == Percentiles(p50=50, p95=95, max=100)


class TestSimulation:
    def test_blocks_and_the_end(self) -> None:
        session = ScriptedLiveSession([speech_started(0.05), speech_ended(0.25)])
        steps = [*simulate_real_time(session, np.zeros(2500, np.float32), 1000)]
        assert session.blocks == [1000, 1000, 500]
        assert [its.position_samples for its in steps] == [1000, 2000, 2500, 2500]
        assert [len(its.events) for its in steps] == [1, 0, 0, 1]
        assert steps[0].emission_time(steps[0].events[0]).computation_unaware_s == 0.05
        assert steps[-1].emission_time(steps[-1].events[0]).computation_unaware_s == 2500 / 16000

    def test_an_empty_stream_is_closed(self) -> None:
        (step,) = simulate_real_time(ScriptedLiveSession([]), np.zeros(0, np.float32), 320)
        assert step.position_samples == 0

    def test_calls_wait_for_their_sound_and_for_one_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Blocks of 1 s; the calls take 0.5, 1.75, 0.5 s, and closing 0.25 s."""
        # Each call reads the clock before and after; between two calls it stands still.
        readings = iter([0.0, 0.5, 0.5, 2.25, 2.25, 2.75, 2.75, 3.0])
        monkeypatch.setattr("harken.evaluation.simulation.perf_counter", lambda: next(readings))
        steps = [*simulate_real_time(ScriptedLiveSession([]), np.zeros(48000, np.float32), 16000)]
        assert [its.wall_s for its in steps] == [0.5, 1.75, 0.5, 0.25]
        assert [its.done_s for its in steps] == [1.5, 3.75, 4.25, 4.5]
        assert [its.lag_s for its in steps] == [0.5, 1.75, 1.25, 1.5]

    def test_as_if_one_core_did_everything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Closing takes two processors 0.25 s."""
        monkeypatch.setattr("harken.evaluation.simulation.perf_counter", iter([0.0, 0.25]).__next__)
        monkeypatch.setattr("harken.evaluation.simulation.process_time", iter([7.0, 7.5]).__next__)
        (step,) = simulate_real_time(ScriptedLiveSession([]), np.zeros(0, np.float32), 320, one_core=True)
        assert (step.wall_s, step.cpu_s, step.done_s) == (0.25, 0.5, 0.5)
