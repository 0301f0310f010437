"""Windows of log-mel out of a stream of samples, in memory that does not grow with the recording."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from harken.audio import LOG_MEL_FLOOR, LogMel, normalize, pad_or_trim
from harken.contract import Floats
from harken.errors import AudioError
from harken.types import FRAMES_PER_SECOND

LOOK_AHEAD_FRAMES = 120 * FRAMES_PER_SECOND
"""How far the recording is read ahead of a window, to know how loud it gets.

The reference normalises with the loudest value of the whole recording. For recordings up to 2.5 minutes this is that
value exactly; in longer ones a window knows what has come before it and the two minutes behind it
(docs/decisions/loudness.md).
"""


class MelWindows:
    """Normalised log-mel of a recording, read forwards.

    Parameters
    ----------
    blocks : iterator of ndarray of shape (samples,), float32, 16 kHz
    n_mels : int
    window_frames : int
        Length of a window.
    silence : bool
        What stands behind the end of the recording or of a clip: silence, as in the recordings that Whisper was
        trained on; or zeros, as in the reference's `transcribe`, which are louder than silence.

    Attributes
    ----------
    failure : AudioError or None
        Why the recording broke off, once that is known; what came before is delivered all the same.
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
        """Window from frame `seek` on, and how many of its frames are the recording's.

        Parameters
        ----------
        seek : int
            First frame; earlier frames are forgotten.
        end : int or None
            Where to stop, if not at the end of the recording.

        Returns
        -------
        mel : ndarray of shape (1, n_mels, window_frames), float32
            Behind the recording's frames zeros or silence, as was asked for.
        frames : int
            0 to window_frames.
        """
        self.discard_before(seek)
        frames, ceiling = self.read_spans([(seek, min(end or sys.maxsize, seek + self._window_frames))])
        return self.pad_and_normalize(frames, ceiling), frames.shape[1]

    def read_spans(self, spans: Sequence[tuple[int, int]]) -> tuple[Floats, float]:
        """Frames of some spans of the recording, one span after the other, and how loud it gets around them.

        Returns
        -------
        frames : ndarray of shape (n_mels, frames), float32
            Not normalised; fewer than asked for where the recording ends before a span does.
        ceiling : float
            To `padded` them with.
        """
        look_ahead_end = spans[0][0] + self._window_frames + LOOK_AHEAD_FRAMES
        while self._end_frame < look_ahead_end and self.read_block():
            pass
        buffered = self._concatenate_buffer()
        # Of what lies before `until`, not of all that has been read: no cut into blocks may change a window.
        looked_ahead = buffered[:, : look_ahead_end - self._first_frame]
        reaches_end = self._ended and self._end_frame <= look_ahead_end
        ceiling = self._mel.ceiling if reaches_end else max(self._discarded_peak, _peak(looked_ahead))
        span_frames = [
            buffered[:, max(0, start - self._first_frame) : max(0, end - self._first_frame)]
            for start, end in spans
        ]
        return np.concatenate(span_frames, axis=1), ceiling

    def pad_and_normalize(self, frames: Floats, ceiling: float) -> Floats:
        """Normalise frames of `gather` and make them up to a window, shape (1, n_mels, window_frames)."""
        if not self._pad_with_silence:
            return pad_or_trim(normalize(frames, ceiling), self._window_frames)[None]
        missing = self._window_frames - frames.shape[1]
        return normalize(np.pad(frames, ((0, 0), (0, missing)), constant_values=LOG_MEL_FLOOR), ceiling)[None]

    def discard_before(self, frame: int) -> None:
        """Drop the frames before that one, but for how loud they were, and read on to it if need be."""
        while self._first_frame < frame:
            discarded, remaining = np.split(self._concatenate_buffer(), [frame - self._first_frame], axis=1)
            self._discarded_peak = max(self._discarded_peak, _peak(discarded))
            self._first_frame += discarded.shape[1]
            self._buffered = [remaining.copy()]  # a view would keep what is gone
            if self._first_frame < frame and not self.read_block():
                break

    def read_block(self) -> bool:
        """Read one more block; False where the recording has ended or broken off."""
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
        """Frames of the recording that have been read."""
        return self._end_frame

    def _concatenate_buffer(self) -> Floats:
        """All frames that are kept, in one piece."""
        if len(self._buffered) > 1:
            self._buffered = [np.concatenate(self._buffered, axis=1)]
        return self._buffered[0]


def _peak(frames: Floats) -> float:
    return float(np.max(frames, initial=LOG_MEL_FLOOR))
