"""Log-mel windows of a stream of samples, in memory that does not grow with the recording."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harken.audio import LOG_MEL_FLOOR, LogMel, normalize, pad_or_trim
from harken.contract import Floats
from harken.errors import AudioError
from harken.types import FRAMES_PER_SECOND

LOOK_AHEAD_FRAMES = 120 * FRAMES_PER_SECOND
"""Number of frames that are read ahead of a window for the peak that it is normalised with.

The reference normalises with the peak of the whole recording. In recordings of up to 2.5 minutes the peak here is the
same; in longer ones it is the peak of all frames before the window, the window and the two minutes after it
(docs/decisions/loudness.md).
"""


class MelWindows:
    """Reader of normalised log-mel windows of a recording, in order of time.

    Parameters
    ----------
    blocks : iterator of ndarray of shape (samples,), float32, 16 kHz
    n_mels : int
    window_frames : int
        Length of a window.
    look_ahead_frames : int
        Frames that are read ahead of a window for the peak that it is normalised with.

    Attributes
    ----------
    failure : AudioError or None
        Error that ended the recording early, once it has occurred; frames read before it are delivered.
    """

    def __init__(
        self,
        blocks: Iterator[Floats],
        n_mels: int,
        window_frames: int,
        *,
        look_ahead_frames: int = LOOK_AHEAD_FRAMES,
    ) -> None:
        self._blocks = blocks
        self._window_frames, self._look_ahead_frames = window_frames, look_ahead_frames
        self._mel = LogMel(n_mels)
        self._buffer = _FrameBuffer(n_mels)
        self._ended = False
        self.failure: AudioError | None = None

    def window(self, seek: int, end: int | None) -> tuple[Floats, int]:
        """Return the window from a frame on, shape (1, n_mels, window_frames), and how many frames the recording fills.

        Zeros follow behind these, and behind `end`.
        """
        frames, ceiling = self.read_spans([(seek, min(end or sys.maxsize, seek + self._window_frames))])
        return self.pad_and_normalize(frames, ceiling), frames.shape[1]

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> tuple[Floats, float]:
        """Return the frames of some spans, in order of time, end to end, and the peak for `pad_and_normalize`.

        They have the shape (n_mels, frames), and are fewer than asked for where the recording ends before a span does.
        """
        look_ahead_end = spans[0][0] + self._window_frames + self._look_ahead_frames
        while self._buffer.end < look_ahead_end and self.read_block():
            pass
        reaches_end = self._ended and self._buffer.end <= look_ahead_end
        # Only up to the end of the look-ahead, even if more is buffered: block sizes must not change a window.
        ceiling = self._mel.ceiling if reaches_end else self._buffer.peak_before(look_ahead_end)
        return self._buffer.copy(spans), ceiling

    def pad_and_normalize(self, frames: Floats, ceiling: float) -> Floats:
        """Normalise frames of `read_spans` and pad them to a window of shape (1, n_mels, window_frames).

        Notes
        -----
        Source: openai/whisper, transcribe.py, pads the normalised log-mel with zeros, which are louder than silence.
        """
        return pad_or_trim(normalize(frames, ceiling), self._window_frames)[None]

    def discard_before(self, frame: int) -> None:
        """Discard the frames before a frame, except for their peak, and read on to that frame if necessary."""
        self._buffer.discard_before(frame)
        while self._buffer.end < frame and self.read_block():
            self._buffer.discard_before(frame)

    def read_block(self) -> bool:
        """Read one more block; return False at the end of the recording, or where it cannot be read on."""
        if self._ended:
            return False
        try:
            frames = self._mel.feed(next(self._blocks))
        except StopIteration:
            frames, self._ended = self._mel.flush(), True
        except AudioError as failure:
            if not self._buffer.end:
                raise
            self.failure = failure
            frames, self._ended = self._mel.flush(), True
        self._buffer.append(frames)
        return not self._ended

    def close(self) -> None:
        """Release the frames and what they are read from."""
        self._blocks, self._ended = iter(()), True
        self._buffer.discard_before(self._buffer.end)

    @property
    def frames_read(self) -> int:
        """Number of frames of the recording that have been read."""
        return self._buffer.end


class _FrameBuffer:
    """The frames of a recording that are still needed, in the blocks that they were read in.

    Attributes
    ----------
    end : int
        Number of frames of the recording that were appended.
    """

    def __init__(self, n_mels: int) -> None:
        self._n_mels = n_mels
        self._blocks: deque[_Block] = deque()
        self._peak = LOG_MEL_FLOOR
        self.end = 0

    def append(self, frames: Floats) -> None:
        """Append the next frames of the recording."""
        if not frames.shape[1]:
            return
        peaks = np.maximum.accumulate(np.maximum(frames.max(axis=0), np.float32(self._peak)))
        start, self.end = self.end, self.end + frames.shape[1]
        self._blocks.append(_Block(start, self.end, frames, peaks))
        self._peak = float(peaks[-1])

    def peak_before(self, frame: int) -> float:
        """Return the peak of all frames before one that was not discarded, those that were included."""
        for block in self._blocks:
            if block.start < frame <= block.end:
                return float(block.peaks[frame - 1 - block.start])
        return self._peak

    def copy(self, spans: Sequence[tuple[int, int]]) -> Floats:
        """Return the frames of some spans, end to end, as far as they were appended."""
        pieces = [np.empty((self._n_mels, 0), np.float32)]
        for start, end in spans:
            overlaps = (block for block in self._blocks if block.start < end and start < block.end)
            pieces += (block.frames[:, max(0, start - block.start) : end - block.start] for block in overlaps)
        return np.concatenate(pieces, axis=1)

    def discard_before(self, frame: int) -> None:
        """Discard the blocks that end before a frame."""
        while self._blocks and self._blocks[0].end <= frame:
            self._blocks.popleft()


@dataclass(frozen=True, slots=True)
class _Block:
    """Frames `start` to `end`, exclusive, of shape (n_mels, frames), and the peak of the recording up to each."""

    start: int
    end: int
    frames: Floats
    peaks: Floats
