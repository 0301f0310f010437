"""Pack regions of speech into windows, and find the way back to the recording.

A window is a tuple of spans of the recording, which are put end to end: long silence between regions is left out.
Positions in a window are frames from its start; positions in the recording are frames from the start of that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from harken.types import FRAMES_PER_SECOND, WINDOW_FRAMES

FrameSpan = tuple[int, int]
"""First mel frame, and the one behind the last."""
FrameSpans = tuple[FrameSpan, ...]
"""In order of time, without overlap."""

MAX_GAP_FRAMES = FRAMES_PER_SECOND // 2
FLUSH_SILENCE_FRAMES = WINDOW_FRAMES


class SpeechPacker:
    """Fills each window with as many whole regions as it holds, and gives it out as soon as it is certain.

    Parameters
    ----------
    window_frames : int
        Most that a window holds. A region that is longer than that is cut.
    join_frames : int
        Regions with at most this between them keep it: silence as it was recorded is better than a seam.
    reach_frames : int
        A window ends where this much holds no speech, so that it never waits for long.
    """

    def __init__(
        self,
        window_frames: int = WINDOW_FRAMES,
        *,
        max_gap_frames: int = MAX_GAP_FRAMES,
        flush_silence_frames: int = FLUSH_SILENCE_FRAMES,
    ) -> None:
        self._window_frames = window_frames
        self._max_gap_frames = max_gap_frames
        self._flush_silence_frames = flush_silence_frames
        self._spans: list[FrameSpan] = []

    @property
    def start_frame(self) -> int | None:
        """First frame of the window that is being filled; None where it is empty."""
        return self._spans[0][0] if self._spans else None

    def add(self, region: FrameSpan) -> list[FrameSpans]:
        """Take the next region, and return the windows that are now certain."""
        start, end = region
        windows = self.advance_to(start)
        for chunk_start in range(start, end, self._window_frames):
            windows += self._append(chunk_start, min(end, chunk_start + self._window_frames))
        return windows

    def advance_to(self, frame: int) -> list[FrameSpans]:
        """Learn that what comes begins at `frames` or behind it, and return the window that is now certain."""
        may_grow = self._spans and frame - self._spans[-1][1] <= self._flush_silence_frames
        return [] if may_grow else self.flush()

    def flush(self) -> list[FrameSpans]:
        """Return the window that is being filled, if there is one."""
        filled, self._spans = tuple(self._spans), []
        return [filled] if filled else []

    def _append(self, start: int, end: int) -> list[FrameSpans]:
        joins = bool(self._spans) and start - self._spans[-1][1] <= self._max_gap_frames
        begin = self._spans[-1][1] if joins else start
        windows = self.flush() if total_frames(self._spans) + end - begin > self._window_frames else []
        if windows or not joins:
            self._spans.append((start, end))
        else:
            self._spans[-1] = (self._spans[-1][0], end)
        return windows


def pack_speech(
    regions: Iterable[FrameSpan],
    window_frames: int = WINDOW_FRAMES,
    *,
    max_gap_frames: int = MAX_GAP_FRAMES,
    flush_silence_frames: int = FLUSH_SILENCE_FRAMES,
) -> Iterator[FrameSpans]:
    """Windows out of regions, lazily; see `Packer` for the parameters."""
    packer = SpeechPacker(
        window_frames, max_gap_frames=max_gap_frames, flush_silence_frames=flush_silence_frames
    )
    for region in regions:
        yield from packer.add(region)
    yield from packer.flush()


class TimeMap:
    """The way between a window's positions and the recording's.

    Parameters
    ----------
    spans : tuple of (int, int)
        At least one.

    Attributes
    ----------
    spans : tuple of (int, int)
    frames : int
        Length of the window.
    """

    def __init__(self, spans: FrameSpans) -> None:
        self.spans = spans
        self.frames = total_frames(spans)
        self._span_offsets = [0, *accumulate(end - start for start, end in spans)][:-1]

    def to_recording_start(self, window_frame: float) -> float:
        """Where in the recording something begins; at a seam, with the later span."""
        return self._to_recording(window_frame, bisect_right(self._span_offsets, window_frame) - 1)

    def to_recording_end(self, window_frame: float) -> float:
        """Where in the recording something ends; at a seam, with the earlier span."""
        return self._to_recording(window_frame, bisect_left(self._span_offsets, window_frame) - 1)

    def to_window(self, recording_frame: float) -> float:
        """Where in the window a frame of the recording stands; what was left out stands at its seam."""
        index = bisect_right(self.spans, recording_frame, key=lambda span: span[0]) - 1
        if index < 0:
            return 0
        start, end = self.spans[index]
        return self._span_offsets[index] + min(recording_frame, end) - start

    def recording_spans(self, start: int, end: int) -> FrameSpans:
        """Spans of the recording that stand between two positions."""
        inside = (
            (max(first, first + start - span_offset), min(last, first + end - span_offset))
            for span_offset, (first, last) in zip(self._span_offsets, self.spans, strict=True)
        )
        return tuple((first, last) for first, last in inside if first < last)

    def recording_spans_from(self, window_frame: int) -> FrameSpans:
        """Spans of the recording that stand behind a position."""
        return self.recording_spans(window_frame, self.frames)

    def _to_recording(self, window_frame: float, span_index: int) -> float:
        start, end = self.spans[max(0, span_index)]
        return min(max(start, start + window_frame - self._span_offsets[max(0, span_index)]), end)


def total_frames(spans: Iterable[FrameSpan]) -> int:
    """Frames in all spans together."""
    return sum(end - start for start, end in spans)
