"""Endpointing: tables of speech probabilities, and properties of any stream."""

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
SPEECH, SILENCE = 0.9, 0.1


def endpointer(**changes):
    return Endpointer(VAD, **{"sentence_pause_s": 0.32, "pause_s": 0.96, **changes})


def feed_runs(detector, *runs, sentence_ended=False):
    """Return the endpoints in runs of (chunks, probability), each with the number of chunks fed by then."""
    probabilities = [probability for chunks, probability in runs for _ in range(chunks)]
    return [
        (chunks, event)
        for chunks, probability in enumerate(probabilities, 1)
        for event in detector.feed(probability, sentence_ended=sentence_ended)
    ]


def test_shorter_pause_ends_a_sentence():
    endpoints = feed_runs(endpointer(), (100, SILENCE), (50, SPEECH), (40, SILENCE), sentence_ended=True)
    assert endpoints == [(104, UtteranceStart(304)), (160, UtteranceEnd(496, "sentence"))]


def test_sentence_end_ends_the_utterance_with_a_pause_only():
    detector = endpointer()
    feed_runs(detector, (50, SPEECH), (15, SILENCE))
    assert detector.feed(SILENCE, sentence_ended=True) == [UtteranceEnd(176, "sentence")]
    assert detector.utterance_start_frame is None
    detector = endpointer()
    endpoints = feed_runs(detector, (50, SPEECH), (9, SILENCE), (50, SPEECH), sentence_ended=True)
    assert endpoints == [(4, UtteranceStart(0))]
    assert detector.utterance_start_frame == 0


def test_long_speech_is_split_at_its_longest_silence():
    detector = endpointer(max_utterance_frames=1000)
    endpoints = feed_runs(detector, (200, SPEECH), (9, SILENCE), (60, SPEECH), (3, SILENCE), (60, SPEECH))
    assert endpoints == [(4, UtteranceStart(0)), (308, UtteranceEnd(654, "limit")), (308, UtteranceStart(654))]
    assert [event.is_continued for _, event in endpoints if isinstance(event, UtteranceEnd)] == [True]
    assert detector.utterance_start_frame == detector.earliest_needed_frame == 654
    assert not UtteranceEnd(1, "silence").is_continued


def test_longer_utterances_need_shorter_pauses():
    def pause(chunks, **changes):
        detector = endpointer(max_utterance_frames=2000)
        feed_runs(detector, (chunks, SPEECH))
        *_, (n_chunks, ended) = feed_runs(detector, (40, SILENCE), **changes)
        assert ended.reason == ("sentence" if changes else "silence")
        return n_chunks

    assert [pause(chunks) for chunks in (100, 280, 400, 500, 600)] == [30, 30, 20, 11, 4]
    assert [pause(chunks, sentence_ended=True) for chunks in (280, 500, 600)] == [10, 4, 4]


def test_flush_ends_the_utterance_and_the_next_one_starts_there():
    detector = endpointer()
    feed_runs(detector, (50, SPEECH))
    assert detector.flush(162) == [UtteranceEnd(162, "flush")]
    assert detector.flush(162) == []
    assert (detector.utterance_start_frame, detector.earliest_needed_frame) == (None, 162)
    assert feed_runs(detector, (10, SPEECH)) == [(4, UtteranceStart(162))]
    assert detector.close(193) == [UtteranceEnd(193, "close")]


def test_pause_out_of_range_is_refused():
    for option, value in {"sentence_pause_s": 0.0, "pause_s": 11.0}.items():
        with pytest.raises(OptionError, match=f"{option}="):
            endpointer(**{option: value})


levels = st.sampled_from([0.0, 0.1, 0.4, 0.6, 1.0])
runs = st.lists(st.tuples(levels, st.integers(1, 200), st.booleans()), max_size=20)
pauses = st.sampled_from([0.1, 0.32, 0.5, 1.0, 2.0])
limits = st.sampled_from([500, 1250, MAX_UTTERANCE_FRAMES])
vads = st.builds(
    VadOptions,
    min_speech_s=st.sampled_from([0.0, 0.1, 1.0]),
    speech_pad_s=st.sampled_from([0.0, 0.1, 0.4]),
)


def flatten(runs):
    return [(level, ended) for level, chunks, ended in runs for _ in range(chunks)]


@given(runs=runs, vad=vads, pause_s=pauses, limit=limits)
def test_short_utterances_without_sentences_are_the_regions_of_the_recording(runs, vad, pause_s, limit):
    detector = Endpointer(vad, sentence_pause_s=0.1, pause_s=pause_s, max_utterance_frames=limit)
    probabilities = [level for level, _ in flatten(runs)]
    frames = len(probabilities) * CHUNK_SAMPLES // 160
    endpoints = [
        event for p in probabilities for event in detector.feed(p, sentence_ended=False)
    ] + detector.close(frames)
    options = VadOptions(
        min_speech_s=vad.min_speech_s,
        speech_pad_s=min(vad.speech_pad_s, pause_s / 2),
        min_silence_s=pause_s,
        max_speech_s=limit / 100,
    )
    regions = RegionTracker(options)
    expected = regions.feed(probabilities) + regions.flush(frames)
    assume(all(end - start + 100 * pause_s <= limit / 2 for start, end in expected))
    assert [event.frame for event in endpoints] == [edge for region in expected for edge in region]


@given(
    runs=runs,
    vad=vads,
    pause_s=pauses,
    sentence_pause_s=pauses,
    limit=limits,
    flushes=st.sets(st.integers(0, 900)),
)
def test_utterances_are_ordered_bounded_and_cover_all_speech(
    runs, vad, pause_s, sentence_pause_s, limit, flushes
):
    detector = Endpointer(vad, sentence_pause_s=sentence_pause_s, pause_s=pause_s, max_utterance_frames=limit)
    endpoints_so_far, chunks = [], flatten(runs)
    for n_chunks, (level, ended) in enumerate(chunks, 1):
        needed, frames = detector.earliest_needed_frame, n_chunks * CHUNK_SAMPLES // 160
        endpoints = detector.feed(level, sentence_ended=ended)
        if n_chunks in flushes:
            endpoints += detector.flush(frames)
        assert all(needed <= event.frame <= frames for event in endpoints)
        assert needed <= detector.earliest_needed_frame <= frames
        endpoints_so_far += endpoints
        inside = bool(endpoints_so_far) and isinstance(endpoints_so_far[-1], UtteranceStart)
        assert detector.utterance_start_frame == (endpoints_so_far[-1].frame if inside else None)
    endpoints_so_far += detector.close(len(chunks) * CHUNK_SAMPLES // 160)
    assert all(
        isinstance(a, UtteranceStart) != isinstance(b, UtteranceStart) for a, b in pairwise(endpoints_so_far)
    )
    assert not endpoints_so_far or isinstance(endpoints_so_far[-1], UtteranceEnd)
    frames = [event.frame for event in endpoints_so_far]
    assert frames == sorted(frames)
    spans = list(zip(frames[::2], frames[1::2], strict=True))
    assert all(0 < end - start <= limit for start, end in spans)
    covered = {frame for start, end in spans for frame in range(start, end)}
    offset = 0
    for level, chunks, _ in runs:
        flushed = any(offset <= flush <= offset + chunks for flush in flushes)
        if level > 0.5 and chunks * 0.032 >= vad.min_speech_s and not flushed:
            assert covered.issuperset(range(offset * 16 // 5, (offset + chunks) * 16 // 5))
        offset += chunks
