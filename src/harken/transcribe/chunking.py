"""Chunking of a recording: VAD speech packed into windows, with a map back to recording time.

A packed window is a tuple of spans of the recording, put end to end without the long silence between them. Positions in
a window are mel frames from its start; positions in the recording are mel frames from the start of the recording.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from harken.audio.vad import FrameSpan, RegionTracker, SpeechDetector, VadOptions
from harken.contract import Floats
from harken.transcribe.mel_windows import MelWindows
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, WINDOW_FRAMES

FrameSpans = tuple[FrameSpan, ...]
"""In order of time, without overlap."""
ClipRange = tuple[int, int | None]
"""First mel frame, and the one behind the last; None for the end of the recording."""

MAX_GAP_FRAMES = FRAMES_PER_SECOND // 2
"""Longest silence between two regions that is kept in a packed window: recorded silence is better than a seam."""
FLUSH_SILENCE_FRAMES = WINDOW_FRAMES
"""Longest silence that a window waits for more speech."""
WORD_VAD_OPTIONS = VadOptions(min_silence_s=0.3, speech_pad_s=0.05)
"""Voice activity detection for word boundaries: also finds silences that are too short to divide windows at."""


def total_frames(spans: Iterable[FrameSpan]) -> int:
    """Return the number of frames in all spans together."""
    return sum(end - start for start, end in spans)


def speech_in_window(spans: FrameSpans, regions: Sequence[FrameSpan]) -> list[FrameSpan]:
    """Return the parts of speech regions in a window that consists of some spans, in frames of the window."""
    offsets = accumulate((end - start for start, end in spans), initial=0)
    return [
        (offset + max(start, first) - first, offset + min(end, last) - first)
        for offset, (first, last) in zip(offsets, spans, strict=False)
        for start, end in regions
        if max(start, first) < min(end, last)
    ]


class ClipSource:
    """The recording as it is, from one frame to another or to its end."""

    self_contained = False  # speech in its windows may go on behind its end

    def __init__(self, windows: MelWindows, start: int, end: int | None) -> None:
        self._windows, self._start, self._end = windows, start, end

    def window(self, offset: int, end: int | None = None) -> tuple[Floats, int]:
        """Return the window from a frame on, shape (1, n_mels, window_frames), and how many frames have content.

        It has no content from `end` on, if that is given.
        """
        assert end is None, "gaps are found in packed speech only"
        seek = self._start + offset
        if self._end is not None and seek >= self._end:
            return np.empty((1, 0, 0), np.float32), 0
        self._windows.discard_before(seek)
        return self._windows.window(seek, self._end)

    def start_s(self, offset: float, slack: float = 0) -> float:
        """Return the time in the recording of a frame, counted from the start of the source."""
        return (self._start + offset) / FRAMES_PER_SECOND

    end_s = start_s

    def spans(self, start: int, end: int) -> FrameSpans:
        """Return the spans of the recording between two frames."""
        return ((self._start + start, self._start + end),)


class PackedSpeech:
    """Spans of speech put end to end, at least one, and at most a window long in all."""

    self_contained = True

    def __init__(self, windows: MelWindows, spans: FrameSpans) -> None:
        self._windows, self._spans = windows, spans
        self._offsets = [0, *accumulate(end - start for start, end in spans)][:-1]
        windows.discard_before(spans[0][0])
        self._frames, self._ceiling = windows.read_spans(spans)

    def window(self, offset: int, end: int | None = None) -> tuple[Floats, int]:
        remaining = self._frames[:, offset:end]
        return self._windows.pad_and_normalize(remaining, self._ceiling), remaining.shape[1]

    def start_s(self, offset: float, slack: float = 0) -> float:
        """Return the time of something that starts at a frame; up to `slack` before a seam, in the later span."""
        return self._time_s(offset, bisect_right(self._offsets, offset + slack) - 1)

    def end_s(self, offset: float, slack: float = 0) -> float:
        """Return the time of something that ends at a frame; up to `slack` behind a seam, in the earlier span."""
        return self._time_s(offset, bisect_left(self._offsets, offset - slack) - 1)

    def spans(self, start: int, end: int) -> FrameSpans:
        inside = (
            (max(first, first + start - offset), min(last, first + end - offset))
            for offset, (first, last) in zip(self._offsets, self._spans, strict=True)
        )
        return tuple((first, last) for first, last in inside if first < last)

    def _time_s(self, frame: float, index: int) -> float:
        """Return the time of a frame that is in one of the spans, or beside it."""
        (start, end), offset = self._spans[max(0, index)], self._offsets[max(0, index)]
        return min(max(start, start + frame - offset), end) / FRAMES_PER_SECOND


FrameSource = ClipSource | PackedSpeech
"""A stretch of mel frames that windows are read from, counted from its own start."""


@dataclass(slots=True, eq=False)
class SpeechPacker:
    """Packer of speech regions into windows, each with as many whole regions as fit, given out as soon as complete.

    Parameters
    ----------
    window_frames : int
        Most frames of a window. A longer region is cut.
    flush_silence_frames : int
        A longer silence ends a window, so that the window does not wait for more speech.
    """

    window_frames: int
    flush_silence_frames: int = FLUSH_SILENCE_FRAMES
    _spans: list[FrameSpan] = field(init=False, default_factory=list)

    @property
    def start_frame(self) -> int | None:
        """First frame of the window that is being filled; None where it is empty."""
        return self._spans[0][0] if self._spans else None

    def add(self, region: FrameSpan) -> list[FrameSpans]:
        """Add the next region, and return the windows that are now complete."""
        start, end = region
        windows = self.advance_to(start)
        for chunk_start in range(start, end, self.window_frames):
            windows += self._append(chunk_start, min(end, chunk_start + self.window_frames))
        return windows

    def advance_to(self, frame: int) -> list[FrameSpans]:
        """Note that no further region starts before a frame, and return the window that is now complete."""
        may_grow = self._spans and frame - self._spans[-1][1] <= self.flush_silence_frames
        return [] if may_grow else self.flush()

    def flush(self) -> list[FrameSpans]:
        """Return the window that is being filled, if there is one."""
        filled, self._spans = tuple(self._spans), []
        return [filled] if filled else []

    def _append(self, start: int, end: int) -> list[FrameSpans]:
        joins = bool(self._spans) and start - self._spans[-1][1] <= MAX_GAP_FRAMES
        joined_start = self._spans[-1][1] if joins else start
        windows = self.flush() if total_frames(self._spans) + end - joined_start > self.window_frames else []
        if windows or not joins:
            self._spans.append((start, end))
        else:
            self._spans[-1] = (self._spans[-1][0], end)
        return windows


class SpeechSegmenter:
    """Voice activity detection on the samples of a recording while they are read.

    Parameters
    ----------
    blocks : iterator of ndarray of shape (samples,), float32, 16 kHz
    options : VadOptions
    speech_detector : callable
        Makes the detector of speech.

    Attributes
    ----------
    regions : list of (int, int)
        Mel frames of the speech that is certain so far.
    probabilities : array of float
        Of speech so far, one for every 512 samples.
    peak : float
        Largest magnitude of the samples so far: tells quiet sound from digital silence where there is no speech.
    """

    def __init__(
        self,
        blocks: Iterator[Floats],
        options: VadOptions,
        speech_detector: Callable[[], SpeechDetector] = SpeechDetector,
    ) -> None:
        self._blocks = blocks
        self._detector, self._vad = speech_detector(), RegionTracker(options)
        # With the thresholds of the windows: a word that only a lower threshold finds has a region here too.
        self._word_vad = RegionTracker(
            replace(WORD_VAD_OPTIONS, threshold=options.threshold, min_speech_s=options.min_speech_s)
        )
        self._word_regions: list[FrameSpan] = []
        self._n_samples = 0
        self.regions: list[FrameSpan] = []
        self.probabilities = array("f")
        self.peak = 0.0

    def blocks(self) -> Iterator[Floats]:
        """Yield the samples, each block after voice activity detection has seen it."""
        blocks, self._blocks = self._blocks, iter(())  # whoever reads them may close them
        try:
            for block in blocks:
                self._n_samples += len(block)
                self.peak = max(self.peak, float(np.abs(block).max(initial=0)))
                self._add_probabilities(self._detector.feed(block))
                yield block
        except Exception:
            self._flush()
            raise
        self._flush()  # not where the reader stops early: that may be while the interpreter shuts down

    def packed_spans(
        self, windows: MelWindows, clips: Iterable[ClipRange], window_frames: int, *, apart: bool = False
    ) -> Iterator[FrameSpans]:
        """Yield the spans of speech within some clips, one window of them at a time, as soon as they are certain.

        An empty tuple follows every block that was read: a caller with other work is not kept by hours of silence.
        `windows` reads from `blocks`; frames that no window can need any more are discarded from it. If regions are
        `apart`, each has windows of its own.
        """
        flush_silence_frames = 0 if apart else FLUSH_SILENCE_FRAMES
        for start, end in clips:
            packer = SpeechPacker(window_frames, flush_silence_frames=flush_silence_frames)
            n_packed, reading = 0, True
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
                # The next clip may begin at the end of this one.
                windows.discard_before(needed if end is None else min(needed, end))
                yield ()
            yield from packer.flush()

    def word_regions(self, start: int, end: int) -> list[FrameSpan]:
        """Return the speech near a stretch that has been read, without the silences between words."""
        first = bisect_left(self._word_regions, start, key=lambda region: region[1])
        last = bisect_right(self._word_regions, end, key=lambda region: region[0])
        speaking_since = self._word_vad.speaking_since
        open_region = [(speaking_since, end)] if speaking_since is not None and speaking_since < end else []
        return [*self._word_regions[max(0, first - 1) : last + 1], *open_region]

    def _flush(self) -> None:
        """Note the end of the audio, or the failure that ends it."""
        self._add_probabilities(self._detector.flush())
        self.regions += self._vad.flush(self._n_samples // HOP_SAMPLES)
        self._word_regions += self._word_vad.flush(self._n_samples // HOP_SAMPLES)

    def _add_probabilities(self, probabilities: Floats) -> None:
        values = probabilities.tolist()
        self.probabilities.extend(values)
        self.regions += self._vad.feed(values)
        self._word_regions += self._word_vad.feed(values)
