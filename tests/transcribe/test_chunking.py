"""Chunking of recordings: packed windows, the map back to recording time, and speech found while samples are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.speech_detector import LoudIsSpeech, noise_and_silence
from harken.audio import log_mel
from harken.audio.vad import CHUNK_SAMPLES, VadOptions
from harken.contract import Floats
from harken.transcribe.chunking import (
    ClipRange,
    FrameSpan,
    FrameSpans,
    PackedSpeech,
    SpeechPacker,
    SpeechSegmenter,
    TimeMap,
    total_frames,
)
from harken.transcribe.mel_windows import MelWindows
from harken.types import HOP_SAMPLES, WINDOW_SAMPLES

OPTIONS = VadOptions()
WHOLE: list[ClipRange] = [(0, None)]
WINDOW_FRAMES = 3000
SAMPLES = noise_and_silence(5)
MEL = log_mel(SAMPLES, 8, padding_samples=WINDOW_SAMPLES)

gaps_and_lengths = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 250)), max_size=30)


def regions_of(gaps_and_lengths: list[tuple[int, int]]) -> list[FrameSpan]:
    regions, end = [], 0
    for gap, length in gaps_and_lengths:
        regions.append((end + gap, end + gap + length))
        end += gap + length
    return regions


class TestTimeMap:
    @given(steps=gaps_and_lengths.filter(bool), data=st.data())
    def test_frames_map_to_those_they_were_packed_from(
        self, steps: list[tuple[int, int]], data: st.DataObject
    ) -> None:
        spans = tuple(regions_of([(gap + 1, length) for gap, length in steps]))
        packed = [frame for start, end in spans for frame in range(start, end)]
        time_map = TimeMap(spans)
        frame = data.draw(st.integers(0, len(packed)))
        assert time_map.to_recording_start(frame) == [*packed, packed[-1] + 1][frame]
        assert time_map.to_recording_end(frame) == [packed[0], *(before + 1 for before in packed)][frame]
        assert time_map.to_recording_end(frame) <= time_map.to_recording_start(frame)
        assert total_frames(time_map.recording_spans(frame, len(packed))) == len(packed) - frame


def mel_of_samples() -> MelWindows:
    return MelWindows(iter([SAMPLES]), n_mels=8, window_frames=120)


class TestPackedSpeech:
    spans = ((100, 140), (300, 350))

    @pytest.mark.parametrize(("offset", "frames"), [(0, 90), (39, 51), (41, 49), (89, 1), (90, 0)])
    def test_window_has_the_frames_of_the_spans_from_an_offset_on(self, offset: int, frames: int) -> None:
        mel, size = PackedSpeech(mel_of_samples(), self.spans).window(offset)
        assert mel.shape == (1, 8, 120)
        assert size == frames
        expected = np.concatenate([MEL[:, start:end] for start, end in self.spans], axis=1)[:, offset:]
        np.testing.assert_array_equal(mel[0, :, :size], expected)
        assert not mel[..., size:].any()


def pack(regions: Iterable[FrameSpan]) -> list[FrameSpans]:
    """Return the windows of at most 100 frames that regions are packed into."""
    packer = SpeechPacker(100, max_gap_frames=10, flush_silence_frames=300)
    return [window for region in regions for window in packer.add(region)] + packer.flush()


class TestSpeechPacker:
    @pytest.mark.parametrize(
        ("regions", "windows"),
        [
            ([(0, 50), (100, 130)], [((0, 50), (100, 130))]),  # the silence between them is left out
            ([(0, 50), (60, 70)], [((0, 70),)]),  # the silence between them is short
            ([(0, 50), (100, 151)], [((0, 50),), ((100, 151),)]),  # one frame too many
            ([(0, 50), (55, 101)], [((0, 50),), ((55, 101),)]),  # too long together with the silence
            ([(0, 90), (200, 205), (206, 209)], [((0, 90), (200, 209))]),
            ([(0, 250)], [((0, 100),), ((100, 200),), ((200, 250),)]),  # longer than a window
            ([(0, 20), (321, 330)], [((0, 20),), ((321, 330),)]),  # too far apart
        ],
    )
    def test_regions_are_packed_into_windows(self, regions: list[FrameSpan], windows: list[FrameSpans]) -> None:
        assert pack(regions) == windows

    def test_window_is_given_out_after_enough_silence(self) -> None:
        packer = SpeechPacker(100, max_gap_frames=10, flush_silence_frames=300)
        assert packer.add((5, 60)) == []
        assert packer.start_frame == 5
        assert packer.advance_to(360) == []
        assert packer.advance_to(361) == [((5, 60),)]
        assert packer.start_frame is None
        assert packer.advance_to(5000) == []
        assert packer.flush() == []

    @given(steps=gaps_and_lengths)
    def test_windows_have_all_speech_and_only_short_gaps(self, steps: list[tuple[int, int]]) -> None:
        regions = regions_of(steps)
        windows = pack(regions)
        packed = [frame for window in windows for start, end in window for frame in range(start, end)]
        assert packed == sorted(set(packed))
        speech = {frame for start, end in regions for frame in range(start, end)}
        assert speech <= set(packed)
        gaps = {frame for (_, a), (b, _) in pairwise(regions) if b - a <= 10 for frame in range(a, b)}
        assert set(packed) - speech <= gaps
        assert all(0 < total_frames(window) <= 100 for window in windows)
        assert all(b[0] - a[1] > 10 for window in windows for a, b in pairwise(window))


def read(
    sample_blocks: Iterator[Floats],
    clips: Sequence[ClipRange] = WHOLE,
    window_frames: int = WINDOW_FRAMES,
    **look_ahead: int,
) -> tuple[SpeechSegmenter, list[tuple[FrameSpans, Floats]]]:
    """Read a whole recording, and return its segmenter and the spans and the mel of every packed window."""
    segmenter = SpeechSegmenter(sample_blocks, OPTIONS, LoudIsSpeech)
    windows = MelWindows(segmenter.blocks(), 8, window_frames, **look_ahead)
    packed = []
    for spans in filter(None, segmenter.packed_spans(windows, clips, window_frames)):
        mel, frames = PackedSpeech(windows, spans).window(0)
        assert frames == total_frames(spans), "frames that are needed have been discarded"
        packed.append((spans, mel))
    return segmenter, packed


class TestClips:
    def spans(self, samples: Floats, *clips: ClipRange) -> list[FrameSpans]:
        return [spans for spans, _ in read(iter([samples]), clips)[1]]

    def test_clip_without_speech_does_not_change_the_next(self) -> None:
        assert self.spans(noise_and_silence(0, 6, 4, 10), (0, 200), (600, 1000)) == [((600, 1000),)]

    def test_speech_across_several_clips_is_in_each(self) -> None:
        clips = [(0, 100), (150, 200), (200, 450), (2000, 3000)]
        assert self.spans(noise_and_silence(4, 26), *clips) == [((0, 100),), ((150, 200),), ((200, 440),)]

    def test_speech_outside_of_all_clips_is_left_out(self) -> None:
        assert self.spans(noise_and_silence(2, 10, 2, 10, 2), (300, 1100), (1100, 1300)) == [((1160, 1300),)]

    def test_blocks_behind_the_last_clip_are_not_read(self) -> None:
        n_blocks_read = 0

        def counted() -> Iterator[Floats]:
            nonlocal n_blocks_read
            for _ in range(100):
                n_blocks_read += 1
                yield noise_and_silence(0, 30)

        read(counted(), [(0, 100), (200, 500)])
        assert n_blocks_read == 1


def test_a_short_recording_is_packed_to_its_last_frame_or_has_no_windows() -> None:
    for n_samples in (1, CHUNK_SAMPLES - 1, CHUNK_SAMPLES, 3 * CHUNK_SAMPLES, 2048, 2100, 5000, 15_999):
        segmenter, packed = read(iter([noise_and_silence(1)[:n_samples]]))
        speech = [((0, n_samples // HOP_SAMPLES),)] if n_samples > 4 * CHUNK_SAMPLES - 1 else []
        assert [spans for spans, _ in packed] == speech
        assert len(segmenter.probabilities) == -(-n_samples // CHUNK_SAMPLES)


def test_speech_at_the_end_is_packed() -> None:
    samples = noise_and_silence(0, 50, 0.15)
    segmenter, packed = read(iter([samples]))
    assert [spans for spans, _ in packed] == [((4958, 5015),)]
    assert segmenter.word_regions(4960, 5015) == [(4993, 5015)]


@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_word_regions_use_the_threshold_of_the_windows(threshold: float) -> None:
    class LowProbability(LoudIsSpeech):
        def feed(self, samples: Floats) -> Floats:
            return np.float32(0.4) * super().feed(samples)

    segmenter = SpeechSegmenter(
        iter([noise_and_silence(0, 3, 1, 3)]),
        VadOptions(threshold=threshold, min_speech_s=0.05),
        LowProbability,
    )
    for _ in segmenter.blocks():
        pass
    assert bool(segmenter.regions) == bool(segmenter.word_regions(0, 700)) == (threshold == 0.3)


def test_pauses_between_words_are_silence_in_word_regions_only() -> None:
    segmenter = SpeechSegmenter(iter([noise_and_silence(1, 0.5, 1, 3)]), OPTIONS, LoudIsSpeech)
    for _ in segmenter.blocks():
        pass
    assert segmenter.regions == [(0, 292)]
    assert segmenter.word_regions(0, 300) == [(0, 107), (142, 257)]
    # With the region before, for words that begin before the stretch.
    assert segmenter.word_regions(200, 300) == [(0, 107), (142, 257)]
