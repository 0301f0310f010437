"""Where utterances of a stream begin and end: tables of speech probabilities, and what holds for any of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harken.audio.vad import CHUNK_SAMPLES, Regions, VadOptions
from harken.errors import OptionError
from harken.streaming.endpoints import LIMIT_FRAMES, Began, Ended, Endpointer

# Chunks of 3.2 frames, ten of them 32 frames; padding of 16 frames.
VAD = VadOptions(padding_s=0.16)
SPEECH, QUIET = 0.9, 0.1


def endpointer(**changes):
    return Endpointer(VAD, **{"sentence_pause_s": 0.32, "pause_s": 0.96, **changes})


def hear(its, *runs, sentence_ended=False):
    """What happens in runs of (chunks, probability), each with the number of chunks heard by then."""
    probabilities = [probability for chunks, probability in runs for _ in range(chunks)]
    return [
        (chunks, event)
        for chunks, probability in enumerate(probabilities, 1)
        for event in its.hear(probability, sentence_ended=sentence_ended)
    ]


def test_an_utterance_begins_once_speech_is_believed_and_ends_after_the_pause():
    happened = hear(endpointer(), (100, QUIET), (50, SPEECH), (40, QUIET))
    assert happened == [(104, Began(304)), (180, Ended(496, "silence"))]


def test_a_click_is_no_utterance():
    assert hear(endpointer(), (100, QUIET), (3, SPEECH), (100, QUIET)) == []


def test_behind_a_sentence_a_shorter_pause_is_enough():
    happened = hear(endpointer(), (100, QUIET), (50, SPEECH), (40, QUIET), sentence_ended=True)
    assert happened == [(104, Began(304)), (160, Ended(496, "sentence"))]


def test_a_sentence_may_turn_out_to_have_ended_while_it_is_quiet():
    its = endpointer()
    hear(its, (50, SPEECH), (15, QUIET))
    assert its.hear(QUIET, sentence_ended=True) == [Ended(176, "sentence")]
    assert its.speaking_since is None


def test_the_end_of_a_sentence_does_not_end_speech():
    its = endpointer()
    assert hear(its, (50, SPEECH), (9, QUIET), (50, SPEECH), sentence_ended=True) == [(4, Began(0))]
    assert its.speaking_since == 0


def test_padding_reaches_no_further_than_what_was_heard():
    its = endpointer(sentence_pause_s=0.1)
    *_, (heard, ended) = hear(its, (50, SPEECH), (4, QUIET), sentence_ended=True)
    assert (heard, ended) == (54, Ended(172, "sentence"))
    assert hear(its, (10, SPEECH)) == [(4, Began(172))]


def test_speech_that_goes_on_is_cut_in_its_longest_silence_and_goes_on():
    its = endpointer(limit_frames=1000)
    happened = hear(its, (200, SPEECH), (9, QUIET), (60, SPEECH), (3, QUIET), (60, SPEECH))
    assert happened == [(4, Began(0)), (308, Ended(654, "limit")), (308, Began(654))]
    assert [event.goes_on for _, event in happened if isinstance(event, Ended)] == [True]
    assert its.speaking_since == its.needed_frames == 654
    assert not Ended(1, "silence").goes_on


def test_the_longer_an_utterance_is_the_shorter_a_pause_ends_it():
    def pause(chunks, **changes):
        its = endpointer(limit_frames=2000)
        hear(its, (chunks, SPEECH))
        *_, (heard, ended) = hear(its, (40, QUIET), **changes)
        assert ended.reason == ("sentence" if changes else "silence")
        return heard

    assert [pause(chunks) for chunks in (100, 280, 400, 500, 600)] == [30, 30, 20, 11, 4]
    assert [pause(chunks, sentence_ended=True) for chunks in (280, 500, 600)] == [10, 4, 4]


def test_a_flush_ends_the_utterance_and_speech_goes_on_behind_it():
    its = endpointer()
    hear(its, (50, SPEECH))
    assert its.flush(162) == [Ended(162, "flush")]
    assert its.flush(162) == []
    assert (its.speaking_since, its.needed_frames) == (None, 162)
    assert hear(its, (10, SPEECH)) == [(4, Began(162))]
    assert its.close(193) == [Ended(193, "close")]


def test_nothing_is_said_where_nobody_speaks():
    its = endpointer()
    assert hear(its, (1000, QUIET)) == its.flush(3200) == its.close(3200) == []
    assert its.needed_frames == 3184


@pytest.mark.parametrize(
    ("option", "value"),
    [("sentence_pause_s", 0.0), ("sentence_pause_s", float("nan")), ("pause_s", 0.05), ("pause_s", 11.0)],
)
def test_pauses_are_checked(option, value):
    with pytest.raises(OptionError, match=f"{option}="):
        endpointer(**{option: value})


def test_what_is_remembered_does_not_grow():
    its = endpointer()
    speech = its._regions
    for _ in range(2000):
        hear(its, (7, SPEECH), (3, QUIET))
        assert len(speech._speech.silences) <= LIMIT_FRAMES // 32
        assert 3.2 * speech._heard_chunks - its.needed_frames <= LIMIT_FRAMES


levels = st.sampled_from([0.0, 0.1, 0.4, 0.6, 1.0])
runs = st.lists(st.tuples(levels, st.integers(1, 200), st.booleans()), max_size=20)
pauses = st.sampled_from([0.1, 0.32, 0.5, 1.0, 2.0])
limits = st.sampled_from([500, 1250, LIMIT_FRAMES])
vads = st.builds(
    VadOptions,
    min_speech_s=st.sampled_from([0.0, 0.1, 1.0]),
    padding_s=st.sampled_from([0.0, 0.1, 0.4]),
)


def spoken(runs):
    return [(level, ended) for level, chunks, ended in runs for _ in range(chunks)]


@given(runs=runs, vad=vads, pause_s=pauses, limit=limits)
def test_short_utterances_without_sentences_are_the_regions_of_a_recording(runs, vad, pause_s, limit):
    its = Endpointer(vad, sentence_pause_s=0.1, pause_s=pause_s, limit_frames=limit)
    probabilities = [level for level, _ in spoken(runs)]
    frames = len(probabilities) * CHUNK_SAMPLES // 160
    happened = [event for p in probabilities for event in its.hear(p, sentence_ended=False)] + its.close(frames)
    options = VadOptions(
        min_speech_s=vad.min_speech_s,
        padding_s=min(vad.padding_s, pause_s / 2),
        min_silence_s=pause_s,
        max_region_s=limit / 100,
    )
    regions = Regions(options)
    expected = regions.feed(probabilities) + regions.flush(frames)
    assume(all(end - start + 100 * pause_s <= limit / 2 for start, end in expected))
    assert [event.frame for event in happened] == [edge for region in expected for edge in region]


@given(
    runs=runs,
    vad=vads,
    pause_s=pauses,
    sentence_pause_s=pauses,
    limit=limits,
    flushes=st.sets(st.integers(0, 900)),
)
def test_what_holds_of_any_stream(runs, vad, pause_s, sentence_pause_s, limit, flushes):
    its = Endpointer(vad, sentence_pause_s=sentence_pause_s, pause_s=pause_s, limit_frames=limit)
    told, chunks = [], spoken(runs)
    for heard, (level, ended) in enumerate(chunks, 1):
        needed, frames = its.needed_frames, heard * CHUNK_SAMPLES // 160
        happened = its.hear(level, sentence_ended=ended)
        if heard in flushes:
            happened += its.flush(frames)
        assert all(needed <= event.frame <= frames for event in happened)
        assert needed <= its.needed_frames <= frames
        told += happened
        inside = bool(told) and isinstance(told[-1], Began)
        assert its.speaking_since == (told[-1].frame if inside else None)
    told += its.close(len(chunks) * CHUNK_SAMPLES // 160)
    assert all(isinstance(a, Began) != isinstance(b, Began) for a, b in pairwise(told))
    assert not told or isinstance(told[-1], Ended)
    frames = [event.frame for event in told]
    assert frames == sorted(frames)
    spans = list(zip(frames[::2], frames[1::2], strict=True))
    assert all(0 < end - start <= limit for start, end in spans)
    covered = {frame for start, end in spans for frame in range(start, end)}
    at = 0
    for level, chunks, _ in runs:
        flushed = any(at <= flush <= at + chunks for flush in flushes)
        if level > 0.5 and chunks * 0.032 >= vad.min_speech_s and not flushed:
            assert covered.issuperset(range(at * 16 // 5, (at + chunks) * 16 // 5))
        at += chunks
