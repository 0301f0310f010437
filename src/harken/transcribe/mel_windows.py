"""Log-mel windows of a stream of samples, in memory that does not grow with the recording."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

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
    pad_with_silence : bool
        Pad behind the end of the recording or of a clip with silence, as in the recordings that Whisper was trained on;
        False pads with zeros, as in the reference's `transcribe`, which are louder than silence.

    Attributes
    ----------
    failure : AudioError or None
        Error that ended the recording early, once it has occurred; frames read before it are delivered.
    """

    def __init__(
        self, blocks: Iterator[Floats], n_mels: int, window_frames: int, *, pad_with_silence: bool = False
    ) -> None:
        self._blocks = blocks
        self._window_frames = window_frames
        self._pad_with_silence = pad_with_silence
        self._mel = LogMel(n_mels)
        self._first_frame = 0
        self._buffered: list[Floats] = [np.empty((n_mels, 0), np.float32)]
        self._end_frame = 0
        self._discarded_peak = LOG_MEL_FLOOR
        self._ended = False
        self.failure: AudioError | None = None

    def window(self, seek: int, end: int | None) -> tuple[Floats, int]:
        """Return the window from a frame on, and the number of its frames that are of the recording.

        Parameters
        ----------
        seek : int
            First frame; earlier frames are discarded.
        end : int or None
            Frame behind the last; None for the end of the recording.

        Returns
        -------
        mel : ndarray of shape (1, n_mels, window_frames), float32
            Padded behind the recording's frames with silence or zeros.
        frames : int
            Frames of the recording, 0 to window_frames.
        """
        self.discard_before(seek)
        frames, ceiling = self.read_spans([(seek, min(end or sys.maxsize, seek + self._window_frames))])
        return self.pad_and_normalize(frames, ceiling), frames.shape[1]

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> tuple[Floats, float]:
        """Return the frames of some spans of the recording, end to end, and the peak to normalise them with.

        Parameters
        ----------
        spans : sequence of (int, int)
            First frame of each span and the one behind its last, in order of time.

        Returns
        -------
        frames : ndarray of shape (n_mels, frames), float32
            Not normalised; fewer than asked for where the recording ends before a span does.
        ceiling : float
            Peak for `pad_and_normalize`.
        """
        look_ahead_end = spans[0][0] + self._window_frames + LOOK_AHEAD_FRAMES
        while self._end_frame < look_ahead_end and self.read_block():
            pass
        buffered = self._concatenate_buffer()
        # Only up to the end of the look-ahead, even if more is buffered: block sizes must not change a window.
        looked_ahead = buffered[:, : look_ahead_end - self._first_frame]
        reaches_end = self._ended and self._end_frame <= look_ahead_end
        ceiling = self._mel.ceiling if reaches_end else max(self._discarded_peak, _peak(looked_ahead))
        span_frames = [
            buffered[:, max(0, start - self._first_frame) : max(0, end - self._first_frame)]
            for start, end in spans
        ]
        return np.concatenate(span_frames, axis=1), ceiling

    def pad_and_normalize(self, frames: Floats, ceiling: float) -> Floats:
        """Normalise frames of `read_spans` and pad them to a window of shape (1, n_mels, window_frames)."""
        if not self._pad_with_silence:
            return pad_or_trim(normalize(frames, ceiling), self._window_frames)[None]
        missing = self._window_frames - frames.shape[1]
        return normalize(np.pad(frames, ((0, 0), (0, missing)), constant_values=LOG_MEL_FLOOR), ceiling)[None]

    def discard_before(self, frame: int) -> None:
        """Discard the frames before a frame, except for their peak, and read on to that frame if necessary."""
        while self._first_frame < frame:
            discarded, remaining = np.split(self._concatenate_buffer(), [frame - self._first_frame], axis=1)
            self._discarded_peak = max(self._discarded_peak, _peak(discarded))
            self._first_frame += discarded.shape[1]
            self._buffered = [remaining.copy()]  # a numpy view would keep the discarded frames in memory
            if self._first_frame < frame and not self.read_block():
                break

    def read_block(self) -> bool:
        """Read one more block; return False at the end of the recording, or where it cannot be read on."""
        if self._ended:
            return False
        try:
            frames = self._mel.feed(next(self._blocks))
        except StopIteration:
            frames, self._ended = self._mel.flush(), True
        except AudioError as failure:
            if not self._end_frame:
                raise
            self.failure = failure
            frames, self._ended = self._mel.flush(), True
        self._buffered.append(frames)
        self._end_frame += frames.shape[1]
        return not self._ended

    @property
    def frames_read(self) -> int:
        """Number of frames of the recording that have been read."""
        return self._end_frame

    def _concatenate_buffer(self) -> Floats:
        """Return all buffered frames as one array."""
        if len(self._buffered) > 1:
            self._buffered = [np.concatenate(self._buffered, axis=1)]
        return self._buffered[0]


def _peak(frames: Floats) -> float:
    return float(np.max(frames, initial=LOG_MEL_FLOOR))
