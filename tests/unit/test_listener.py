"""Speech found while a recording is read: packs as soon as they are certain, whatever the blocks, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.speech_detector import AmplitudeSpeechDetector, noise_and_silence, split_at
from harken.audio import log_mel
from harken.audio.vad import CHUNK_SAMPLES, VadOptions
from harken.contract import Floats
from harken.errors import AudioError
from harken.transcribe import chunking, mel_windows
from harken.transcribe.chunking import ClipRange, FrameSpans, PackedSpeech, SpeechSegmenter, total_frames
from harken.transcribe.mel_windows import MelWindows
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, WINDOW_SAMPLES

OPTIONS = VadOptions()
WHOLE: list[ClipRange] = [(0, None)]
WINDOW_FRAMES = 3000


pytestmark = pytest.mark.usefixtures("amplitude_vad")


def read(
    its_blocks: Iterator[Floats], clips: Sequence[ClipRange] = WHOLE, window_frames: int = WINDOW_FRAMES
) -> tuple[SpeechSegmenter, list[tuple[FrameSpans, Floats]]]:
    """All packs of a recording, each with its window."""
    its = SpeechSegmenter(its_blocks, OPTIONS)
    mel = MelWindows(its.blocks(), n_mels=8, window_frames=window_frames)
    packs = []
    for spans in its.packed_spans(mel, clips, window_frames):
        window, frames = PackedSpeech(mel, spans).window(0)
        assert frames == total_frames(spans)  # nothing that is needed has been forgotten
        packs.append((spans, window))
    return its, packs


class TestClips:
    def spans(
        self, samples: Floats, *clips: ClipRange, block_samples: int = WINDOW_SAMPLES
    ) -> list[FrameSpans]:
        cut = split_at(samples, range(block_samples, len(samples), block_samples))
        return [spans for spans, _ in read(iter(cut), clips)[1]]

    @pytest.mark.parametrize("block_samples", [512, 16_000, WINDOW_SAMPLES])
    def test_a_clip_without_speech_takes_nothing_from_the_next(self, block_samples: int) -> None:
        found = self.spans(noise_and_silence(0, 6, 4, 10), (0, 200), (600, 1000), block_samples=block_samples)
        assert found == [((600, 1000),)]

    @pytest.mark.parametrize("block_samples", [512, 16_000, WINDOW_SAMPLES])
    def test_speech_that_goes_through_several_clips_is_in_each(self, block_samples: int) -> None:
        clips = [(0, 100), (150, 200), (200, 450), (2000, 3000)]
        found = self.spans(noise_and_silence(4, 26), *clips, block_samples=block_samples)
        assert found == [((0, 100),), ((150, 200),), ((200, 440),)]

    def test_speech_outside_of_all_clips_is_left_out(self) -> None:
        assert self.spans(noise_and_silence(2, 10, 2, 10, 2), (300, 1100), (1100, 1300)) == [((1160, 1300),)]

    def test_no_more_is_read_than_the_last_clip_takes(self) -> None:
        taken: list[int] = []

        def counted() -> Iterator[Floats]:
            for i in range(100):
                taken.append(i)
                yield noise_and_silence(0, 30)

        read(counted(), [(0, 100), (200, 500)])
        assert len(taken) == 1


@pytest.mark.parametrize("samples", [1, 100, CHUNK_SAMPLES - 1, CHUNK_SAMPLES, 3 * CHUNK_SAMPLES])
def test_a_recording_too_short_to_be_speech_has_no_packs(samples: int) -> None:
    its, packs = read(iter([noise_and_silence(1)[:samples]]))
    assert (packs, its.regions) == ([], [])
    assert len(its.probabilities) == -(-samples // CHUNK_SAMPLES)


@pytest.mark.parametrize("samples", [2048, 2100, 5000, 15_999])
def test_a_short_recording_of_speech_is_one_pack_to_its_last_frame(samples: int) -> None:
    assert [spans for spans, _ in read(iter([noise_and_silence(1)[:samples]]))[1]] == [
        ((0, samples // HOP_SAMPLES),)
    ]


def test_speech_at_the_very_end_is_in_a_pack() -> None:
    samples = noise_and_silence(0, 50, 0.15)
    its, packs = read(iter([samples]))
    assert [spans for spans, _ in packs] == [((4958, 5015),)]
    assert its.word_regions(4960, 5015) == [(4993, 5015)]


def test_what_a_recording_said_before_it_broke_off_is_in_packs() -> None:
    def breaking() -> Iterator[Floats]:
        yield noise_and_silence(2)
        raise AudioError("talk.mp3: cut short")

    _, packs = read(breaking())
    assert [spans for spans, _ in packs] == [((0, 200),)]


@pytest.mark.parametrize("onset", [0.3, 0.5])
def test_words_are_looked_for_in_the_same_speech_as_windows(
    monkeypatch: pytest.MonkeyPatch, onset: float
) -> None:
    class Doubtful(AmplitudeSpeechDetector):
        def feed(self, samples: Floats) -> Floats:
            return np.float32(0.4) * super().feed(samples)

    monkeypatch.setattr(chunking, "SpeechDetector", Doubtful)
    its = SpeechSegmenter(iter([noise_and_silence(0, 3, 1, 3)]), VadOptions(threshold=onset, min_speech_s=0.05))
    for _ in its.blocks():
        pass
    assert bool(its.regions) == bool(its.word_regions(0, 700)) == (onset == 0.3)


def test_pauses_between_words_are_silence_only_for_words() -> None:
    its = SpeechSegmenter(iter([noise_and_silence(1, 0.5, 1, 3)]), OPTIONS)
    for _ in its.blocks():
        pass
    assert its.regions == [(0, 292)]
    assert its.word_regions(0, 300) == [(0, 107), (142, 257)]
    assert its.word_regions(200, 300) == [(0, 107), (142, 257)]  # one more, for words that reach out


parts = st.lists(st.tuples(st.sampled_from([0.2, 1.5, 4.0]), st.sampled_from([0.2, 1.2, 31.0])), max_size=4)
some_clips = st.sampled_from([WHOLE, WHOLE, [(0, 150), (300, 400), (400, None)], [(100, 101), (2000, 3500)]])


@settings(max_examples=40)
@given(parts=parts, clips=some_clips, data=st.data())
@example(parts=[(0.2, 4.0), (4.0, 31.0)], clips=[(0, 150), (300, 400), (400, None)], data=None)
def test_packs_and_their_windows_do_not_depend_on_how_the_samples_are_cut(
    parts: list[tuple[float, float]], clips: list[ClipRange], data: st.DataObject | None
) -> None:
    samples = noise_and_silence(0.0, 0.5, *[length_s for pair in parts for length_s in pair])
    points = (
        data.draw(st.lists(st.integers(0, len(samples)), max_size=6)) if data else range(0, len(samples), 700)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mel_windows, "LOOK_AHEAD_FRAMES", 60)
        _, expected = read(iter([samples]), clips, window_frames=300)
        _, found = read(iter(split_at(samples, points)), clips, window_frames=300)
    assert [spans for spans, _ in found] == [spans for spans, _ in expected]
    for (_, mel), (_, other) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mel, other)


def test_windows_of_a_short_recording_are_cut_out_of_its_log_mel() -> None:
    samples = noise_and_silence(1, 2, 1, 40, 1)
    mel = log_mel(samples, 8, padding_samples=WINDOW_SAMPLES)
    _, packs = read(iter([samples]))
    assert len(packs) == 2
    for spans, window in packs:
        expected = np.concatenate([mel[:, start:end] for start, end in spans], axis=1)
        np.testing.assert_array_equal(window[0, :, : total_frames(spans)], expected)


class QuickMel:
    """As `LogMel`, without the work."""

    ceiling = -10.0

    def __init__(self, n_mels: int) -> None:
        self.n_mels = n_mels

    def feed(self, samples: Floats) -> Floats:
        return np.full((self.n_mels, len(samples) // HOP_SAMPLES), -10, np.float32)

    def flush(self) -> Floats:
        return np.empty((self.n_mels, 0), np.float32)


@pytest.mark.parametrize(
    "minute",
    [
        pytest.param(noise_and_silence(0, 60), id="silence"),
        pytest.param(noise_and_silence(60), id="speech"),
        pytest.param(noise_and_silence(*[0.5, 19.5] * 3), id="words"),
    ],
)
def test_an_hour_takes_the_memory_of_twenty_minutes(monkeypatch: pytest.MonkeyPatch, minute: Floats) -> None:
    monkeypatch.setattr(mel_windows, "LogMel", QuickMel)

    def peak_bytes(minutes: int) -> int:
        its = SpeechSegmenter((minute for _ in range(minutes)), OPTIONS)
        mel = MelWindows(its.blocks(), n_mels=80, window_frames=WINDOW_FRAMES)
        tracemalloc.start()
        try:
            for spans in its.packed_spans(mel, WHOLE, WINDOW_FRAMES):
                PackedSpeech(mel, spans)
            assert mel.frames_read == minutes * 60 * FRAMES_PER_SECOND
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # Beside that, only what is known of speech: at most 16 bytes for 32 ms, which are 18 MB for ten hours.
    assert peak_bytes(60) < peak_bytes(20) + 16 * 60 * 60 * SAMPLE_RATE // CHUNK_SAMPLES
