"""What windows slide over: a clip of the recording, or spans of speech side by side."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.speech_detector import noise_and_silence
from harken.audio import log_mel
from harken.transcribe.chunking import ClipSource, PackedSpeech
from harken.transcribe.mel_windows import MelWindows
from harken.types import WINDOW_SAMPLES

SAMPLES = noise_and_silence(5)
MEL = log_mel(SAMPLES, 8, padding_samples=WINDOW_SAMPLES)


def windows() -> MelWindows:
    return MelWindows(iter([SAMPLES]), n_mels=8, window_frames=120)


class TestClip:
    @pytest.mark.parametrize(("at", "frames"), [(0, 120), (30, 120), (200, 50), (249, 1)])
    def test_windows_end_with_it(self, at: int, frames: int) -> None:
        mel, size = ClipSource(windows(), 100, 350).window(at)
        assert size == frames
        np.testing.assert_array_equal(mel[0, :, :size], MEL[:, 100 + at : 100 + at + size])

    @pytest.mark.parametrize("at", [250, 400])
    def test_there_is_nothing_behind_it(self, at: int) -> None:
        assert ClipSource(windows(), 100, 350).window(at)[1] == 0

    def test_times_count_from_its_start(self) -> None:
        clip = ClipSource(windows(), 100, None)
        assert (clip.start_s(50), clip.end_s(50.5), clip.spans(20, 30)) == (1.5, 1.505, ((120, 130),))
        assert not clip.self_contained


class TestPack:
    spans = ((100, 140), (300, 350))

    @pytest.mark.parametrize(("at", "frames"), [(0, 90), (39, 51), (41, 49), (89, 1), (90, 0)])
    def test_windows_hold_what_is_left_of_it(self, at: int, frames: int) -> None:
        mel, size = PackedSpeech(windows(), self.spans).window(at)
        assert mel.shape == (1, 8, 120)
        assert size == frames
        expected = np.concatenate([MEL[:, start:end] for start, end in self.spans], axis=1)[:, at:]
        np.testing.assert_array_equal(mel[0, :, :size], expected)
        assert not mel[..., size:].any()

    def test_times_are_those_of_the_recording(self) -> None:
        pack = PackedSpeech(windows(), self.spans)
        assert [pack.start_s(at) for at in (0, 39, 40, 60, 90)] == [1.0, 1.39, 3.0, 3.2, 3.5]
        assert [pack.end_s(at) for at in (0, 39, 40, 60, 90)] == [1.0, 1.39, 1.4, 3.2, 3.5]
        assert pack.spans(30, 50) == ((130, 140), (300, 310))
        assert pack.self_contained

    def test_what_lies_before_it_is_forgotten_and_its_own_frames_are_kept(self) -> None:
        read = windows()
        pack = PackedSpeech(read, self.spans)
        expected = pack.window(0)[0].copy()
        read.discard_before(500)
        np.testing.assert_array_equal(pack.window(0)[0], expected)
        assert read.read_spans([(50, 120)])[0].shape == (8, 0)

    def test_how_loud_it_was_before_is_remembered(self) -> None:
        samples = SAMPLES.copy()
        samples[16_000:] *= 1e-4
        mel = log_mel(samples, 8, padding_samples=WINDOW_SAMPLES)
        read = MelWindows(iter([samples]), n_mels=8, window_frames=120)
        found = PackedSpeech(read, ((200, 260),)).window(0)[0]
        np.testing.assert_array_equal(found[0, :, :60], mel[:, 200:260])
