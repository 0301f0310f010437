"""What a chain of windows slides over: a clip of the recording, or speech that was packed into one window."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from harken.contract import Floats
from harken.transcribe.chunking import FrameSpans, TimeMap
from harken.transcribe.mel_windows import MelWindows
from harken.types import FRAMES_PER_SECOND


class FrameSource(Protocol):
    """A stretch of mel frames, counted from its own start.

    Attributes
    ----------
    whole : bool
        Whether what is said in its windows ends in them.
    """

    self_contained: bool

    def window(self, offset: int) -> tuple[Floats, int]:
        """Window of shape (1, n_mels, window_frames) from frame `at` on, and how many of its frames there are."""
        ...

    def start_s(self, offset: float) -> float:
        """Time in the recording of something that starts at that frame."""
        ...

    def end_s(self, offset: float) -> float:
        """Time in the recording of something that ends at that frame."""
        ...

    def spans(self, start: int, end: int) -> FrameSpans:
        """Frames of the recording between two frames."""
        ...


class ClipSource:
    """The recording from one frame to another, or to its end."""

    self_contained = False

    def __init__(self, windows: MelWindows, start: int, end: int | None) -> None:
        self._windows, self._start, self._end = windows, start, end

    def window(self, offset: int) -> tuple[Floats, int]:
        seek = self._start + offset
        if self._end is not None and seek >= self._end:
            return np.empty((1, 0, 0), np.float32), 0
        return self._windows.window(seek, self._end)

    def start_s(self, offset: float) -> float:
        return (self._start + offset) / FRAMES_PER_SECOND

    end_s = start_s

    def spans(self, start: int, end: int) -> FrameSpans:
        return ((self._start + start, self._start + end),)


class PackedSpeech:
    """Spans of speech side by side, at most a window of them."""

    self_contained = True

    def __init__(self, windows: MelWindows, spans: FrameSpans) -> None:
        self._windows = windows
        windows.discard_before(spans[0][0])
        self._frames, self._ceiling = windows.read_spans(spans)
        self._time_map = TimeMap(spans)

    def window(self, offset: int) -> tuple[Floats, int]:
        remaining = self._frames[:, offset:]
        return self._windows.pad_and_normalize(remaining, self._ceiling), remaining.shape[1]

    def start_s(self, offset: float) -> float:
        return self._time_map.to_recording_start(offset) / FRAMES_PER_SECOND

    def end_s(self, offset: float) -> float:
        return self._time_map.to_recording_end(offset) / FRAMES_PER_SECOND

    def spans(self, start: int, end: int) -> FrameSpans:
        return self._time_map.recording_spans(start, end)
