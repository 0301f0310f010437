"""What a stream hears before any word: where utterances begin and end, signal to noise; and what it keeps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harken.audio.vad import CHUNK_SAMPLES, RegionTracker, VadOptions
from harken.streaming.speech import Endpoint, Endpointer, SnrEstimator, is_noisy
from harken.streaming.stream import SampleBuffer

# --- utterances ---------------------------------------------------------------------------------------------

# Chunks of 3.2 frames, ten of them 32 frames; padding of 16 frames.
VAD = VadOptions(speech_pad_s=0.16)
SPEECH, SILENCE = 0.9, 0.1


def endpointer(**changes):
    return Endpointer(
        VAD, **{"sentence_pause_s": 0.32, "pause_s": 0.96, "max_utterance_frames": 2500, **changes}
    )


def feed_runs(detector, *runs, sentence_ended=False):
    """Return the endpoints in runs of (chunks, probability), each with the number of chunks fed by then."""
    probabilities = [probability for chunks, probability in runs for _ in range(chunks)]
    return [
        (chunks, event)
        for chunks, probability in enumerate(probabilities, 1)
        for event in detector.feed(probability, sentence_ended=sentence_ended)
    ]


def test_shorter_pause_ends_a_sentence_and_no_sentence_ends_without_one():
    endpoints = feed_runs(endpointer(), (100, SILENCE), (50, SPEECH), (40, SILENCE), sentence_ended=True)
    assert endpoints == [(104, Endpoint(304)), (160, Endpoint(496, "sentence"))]
    detector = endpointer()
    feed_runs(detector, (50, SPEECH), (15, SILENCE))
    assert detector.feed(SILENCE, sentence_ended=True) == [Endpoint(176, "sentence")]
    assert detector.utterance_start_frame is None
    detector = endpointer()
    endpoints = feed_runs(detector, (50, SPEECH), (9, SILENCE), (50, SPEECH), sentence_ended=True)
    assert (endpoints, detector.utterance_start_frame) == ([(4, Endpoint(0))], 0)


def test_long_speech_is_split_at_its_longest_silence():
    detector = endpointer(max_utterance_frames=1000)
    endpoints = feed_runs(detector, (200, SPEECH), (9, SILENCE), (60, SPEECH), (3, SILENCE), (60, SPEECH))
    assert endpoints == [(4, Endpoint(0)), (308, Endpoint(654, "limit")), (308, Endpoint(654))]
    assert [event.is_continued for _, event in endpoints if event.reason] == [True]
    assert detector.utterance_start_frame == detector.earliest_needed_frame == 654
    assert not Endpoint(1, "silence").is_continued


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
    assert detector.end(162, "flush") == [Endpoint(162, "flush")]
    assert detector.end(162, "flush") == []
    assert (detector.utterance_start_frame, detector.earliest_needed_frame) == (None, 162)
    assert feed_runs(detector, (10, SPEECH)) == [(4, Endpoint(162))]
    assert detector.end(193, "close") == [Endpoint(193, "close")]


levels = st.sampled_from([0.0, 0.1, 0.4, 0.6, 1.0])
runs = st.lists(st.tuples(levels, st.integers(1, 200), st.booleans()), max_size=20)
pauses = st.sampled_from([0.1, 0.32, 0.5, 1.0, 2.0])
limits = st.sampled_from([500, 1250, 2500])
speech_s, pads_s = st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.0, 0.1, 0.4])
vads = st.builds(VadOptions, min_speech_s=speech_s, speech_pad_s=pads_s)


def flatten(runs):
    return [(level, ended) for level, chunks, ended in runs for _ in range(chunks)]


@given(runs=runs, vad=vads, pause_s=pauses, limit=limits)
def test_short_utterances_without_sentences_are_the_regions_of_the_recording(runs, vad, pause_s, limit):
    detector = Endpointer(vad, sentence_pause_s=0.1, pause_s=pause_s, max_utterance_frames=limit)
    probabilities = [level for level, _ in flatten(runs)]
    frames = len(probabilities) * CHUNK_SAMPLES // 160
    endpoints = [event for p in probabilities for event in detector.feed(p, sentence_ended=False)]
    endpoints += detector.end(frames, "close")
    pad_s = min(vad.speech_pad_s, pause_s / 2)
    regions = RegionTracker(replace(vad, speech_pad_s=pad_s, min_silence_s=pause_s, max_speech_s=limit / 100))
    expected = regions.feed(probabilities) + regions.flush(frames)
    assume(all(end - start + 100 * pause_s <= limit / 2 for start, end in expected))
    assert [event.frame for event in endpoints] == [edge for region in expected for edge in region]


@given(runs, vads, st.tuples(pauses, pauses), limits, st.sets(st.integers(0, 900)))
def test_utterances_are_ordered_bounded_and_cover_all_speech(runs, vad, pauses_s, limit, flushes):
    sentence_pause_s, pause_s = pauses_s
    detector = Endpointer(vad, sentence_pause_s=sentence_pause_s, pause_s=pause_s, max_utterance_frames=limit)
    endpoints_so_far, chunks = [], flatten(runs)
    for n_chunks, (level, ended) in enumerate(chunks, 1):
        needed, frames = detector.earliest_needed_frame, n_chunks * CHUNK_SAMPLES // 160
        endpoints = detector.feed(level, sentence_ended=ended)
        if n_chunks in flushes:
            endpoints += detector.end(frames, "flush")
        assert all(needed <= event.frame <= frames for event in endpoints)
        assert needed <= detector.earliest_needed_frame <= frames
        endpoints_so_far += endpoints
        inside = bool(endpoints_so_far) and not endpoints_so_far[-1].reason
        assert detector.utterance_start_frame == (endpoints_so_far[-1].frame if inside else None)
    endpoints_so_far += detector.end(len(chunks) * CHUNK_SAMPLES // 160, "close")
    ends = [event.reason is not None for event in endpoints_so_far]
    assert ends == [False, True] * (len(endpoints_so_far) // 2)
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


# --- signal to noise ----------------------------------------------------------------------------------------


def noise(chunks, power_db, seed=0):
    rng = np.random.default_rng(seed)
    return (10 ** (power_db / 20) * rng.standard_normal(chunks * CHUNK_SAMPLES)).astype(np.float32)


def snr_after(*parts, estimator=None):
    """Return the estimate after parts of (samples, 1 for speech or 0)."""
    estimator = estimator or SnrEstimator()
    for samples, speech in parts:
        for chunk in samples.reshape(-1, CHUNK_SAMPLES):
            estimator.feed(chunk, 0.95 * speech)
    return estimator.snr_db


@pytest.mark.parametrize("snr_db", [0, 5, 10, 20, 40])
def test_estimate_is_the_ratio_of_speech_to_noise(snr_db):
    speech = noise(100, -50 + snr_db) + noise(100, -50, seed=1)
    assert snr_after((noise(50, -50, seed=2), 0), (speech, 1)) == pytest.approx(snr_db, abs=1.5)


def test_gaps_between_words_suffice_for_the_noise_and_digital_silence_does_not_count():
    word, gap = noise(8, -20), noise(1, -50)
    assert snr_after(*[(word, 1), (gap, 1)] * 12) == pytest.approx(30, abs=1.5)
    muted = np.zeros(200 * CHUNK_SAMPLES, np.float32)
    speech = noise(20, -30), 1
    hum = noise(20, -40, seed=1), 0
    assert snr_after((muted, 0), speech, hum, (muted, 0), speech, hum) == pytest.approx(10, abs=1.5)


def test_noise_that_ended_decays():
    estimator = SnrEstimator()
    noisy = [(noise(200, -30), 0), (noise(100, -20), 1)]
    for parts, snr_db in ((noisy, 10), ([(noise(1900, -60), 0)], 40)):
        assert snr_after(*parts, estimator=estimator) == pytest.approx(snr_db, abs=1.5)


def test_a_stream_is_noisy_with_hysteresis():
    for snr_db, was_noisy, noisy in (
        *((None, False, False), (30.0, False, False), (5.0, False, True)),
        *((12.0, False, False), (12.0, True, True), (15.0, True, False)),
    ):
        assert is_noisy(snr_db, was_noisy) == noisy


# --- samples ------------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(0, 50), max_size=12),
    reads=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), min_size=12, max_size=12),
)
def test_samples_are_addressed_by_their_number_in_the_stream(lengths, reads):
    samples = np.arange(sum(lengths), dtype=np.float32)
    buffer, discarded = SampleBuffer(), 0
    for (first, length), block in zip(reads, np.split(samples, np.cumsum(lengths)), strict=False):
        buffer.add(block)
        start = discarded + first % (buffer.end - discarded + 1)
        np.testing.assert_array_equal(
            buffer.between(start, start + length), samples[: buffer.end][start : start + length]
        )
        buffer.discard_before(start)
        buffer.discard_before(discarded)
        discarded = start
        np.testing.assert_array_equal(buffer.between(start, buffer.end), samples[start : buffer.end])


def test_discarded_samples_are_freed():
    buffer = SampleBuffer()
    for _ in range(100):
        buffer.add(np.zeros(1000, np.float32))
        buffer.discard_before(buffer.end - 10)
    assert buffer.end == 100_000
    rest = buffer.between(buffer.end - 10, buffer.end)
    assert rest.base is not None
    assert len(rest.base) == 10, "a view would keep all samples"
    with pytest.raises(AssertionError, match="discarded"):
        buffer.between(buffer.end - 11, buffer.end)
