"""Tests of live diarization with voices that are levels of the samples."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.speakers import (
    BOTH,
    EMBEDDINGS,
    FIRST,
    SECOND,
    SILENCE,
    THIRD,
    conversation,
    level_diarizer,
)
from harken.contract import Floats
from harken.errors import OptionError
from harken.results import SpeakerTurn
from harken.speakers import live
from harken.speakers.voices import Voice
from harken.types import SAMPLE_RATE

FRAME_S = 0.03
TALK = st.lists(
    st.tuples(st.sampled_from([SILENCE, FIRST, SECOND, BOTH, THIRD]), st.floats(0.3, 6)), min_size=1, max_size=8
)


def heard(samples: Floats, **options: int) -> tuple[SpeakerTurn, ...]:
    """Return the turns at the end of a stream."""
    diarization = level_diarizer(**options).begin_live()
    diarization.feed(samples)
    diarization.flush()
    return diarization.turns


def speaker_at(turns: tuple[SpeakerTurn, ...], time_s: float) -> set[str]:
    return {turn.speaker for turn in turns if turn.start_s <= time_s < turn.end_s}


def test_voices_are_named_in_order_of_appearance() -> None:
    turns = heard(conversation((SILENCE, 1), (SECOND, 6), (SILENCE, 1), (FIRST, 7), (SILENCE, 1), (SECOND, 25)))
    assert [turn.speaker for turn in turns] == ["A", "B", "A"]
    for turn, (start_s, end_s) in zip(turns, [(1, 7), (8, 15), (16, 41)], strict=True):
        assert (turn.start_s, turn.end_s) == pytest.approx((start_s, end_s), abs=FRAME_S)


def test_voices_at_once_both_have_turns() -> None:
    turns = heard(conversation((FIRST, 6), (SECOND, 6), (BOTH, 2), (FIRST, 3)))
    assert speaker_at(turns, 13) == {"A", "B"}
    assert speaker_at(turns, 15) == {"A"}


def test_new_voice_has_its_name_within_the_delay_and_from_its_first_word_on() -> None:
    diarization = level_diarizer().begin_live(5.0)
    diarization.feed(conversation((FIRST, 10), (SECOND, 1.5)))
    assert speaker_at(diarization.turns, 10.5) == {"A"}  # too little to found a voice
    diarization.feed(conversation((SECOND, 3)))
    assert speaker_at(diarization.turns, 10.5) == {"B"}


def test_there_are_no_more_voices_than_allowed() -> None:
    samples = conversation((FIRST, 10), (SECOND, 10), (THIRD, 10))
    assert {turn.speaker for turn in heard(samples)} == {"A", "B", "C"}
    assert {turn.speaker for turn in heard(samples, max_speakers=2)} == {"A", "B"}
    assert {turn.speaker for turn in heard(samples, num_speakers=1)} == {"A"}


def test_known_people_have_their_names() -> None:
    known = [Voice("Ann", EMBEDDINGS[1], 5.0), Voice("Bob", EMBEDDINGS[7], 5.0)]
    for parts, names in (
        (((FIRST, 6), (SECOND, 6)), ["A", "Ann"]),
        (((SECOND, 1), (SILENCE, 1), (FIRST, 1)), ["Ann", "A"]),  # however little they say
        (((FIRST, 1),), ["A"]),  # nobody is Bob by chance
    ):
        diarization = level_diarizer(max_speakers=2).with_voices(known).begin_live()
        diarization.feed(conversation(*parts))
        diarization.flush()
        assert [turn.speaker for turn in diarization.turns] == names


def test_silence_and_nothing_have_no_turns() -> None:
    assert heard(conversation((SILENCE, 12))) == ()
    assert heard(np.empty(0, np.float32)) == ()


@settings(max_examples=10, deadline=None)
@given(parts=TALK, cuts=st.lists(st.floats(0, 48), max_size=6))
def test_block_sizes_do_not_matter(parts: list[tuple[float, float]], cuts: list[float]) -> None:
    samples = conversation(*parts)
    whole, cut = level_diarizer().begin_live(2.0), level_diarizer().begin_live(2.0)
    edges = sorted(min(len(samples), round(at_s * SAMPLE_RATE)) for at_s in cuts)
    for start, end in itertools.pairwise([0, *edges, len(samples)]):
        whole.feed(samples[start:end])
        for first in range(start, end, 7777):
            cut.feed(samples[first : min(end, first + 7777)])
        assert whole.turns == cut.turns
    whole.flush()
    cut.flush()
    assert whole.turns == cut.turns


@settings(max_examples=10, deadline=None)
@given(parts=TALK, delay_s=st.sampled_from([1.0, 2.0, 5.0]))
def test_what_is_older_than_the_delay_never_changes(parts: list[tuple[float, float]], delay_s: float) -> None:
    samples = conversation(*parts)
    diarization = level_diarizer().begin_live(delay_s)
    before: list[set[str]] = []
    times_s = np.arange(0, len(samples) / SAMPLE_RATE, 0.1).tolist()
    fed, settled_s = 0, 0.0
    while fed < len(samples):
        n = diarization.missing_samples
        diarization.feed(samples[fed : fed + n])
        fed = min(len(samples), fed + n)
        now = [speaker_at(diarization.turns, time_s) for time_s in times_s if time_s < settled_s - 0.4]
        assert now == before[: len(now)]
        settled_s = max(settled_s, diarization.settled_s)
        assert settled_s >= fed / SAMPLE_RATE - delay_s - 2.0
        before = [speaker_at(diarization.turns, time_s) for time_s in times_s]


def test_memory_does_not_grow_with_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HISTORY_FRAMES", 600)
    diarization, minute = level_diarizer().begin_live(), conversation((FIRST, 5), (SECOND, 4), (SILENCE, 1))
    sizes = []
    tracemalloc.start()
    for _ in range(12):
        diarization.feed(minute)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(sizes[6:]) < max(sizes[:6]) + 20_000
    assert len(diarization.turns) <= 5


@pytest.mark.parametrize("delay_s", [0.0, 61.0, float("nan")])
def test_delay_out_of_range_is_refused(delay_s: float) -> None:
    with pytest.raises(OptionError, match="speaker_delay"):
        level_diarizer().begin_live(delay_s)
