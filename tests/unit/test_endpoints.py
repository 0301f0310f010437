"""Where utterances of a stream begin and end: tables of speech probabilities, and what holds for any of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harken.audio.vad import CHUNK_SAMPLES, RegionTracker, VadOptions
from harken.errors import OptionError
from harken.streaming.endpointer import MAX_UTTERANCE_FRAMES, Endpointer, UtteranceEnd, UtteranceStart

# Chunks of 3.2 frames, ten of them 32 frames; padding of 16 frames.
VAD = VadOptions(speech_pad_s=0.16)
SPEECH, QUIET = 0.9, 0.1


def endpointer(**changes):
    return Endpointer(VAD, **{"sentence_pause_s": 0.32, "pause_s": 0.96, **changes})


def hear(its, *runs, sentence_ended=False):
    """What happens in runs of (chunks, probability), each with the number of chunks heard by then."""
    probabilities = [probability for chunks, probability in runs for _ in range(chunks)]
    return [
        (chunks, event)
        for chunks, probability in enumerate(probabilities, 1)
        for event in its.feed(probability, sentence_ended=sentence_ended)
    ]


def test_an_utterance_begins_once_speech_is_believed_and_ends_after_the_pause():
    happened = hear(endpointer(), (100, QUIET), (50, SPEECH), (40, QUIET))
    assert happened == [(104, UtteranceStart(304)), (180, UtteranceEnd(496, "silence"))]


def test_a_click_is_no_utterance():
    assert hear(endpointer(), (100, QUIET), (3, SPEECH), (100, QUIET)) == []


def test_behind_a_sentence_a_shorter_pause_is_enough():
    happened = hear(endpointer(), (100, QUIET), (50, SPEECH), (40, QUIET), sentence_ended=True)
    assert happened == [(104, UtteranceStart(304)), (160, UtteranceEnd(496, "sentence"))]


def test_a_sentence_may_turn_out_to_have_ended_while_it_is_quiet():
    its = endpointer()
    hear(its, (50, SPEECH), (15, QUIET))
    assert its.feed(QUIET, sentence_ended=True) == [UtteranceEnd(176, "sentence")]
    assert its.utterance_start_frame is None


def test_the_end_of_a_sentence_does_not_end_speech():
    its = endpointer()
    assert hear(its, (50, SPEECH), (9, QUIET), (50, SPEECH), sentence_ended=True) == [(4, UtteranceStart(0))]
    assert its.utterance_start_frame == 0


def test_padding_reaches_no_further_than_what_was_heard():
    its = endpointer(sentence_pause_s=0.1)
    *_, (heard, ended) = hear(its, (50, SPEECH), (4, QUIET), sentence_ended=True)
    assert (heard, ended) == (54, UtteranceEnd(172, "sentence"))
    assert hear(its, (10, SPEECH)) == [(4, UtteranceStart(172))]


def test_speech_that_goes_on_is_cut_in_its_longest_silence_and_goes_on():
    its = endpointer(max_utterance_frames=1000)
    happened = hear(its, (200, SPEECH), (9, QUIET), (60, SPEECH), (3, QUIET), (60, SPEECH))
    assert happened == [(4, UtteranceStart(0)), (308, UtteranceEnd(654, "limit")), (308, UtteranceStart(654))]
    assert [event.is_continued for _, event in happened if isinstance(event, UtteranceEnd)] == [True]
    assert its.utterance_start_frame == its.earliest_needed_frame == 654
    assert not UtteranceEnd(1, "silence").is_continued


def test_the_longer_an_utterance_is_the_shorter_a_pause_ends_it():
    def pause(chunks, **changes):
        its = endpointer(max_utterance_frames=2000)
        hear(its, (chunks, SPEECH))
        *_, (heard, ended) = hear(its, (40, QUIET), **changes)
        assert ended.reason == ("sentence" if changes else "silence")
        return heard

    assert [pause(chunks) for chunks in (100, 280, 400, 500, 600)] == [30, 30, 20, 11, 4]
    assert [pause(chunks, sentence_ended=True) for chunks in (280, 500, 600)] == [10, 4, 4]


def test_a_flush_ends_the_utterance_and_speech_goes_on_behind_it():
    its = endpointer()
    hear(its, (50, SPEECH))
    assert its.flush(162) == [UtteranceEnd(162, "flush")]
    assert its.flush(162) == []
    assert (its.utterance_start_frame, its.earliest_needed_frame) == (None, 162)
    assert hear(its, (10, SPEECH)) == [(4, UtteranceStart(162))]
    assert its.close(193) == [UtteranceEnd(193, "close")]


def test_nothing_is_said_where_nobody_speaks():
    its = endpointer()
    assert hear(its, (1000, QUIET)) == its.flush(3200) == its.close(3200) == []
    assert its.earliest_needed_frame == 3184


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
        assert len(speech._open_region.silences) <= MAX_UTTERANCE_FRAMES // 32
        assert 3.2 * speech._n_chunks - its.earliest_needed_frame <= MAX_UTTERANCE_FRAMES


levels = st.sampled_from([0.0, 0.1, 0.4, 0.6, 1.0])
runs = st.lists(st.tuples(levels, st.integers(1, 200), st.booleans()), max_size=20)
pauses = st.sampled_from([0.1, 0.32, 0.5, 1.0, 2.0])
limits = st.sampled_from([500, 1250, MAX_UTTERANCE_FRAMES])
vads = st.builds(
    VadOptions,
    min_speech_s=st.sampled_from([0.0, 0.1, 1.0]),
    speech_pad_s=st.sampled_from([0.0, 0.1, 0.4]),
)


def spoken(runs):
    return [(level, ended) for level, chunks, ended in runs for _ in range(chunks)]


@given(runs=runs, vad=vads, pause_s=pauses, limit=limits)
def test_short_utterances_without_sentences_are_the_regions_of_a_recording(runs, vad, pause_s, limit):
    its = Endpointer(vad, sentence_pause_s=0.1, pause_s=pause_s, max_utterance_frames=limit)
    probabilities = [level for level, _ in spoken(runs)]
    frames = len(probabilities) * CHUNK_SAMPLES // 160
    happened = [event for p in probabilities for event in its.feed(p, sentence_ended=False)] + its.close(frames)
    options = VadOptions(
        min_speech_s=vad.min_speech_s,
        speech_pad_s=min(vad.speech_pad_s, pause_s / 2),
        min_silence_s=pause_s,
        max_speech_s=limit / 100,
    )
    regions = RegionTracker(options)
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
    its = Endpointer(vad, sentence_pause_s=sentence_pause_s, pause_s=pause_s, max_utterance_frames=limit)
    told, chunks = [], spoken(runs)
    for heard, (level, ended) in enumerate(chunks, 1):
        needed, frames = its.earliest_needed_frame, heard * CHUNK_SAMPLES // 160
        happened = its.feed(level, sentence_ended=ended)
        if heard in flushes:
            happened += its.flush(frames)
        assert all(needed <= event.frame <= frames for event in happened)
        assert needed <= its.earliest_needed_frame <= frames
        told += happened
        inside = bool(told) and isinstance(told[-1], UtteranceStart)
        assert its.utterance_start_frame == (told[-1].frame if inside else None)
    told += its.close(len(chunks) * CHUNK_SAMPLES // 160)
    assert all(isinstance(a, UtteranceStart) != isinstance(b, UtteranceStart) for a, b in pairwise(told))
    assert not told or isinstance(told[-1], UtteranceEnd)
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
