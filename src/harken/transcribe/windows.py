"""Windows of log-mel out of a stream of samples, in memory that does not grow with the recording."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from harken.audio import SILENCE, LogMel, normalize, pad_or_trim
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
        self, blocks: Iterator[Floats], n_mels: int, window_frames: int, *, silence: bool = False
    ) -> None:
        self._blocks = blocks
        self._window_frames = window_frames
        self._silence = silence
        self._mel = LogMel(n_mels)
        self._first = 0
        self._pieces: list[Floats] = [np.empty((n_mels, 0), np.float32)]
        self._end = 0
        self._forgotten_peak = SILENCE
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
        self.forget(seek)
        frames, ceiling = self.gather([(seek, min(end or sys.maxsize, seek + self._window_frames))])
        return self.padded(frames, ceiling), frames.shape[1]

    def gather(self, spans: Sequence[tuple[int, int]]) -> tuple[Floats, float]:
        """Frames of some spans of the recording, one span after the other, and how loud it gets around them.

        Returns
        -------
        frames : ndarray of shape (n_mels, frames), float32
            Not normalised; fewer than asked for where the recording ends before a span does.
        ceiling : float
            To `padded` them with.
        """
        until = spans[0][0] + self._window_frames + LOOK_AHEAD_FRAMES
        while self._end < until and self.read():
            pass
        known = self._join()
        # Of what lies before `until`, not of all that has been read: no cut into blocks may change a window.
        heard = known[:, : until - self._first]
        whole = self._ended and self._end <= until
        ceiling = self._mel.ceiling if whole else max(self._forgotten_peak, _peak(heard))
        pieces = [known[:, max(0, start - self._first) : max(0, end - self._first)] for start, end in spans]
        return np.concatenate(pieces, axis=1), ceiling

    def padded(self, frames: Floats, ceiling: float) -> Floats:
        """Normalise frames of `gather` and make them up to a window, shape (1, n_mels, window_frames)."""
        if not self._silence:
            return pad_or_trim(normalize(frames, ceiling), self._window_frames)[None]
        missing = self._window_frames - frames.shape[1]
        return normalize(np.pad(frames, ((0, 0), (0, missing)), constant_values=SILENCE), ceiling)[None]

    def forget(self, before: int) -> None:
        """Drop the frames before that one, but for how loud they were, and read on to it if need be."""
        while self._first < before:
            gone, kept = np.split(self._join(), [before - self._first], axis=1)
            self._forgotten_peak = max(self._forgotten_peak, _peak(gone))
            self._first += gone.shape[1]
            self._pieces = [kept.copy()]  # a view would keep what is gone
            if self._first < before and not self.read():
                break

    def read(self) -> bool:
        """Read one more block; False where the recording has ended or broken off."""
        if self._ended:
            return False
        try:
            frames = self._mel.feed(next(self._blocks))
        except StopIteration:
            frames, self._ended = self._mel.flush(), True
        except AudioError as failure:
            if not self._end:
                raise
            self.failure = failure
            frames, self._ended = self._mel.flush(), True
        self._pieces.append(frames)
        self._end += frames.shape[1]
        return not self._ended

    @property
    def frames_read(self) -> int:
        """Frames of the recording that have been read."""
        return self._end

    def _join(self) -> Floats:
        """All frames that are kept, in one piece."""
        if len(self._pieces) > 1:
            self._pieces = [np.concatenate(self._pieces, axis=1)]
        return self._pieces[0]


def _peak(frames: Floats) -> float:
    return float(np.max(frames, initial=SILENCE))
