"""Pack regions of speech into windows, and find the way back to the recording.

A window is a tuple of spans of the recording, which are put end to end: long silence between regions is left out.
Positions in a window are frames from its start; positions in the recording are frames from the start of that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Protocol

import numpy as np

from harken.audio.vad import RegionTracker, SpeechDetector, SpeechRegion, VadOptions
from harken.contract import Floats
from harken.transcribe.mel_windows import MelWindows
from harken.transcribe.word_boundaries import WORD_VAD_OPTIONS
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, WINDOW_FRAMES

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


ClipRange = tuple[int, int | None]


class SpeechSegmenter:
    """Listens in on the samples of a recording.

    Parameters
    ----------
    blocks : iterator of ndarray of shape (samples,), float32, 16 kHz
    options : VadOptions

    Attributes
    ----------
    regions : list of (int, int)
        Mel frames of the speech that is certain by now.
    """

    def __init__(self, blocks: Iterator[Floats], options: VadOptions) -> None:
        self._blocks = blocks
        self._detector, self._vad = SpeechDetector(), RegionTracker(options)
        # Of the same speech: a word that only a lower threshold finds has its region here too.
        self._word_vad = RegionTracker(
            replace(
                WORD_VAD_OPTIONS,
                threshold=options.threshold,
                neg_threshold=options.neg_threshold,
                min_speech_s=options.min_speech_s,
            )
        )
        self._word_regions: list[SpeechRegion] = []
        self._probabilities = np.empty(1024, np.float32)
        self._n_chunks = 0
        self._n_samples = 0
        self.regions: list[SpeechRegion] = []

    def blocks(self) -> Iterator[Floats]:
        """The samples, passed on once they have been listened to."""
        try:
            for block in self._blocks:
                self._n_samples += len(block)
                self._add_probabilities(self._detector.feed(block))
                yield block
        finally:
            self._add_probabilities(self._detector.flush())
            self.regions += self._vad.flush(self._n_samples // HOP_SAMPLES)
            self._word_regions += self._word_vad.flush(self._n_samples // HOP_SAMPLES)

    def packed_spans(
        self, windows: MelWindows, clips: Iterable[ClipRange], window_frames: int
    ) -> Iterator[FrameSpans]:
        """Spans of speech within some clips, a window of them at a time, as soon as they are certain.

        Parameters
        ----------
        windows : MelWindows
            Reads `blocks`; forgets what no window can need any more.
        clips : iterable of (start, end)
            In frames; an end of None is that of the recording.
        window_frames : int
        """
        for start, end in clips:
            packer, n_packed, reading = SpeechPacker(window_frames), 0, True
            while reading:
                reading = (end is None or self._vad.stable_until_frames < end) and windows.read_block()
                while n_packed < len(self.regions):
                    first, last = self.regions[n_packed]
                    n_packed += 1
                    clipped = max(first, start), last if end is None else min(last, end)
                    if clipped[0] < clipped[1]:
                        yield from packer.add(clipped)
                certain_frames = self._vad.stable_until_frames
                yield from packer.advance_to(certain_frames)
                needed = certain_frames if packer.start_frame is None else packer.start_frame
                windows.discard_before(
                    needed if end is None else min(needed, end)
                )  # the next clip may begin there
            yield from packer.flush()

    @property
    def probabilities(self) -> Floats:
        """How probable speech is, one value every 512 samples, so far."""
        return self._probabilities[: self._n_chunks]

    def word_regions(self, start: int, end: int) -> list[SpeechRegion]:
        """Speech near a stretch that has been read, with the silences between words left out."""
        first = bisect_left(self._word_regions, start, key=lambda region: region[1])
        last = bisect_right(self._word_regions, end, key=lambda region: region[0])
        speaking_since = self._word_vad.speaking_since
        open_region = [(speaking_since, end)] if speaking_since is not None and speaking_since < end else []
        return [*self._word_regions[max(0, first - 1) : last + 1], *open_region]

    def _add_probabilities(self, probabilities: Floats) -> None:
        n_chunks = self._n_chunks + len(probabilities)
        while n_chunks > len(self._probabilities):
            self._probabilities = np.concatenate([self._probabilities, np.empty_like(self._probabilities)])
        self._probabilities[self._n_chunks : n_chunks] = probabilities
        self._n_chunks = n_chunks
        values = probabilities.tolist()
        self.regions += self._vad.feed(values)
        self._word_regions += self._word_vad.feed(values)
