"""Log-mel windows of a stream: equal to those of the whole recording, in constant memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.silent_mel import SilentMel
from harken.audio import log_mel, pad_or_trim
from harken.contract import Floats
from harken.errors import AudioError
from harken.transcribe import mel_windows
from harken.transcribe.mel_windows import MelWindows
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, WINDOW_SAMPLES

WINDOW_FRAMES = 48
LOOK_AHEAD_FRAMES = 60
rng = np.random.default_rng(3)
# From 100 dB below full scale up to it, so that every window shows which peak it was normalised with.
RECORDING = (rng.standard_normal(3 * SAMPLE_RATE) * np.logspace(-5, 0, 3 * SAMPLE_RATE)).astype(np.float32)


def split_at(samples: Floats, points: Sequence[int]) -> Iterator[Floats]:
    yield from np.split(samples, sorted(points))


def all_windows(blocks: Iterator[Floats], seeks: Sequence[int]) -> list[tuple[Floats, int]]:
    windows = MelWindows(blocks, n_mels=8, window_frames=WINDOW_FRAMES, look_ahead_frames=LOOK_AHEAD_FRAMES)
    return [windows.window(seek, None) for seek in seeks]


@settings(max_examples=40)
@given(
    points=st.lists(st.integers(0, len(RECORDING)), max_size=8),
    seeks=st.lists(st.integers(0, 320), min_size=1, max_size=6).map(sorted),
)
def test_windows_do_not_depend_on_block_sizes(points: list[int], seeks: list[int]) -> None:
    expected = all_windows(split_at(RECORDING, range(160, len(RECORDING), 160)), seeks)
    for (mel, frames), (expected_mel, expected_frames) in zip(
        all_windows(split_at(RECORDING, points), seeks), expected, strict=True
    ):
        assert frames == expected_frames
        np.testing.assert_array_equal(mel, expected_mel)


def test_window_is_normalised_with_the_peak_before_it_and_in_its_look_ahead() -> None:
    quiet = rng.standard_normal(5 * SAMPLE_RATE).astype(np.float32) * np.float32(1e-4)
    bang = slice(2 * SAMPLE_RATE, 2 * SAMPLE_RATE + 800)

    def floor_at(seek: int, with_bang: bool) -> float:
        samples = quiet.copy()
        samples[bang] *= 1e5 if with_bang else 1
        blocks = iter([samples[:200], samples[200:]])
        windows = MelWindows(blocks, 8, WINDOW_FRAMES, look_ahead_frames=LOOK_AHEAD_FRAMES)
        return float(windows.window(seek, None)[0].min())

    before, ahead, behind = 0, 200 - WINDOW_FRAMES - LOOK_AHEAD_FRAMES + 10, 300
    assert floor_at(before, with_bang=True) == floor_at(before, with_bang=False)
    assert floor_at(ahead, with_bang=True) > floor_at(ahead, with_bang=False) + 0.5
    assert floor_at(behind, with_bang=True) > floor_at(behind, with_bang=False) + 0.5


@pytest.mark.parametrize("n_mels", [80, 128])
def test_windows_of_a_short_recording_equal_its_log_mel(n_mels: int) -> None:
    whole = log_mel(RECORDING, n_mels, padding_samples=WINDOW_SAMPLES)[:, : len(RECORDING) // HOP_SAMPLES]
    windows = MelWindows(split_at(RECORDING, [7, 20_000]), n_mels, window_frames=120)
    for seek in (0, 33, 180, 299):
        mel, frames = windows.window(seek, None)
        assert frames == min(120, 300 - seek)
        np.testing.assert_array_equal(mel[0], pad_or_trim(whole[:, seek : seek + frames], 120))


@pytest.mark.parametrize("end_only", [False, True])
def test_memory_does_not_grow_with_the_length_of_the_recording(
    monkeypatch: pytest.MonkeyPatch, end_only: bool
) -> None:
    monkeypatch.setattr(mel_windows, "LogMel", SilentMel)
    block = np.zeros(WINDOW_SAMPLES, np.float32)

    def peak_bytes(minutes: int) -> int:
        windows = MelWindows((block for _ in range(2 * minutes)), n_mels=80, window_frames=3000)
        tracemalloc.start()
        try:
            seek = (minutes * 60 - 100) * FRAMES_PER_SECOND if end_only else 0
            while size := windows.window(seek, None)[1]:
                seek += size
            assert seek == windows.frames_read == minutes * 60 * FRAMES_PER_SECOND
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(120) < 1.1 * peak_bytes(10)


class TestUnreadableRecording:
    broken = AudioError("talk.mp3: at 1.00 s: the file is cut short or damaged")

    def blocks(self, n_readable: int) -> Iterator[Floats]:
        for _ in range(n_readable):
            yield RECORDING[: SAMPLE_RATE // 2]
        raise self.broken

    def test_frames_before_the_error_are_delivered(self) -> None:
        windows = MelWindows(self.blocks(n_readable=2), n_mels=8, window_frames=WINDOW_FRAMES)
        assert [windows.window(seek, None)[1] for seek in (0, 48, 96, 100)] == [48, 48, 4, 0]
        assert windows.failure is self.broken

    def test_error_in_the_first_block_is_raised(self) -> None:
        windows = MelWindows(self.blocks(n_readable=0), n_mels=8, window_frames=WINDOW_FRAMES)
        with pytest.raises(AudioError, match="cut short"):
            windows.window(0, None)

    def test_error_that_is_not_reached_is_not_reported(self) -> None:
        windows = MelWindows(self.blocks(n_readable=2), 8, WINDOW_FRAMES, look_ahead_frames=10)
        assert windows.window(0, 40)[1] == 40
        assert windows.failure is None
