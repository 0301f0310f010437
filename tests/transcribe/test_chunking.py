"""Windows of a recording: speech found and packed while samples are read, its map back, its log-mel, its memory."""

import tracemalloc
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.silent_mel import SilentMel
from fakes.speech_detector import LoudIsSpeech, noise_and_silence, split_at
from harken.audio import log_mel, pad_or_trim
from harken.audio.vad import CHUNK_SAMPLES, VadOptions
from harken.errors import AudioError
from harken.transcribe import mel_windows
from harken.transcribe.chunking import (
    MAX_GAP_FRAMES,
    ClipSource,
    PackedSpeech,
    SpeechPacker,
    SpeechSegmenter,
    total_frames,
)
from harken.transcribe.mel_windows import MelWindows
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, WINDOW_FRAMES, WINDOW_SAMPLES

# --- speech packed into windows -----------------------------------------------------------------------------

gaps_and_lengths = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 250)), max_size=30)


def regions_of(gaps_and_lengths):
    edges = [*accumulate(length for pair in gaps_and_lengths for length in pair)]
    return list(zip(edges[::2], edges[1::2], strict=True))


@given(steps=gaps_and_lengths)
@example(steps=[(0, 50), (5, 46), (MAX_GAP_FRAMES, 10), (300, 9), (301, 250)])
@example(steps=[(0, 30), (MAX_GAP_FRAMES + 1, 50), (20, 5)])
def test_windows_have_all_speech_only_short_gaps_and_as_many_whole_regions_as_fit(steps):
    regions = regions_of(steps)
    packer = SpeechPacker(100, flush_silence_frames=300)
    windows = [window for region in regions for window in packer.add(region)] + packer.flush()
    packed = [frame for window in windows for start, end in window for frame in range(start, end)]
    assert packed == sorted(set(packed))
    speech = {frame for start, end in regions for frame in range(start, end)}
    gaps = {frame for (_, a), (b, _) in pairwise(regions) if b - a <= MAX_GAP_FRAMES for frame in range(a, b)}
    assert speech <= set(packed) <= speech | gaps
    assert all(0 < total_frames(window) <= 100 for window in windows)
    assert all(b[0] - a[1] > MAX_GAP_FRAMES for window in windows for a, b in pairwise(window))
    starts = {start for start, _ in regions}
    for window, following in pairwise(windows):
        end, start = window[-1][1], following[0][0]
        length = next(min(100, b - start) for a, b in regions if a <= start < b)
        joined = start - end if start - end <= MAX_GAP_FRAMES else 0
        assert start - end > 300 or total_frames(window) + joined + length > 100, "it would have fitted"
        assert start in starts or total_frames(window) == 100 or end == start, "only long regions are cut"


def test_window_is_given_out_after_enough_silence():
    packer = SpeechPacker(100, flush_silence_frames=300)
    assert packer.add((5, 60)) == []
    assert packer.start_frame == 5
    assert packer.advance_to(360) == []
    assert packer.advance_to(361) == [((5, 60),)]
    assert packer.start_frame is None
    assert packer.advance_to(5000) == packer.flush() == []


@given(steps=gaps_and_lengths.filter(bool), data=st.data())
def test_frames_of_a_window_map_to_those_they_were_packed_from(steps, data):
    spans = tuple(regions_of([(gap + 1, length) for gap, length in steps]))
    packed = [frame for start, end in spans for frame in range(start, end)]
    source = PackedSpeech(MelWindows(iter([]), 8, 120), spans)
    frame = data.draw(st.integers(0, len(packed)))
    assert 100 * source.start_s(frame) == pytest.approx([*packed, packed[-1] + 1][frame])
    assert 100 * source.end_s(frame) == pytest.approx([packed[0], *(before + 1 for before in packed)][frame])
    assert source.end_s(frame) <= source.start_s(frame)
    assert total_frames(source.spans(frame, len(packed))) == len(packed) - frame


def test_window_has_the_frames_of_its_spans_from_an_offset_on():
    samples, spans = noise_and_silence(5), ((100, 140), (300, 350))
    whole = log_mel(samples, 8, padding_samples=WINDOW_SAMPLES)
    expected = np.concatenate([whole[:, start:end] for start, end in spans], axis=1)
    for offset in (0, 39, 41, 89, 90):
        mel, size = PackedSpeech(MelWindows(iter([samples]), 8, 120), spans).window(offset)
        assert size == 90 - offset
        np.testing.assert_array_equal(mel, pad_or_trim(expected[:, offset:], 120)[None])


# --- speech found while samples are read --------------------------------------------------------------------


def read(samples, *clips, options=None, apart=False):
    """Read a whole recording, and return its segmenter and the spans of every packed window."""
    blocks = iter([samples]) if isinstance(samples, np.ndarray) else samples
    segmenter, packed = SpeechSegmenter(blocks, options or VadOptions(), LoudIsSpeech), []
    windows = MelWindows(segmenter.blocks(), 8, WINDOW_FRAMES)
    every_window = segmenter.packed_spans(windows, clips or [(0, None)], WINDOW_FRAMES, apart=apart)
    for spans in filter(None, every_window):
        _, frames = PackedSpeech(windows, spans).window(0)
        assert frames == total_frames(spans), "frames that are needed have been discarded"
        packed.append(spans)
    return segmenter, packed


@pytest.mark.parametrize(
    ("lengths_s", "clips", "spans"),
    [
        ((0, 6, 4, 10), [(0, 200), (600, 1000)], [(600, 1000)]),  # a clip without speech
        # Speech across several clips, outside of all, and at the end of the recording.
        ((4, 26), [(0, 100), (150, 200), (200, 450), (2000, 3000)], [(0, 100), (150, 200), (200, 440)]),
        ((2, 10, 2, 10, 2), [(300, 1100), (1100, 1300)], [(1160, 1300)]),
        ((0, 50, 0.15), [], [(4958, 5015)]),
    ],
)
def test_speech_of_clips_is_packed(lengths_s, clips, spans):
    assert read(noise_and_silence(*lengths_s), *clips)[1] == [(span,) for span in spans]


def test_regions_of_which_each_may_have_its_own_language_are_windows_apart():
    (segmenter, together), (_, apart) = (
        read(noise_and_silence(2, 3, 2, 3, 40), apart=apart) for apart in (False, True)
    )
    assert together[0] == tuple(segmenter.regions[:2])
    assert apart[:2] == [(region,) for region in segmenter.regions[:2]]


def test_blocks_behind_the_last_clip_are_not_read_and_short_recordings_packed_to_their_last_frame():
    blocks = iter([noise_and_silence(0, 30)] * 100)
    read(blocks, (0, 100), (200, 500))
    assert len([*blocks]) == 99
    for n_samples in (1, CHUNK_SAMPLES - 1, CHUNK_SAMPLES, 3 * CHUNK_SAMPLES, 2048, 2100, 5000, 15_999):
        segmenter, packed = read(noise_and_silence(1)[:n_samples])
        assert packed == ([((0, n_samples // HOP_SAMPLES),)] if n_samples > 4 * CHUNK_SAMPLES - 1 else [])
        assert len(segmenter.probabilities) == -(-n_samples // CHUNK_SAMPLES)


def test_pauses_between_words_are_silence_in_word_regions_only():
    segmenter, _ = read(noise_and_silence(1, 0.5, 1, 3))
    assert segmenter.regions == [(0, 292)]
    assert segmenter.word_regions(0, 300) == [(0, 107), (142, 257)]
    # With the region before, for words that begin before the stretch.
    assert segmenter.word_regions(200, 300) == [(0, 107), (142, 257)]


def test_word_regions_use_the_threshold_of_the_windows(monkeypatch):
    feed = LoudIsSpeech.feed
    monkeypatch.setattr(LoudIsSpeech, "feed", lambda *fed: np.float32(0.4) * feed(*fed))
    for threshold in (0.3, 0.5):
        options = VadOptions(threshold=threshold, min_speech_s=0.05)
        segmenter, _ = read(noise_and_silence(0, 3, 1, 3), options=options)
        assert bool(segmenter.regions) == bool(segmenter.word_regions(0, 700)) == (threshold == 0.3)


# --- log-mel ------------------------------------------------------------------------------------------------

LOOK_AHEAD_FRAMES = 60
rng = np.random.default_rng(3)
# From 100 dB below full scale up to it, so that every window shows which peak it was normalised with.
RECORDING = (rng.standard_normal(3 * SAMPLE_RATE) * np.logspace(-5, 0, 3 * SAMPLE_RATE)).astype(np.float32)


@settings(max_examples=40)
@given(
    points=st.lists(st.integers(0, len(RECORDING)), max_size=8),
    seeks=st.lists(st.integers(0, 320), min_size=1, max_size=6).map(sorted),
)
def test_windows_do_not_depend_on_block_sizes(points, seeks):
    one, other = (
        MelWindows(iter(split_at(RECORDING, cuts)), 8, 48, look_ahead_frames=LOOK_AHEAD_FRAMES)
        for cuts in (points, range(160, len(RECORDING), 160))
    )
    for seek in seeks:
        (mel, frames), (expected, expected_frames) = one.window(seek, None), other.window(seek, None)
        assert frames == expected_frames
        np.testing.assert_array_equal(mel, expected)


def test_window_is_normalised_with_the_peak_before_it_and_in_its_look_ahead():
    quiet = rng.standard_normal(5 * SAMPLE_RATE).astype(np.float32) * np.float32(1e-4)
    bang = slice(2 * SAMPLE_RATE, 2 * SAMPLE_RATE + 800)

    def floor_at(seek, with_bang):
        samples = quiet.copy()
        samples[bang] *= 1e5 if with_bang else 1
        windows = MelWindows(iter([samples[:200], samples[200:]]), 8, 48, look_ahead_frames=LOOK_AHEAD_FRAMES)
        return float(windows.window(seek, None)[0].min())

    before, ahead, behind = 0, 200 - 48 - LOOK_AHEAD_FRAMES + 10, 300
    assert floor_at(before, with_bang=True) == floor_at(before, with_bang=False)
    for seek in (ahead, behind):
        assert floor_at(seek, with_bang=True) > floor_at(seek, with_bang=False) + 0.5


@pytest.mark.parametrize("n_mels", [80, 128])
def test_windows_of_a_short_recording_equal_its_log_mel(n_mels):
    whole = log_mel(RECORDING, n_mels, padding_samples=WINDOW_SAMPLES)[:, : len(RECORDING) // HOP_SAMPLES]
    windows = MelWindows(iter(split_at(RECORDING, [7, 20_000])), n_mels, window_frames=120)
    for seek in (0, 33, 180, 299):
        mel, frames = windows.window(seek, None)
        assert frames == min(120, 300 - seek)
        np.testing.assert_array_equal(mel[0], pad_or_trim(whole[:, seek : seek + frames], 120))


def test_memory_does_not_grow_with_what_is_read_before_the_first_window(monkeypatch):
    monkeypatch.setattr(mel_windows, "LogMel", SilentMel)
    block = np.zeros(WINDOW_SAMPLES, np.float32)

    def peak_bytes(minutes):
        windows = MelWindows((block for _ in range(2 * minutes)), n_mels=80, window_frames=3000)
        source = ClipSource(windows, 0, None)
        tracemalloc.start()
        try:
            seek = (minutes * 60 - 100) * FRAMES_PER_SECOND
            while size := source.window(seek)[1]:
                seek += size
            assert seek == windows.frames_read == minutes * 60 * FRAMES_PER_SECOND
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(120) < 1.1 * peak_bytes(10)


def test_frames_before_a_read_error_are_delivered_and_it_is_reported_where_it_is_reached():
    broken = AudioError("talk.mp3: at 1.00 s: the file is cut short or damaged")

    def blocks(n_readable):
        for _ in range(n_readable):
            yield RECORDING[: SAMPLE_RATE // 2]
        raise broken

    windows = MelWindows(blocks(2), n_mels=8, window_frames=48)
    assert [windows.window(seek, None)[1] for seek in (0, 48, 96, 100)] == [48, 48, 4, 0]
    assert windows.failure is broken
    with pytest.raises(AudioError, match="cut short"):
        MelWindows(blocks(0), n_mels=8, window_frames=48).window(0, None)
    unreached = MelWindows(blocks(2), 8, 48, look_ahead_frames=10)
    assert (unreached.window(0, 40)[1], unreached.failure) == (40, None)
