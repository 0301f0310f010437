"""What a chain of windows slides over: a clip of the recording, or speech that was packed into one window."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from harken.contract import Floats
from harken.transcribe.packing import Spans, Timeline
from harken.transcribe.windows import MelWindows
from harken.types import FRAMES_PER_SECOND


class View(Protocol):
    """A stretch of mel frames, counted from its own start.

    Attributes
    ----------
    whole : bool
        Whether what is said in its windows ends in them.
    """

    whole: bool

    def window(self, at: int) -> tuple[Floats, int]:
        """Window of shape (1, n_mels, window_frames) from frame `at` on, and how many of its frames there are."""
        ...

    def start_s(self, at: float) -> float:
        """Time in the recording of something that starts at that frame."""
        ...

    def end_s(self, at: float) -> float:
        """Time in the recording of something that ends at that frame."""
        ...

    def spans(self, start: int, end: int) -> Spans:
        """Frames of the recording between two frames."""
        ...


class Clip:
    """The recording from one frame to another, or to its end."""

    whole = False

    def __init__(self, windows: MelWindows, start: int, end: int | None) -> None:
        self._windows, self._start, self._end = windows, start, end

    def window(self, at: int) -> tuple[Floats, int]:
        seek = self._start + at
        if self._end is not None and seek >= self._end:
            return np.empty((1, 0, 0), np.float32), 0
        return self._windows.window(seek, self._end)

    def start_s(self, at: float) -> float:
        return (self._start + at) / FRAMES_PER_SECOND

    end_s = start_s

    def spans(self, start: int, end: int) -> Spans:
        return ((self._start + start, self._start + end),)


class Pack:
    """Spans of speech side by side, at most a window of them."""

    whole = True

    def __init__(self, windows: MelWindows, spans: Spans) -> None:
        self._windows = windows
        windows.forget(spans[0][0])
        self._frames, self._ceiling = windows.gather(spans)
        self._timeline = Timeline(spans)

    def window(self, at: int) -> tuple[Floats, int]:
        rest = self._frames[:, at:]
        return self._windows.padded(rest, self._ceiling), rest.shape[1]

    def start_s(self, at: float) -> float:
        return self._timeline.start(at) / FRAMES_PER_SECOND

    def end_s(self, at: float) -> float:
        return self._timeline.end(at) / FRAMES_PER_SECOND

    def spans(self, start: int, end: int) -> Spans:
        return self._timeline.between(start, end)
