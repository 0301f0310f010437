"""Pack regions of speech into windows, and find the way back to the recording.

A window is a tuple of spans of the recording, which are put end to end: long silence between regions is left out.
Positions in a window are frames from its start; positions in the recording are frames from the start of that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from harken.types import FRAMES_PER_SECOND, WINDOW_FRAMES

Span = tuple[int, int]
"""First mel frame, and the one behind the last."""
Spans = tuple[Span, ...]
"""In order of time, without overlap."""

JOIN_FRAMES = FRAMES_PER_SECOND // 2
REACH_FRAMES = WINDOW_FRAMES


class Packer:
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
        join_frames: int = JOIN_FRAMES,
        reach_frames: int = REACH_FRAMES,
    ) -> None:
        self._window_frames = window_frames
        self._join_frames = join_frames
        self._reach_frames = reach_frames
        self._spans: list[Span] = []

    @property
    def begin(self) -> int | None:
        """First frame of the window that is being filled; None where it is empty."""
        return self._spans[0][0] if self._spans else None

    def add(self, region: Span) -> list[Spans]:
        """Take the next region, and return the windows that are now certain."""
        start, end = region
        full = self.settle(start)
        for piece in range(start, end, self._window_frames):
            full += self._put(piece, min(end, piece + self._window_frames))
        return full

    def settle(self, frames: int) -> list[Spans]:
        """Learn that what comes begins at `frames` or behind it, and return the window that is now certain."""
        waits = self._spans and frames - self._spans[-1][1] <= self._reach_frames
        return [] if waits else self.flush()

    def flush(self) -> list[Spans]:
        """Return the window that is being filled, if there is one."""
        filled, self._spans = tuple(self._spans), []
        return [filled] if filled else []

    def _put(self, start: int, end: int) -> list[Spans]:
        near = bool(self._spans) and start - self._spans[-1][1] <= self._join_frames
        begin = self._spans[-1][1] if near else start
        full = self.flush() if length(self._spans) + end - begin > self._window_frames else []
        if full or not near:
            self._spans.append((start, end))
        else:
            self._spans[-1] = (self._spans[-1][0], end)
        return full


def pack(
    regions: Iterable[Span],
    window_frames: int = WINDOW_FRAMES,
    *,
    join_frames: int = JOIN_FRAMES,
    reach_frames: int = REACH_FRAMES,
) -> Iterator[Spans]:
    """Windows out of regions, lazily; see `Packer` for the parameters."""
    packer = Packer(window_frames, join_frames=join_frames, reach_frames=reach_frames)
    for region in regions:
        yield from packer.add(region)
    yield from packer.flush()


class Timeline:
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

    def __init__(self, spans: Spans) -> None:
        self.spans = spans
        self.frames = length(spans)
        self._seams = [0, *accumulate(end - start for start, end in spans)][:-1]

    def start(self, position: float) -> float:
        """Where in the recording something begins; at a seam, with the later span."""
        return self._locate(position, bisect_right(self._seams, position) - 1)

    def end(self, position: float) -> float:
        """Where in the recording something ends; at a seam, with the earlier span."""
        return self._locate(position, bisect_left(self._seams, position) - 1)

    def position(self, frame: float) -> float:
        """Where in the window a frame of the recording stands; what was left out stands at its seam."""
        index = bisect_right(self.spans, frame, key=lambda span: span[0]) - 1
        if index < 0:
            return 0
        start, end = self.spans[index]
        return self._seams[index] + min(frame, end) - start

    def between(self, start: int, end: int) -> Spans:
        """Spans of the recording that stand between two positions."""
        inside = (
            (max(first, first + start - seam), min(last, first + end - seam))
            for seam, (first, last) in zip(self._seams, self.spans, strict=True)
        )
        return tuple((first, last) for first, last in inside if first < last)

    def rest(self, position: int) -> Spans:
        """Spans of the recording that stand behind a position."""
        return self.between(position, self.frames)

    def _locate(self, position: float, index: int) -> float:
        start, end = self.spans[max(0, index)]
        return min(max(start, start + position - self._seams[max(0, index)]), end)


def length(spans: Iterable[Span]) -> int:
    """Frames in all spans together."""
    return sum(end - start for start, end in spans)
