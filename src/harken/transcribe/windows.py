"""Windows of log-mel out of a stream of samples, in memory that does not grow with the recording."""

from __future__ import annotations

from collections.abc import Iterator

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
        until = seek + self._window_frames + LOOK_AHEAD_FRAMES
        self._read(seek, until)
        kept = self._forget(seek)
        size = min(self._window_frames, kept.shape[1])
        if end is not None:
            size = min(size, end - seek)
        # Of what lies before `until`, not of all that has been read: no cut into blocks may change a window.
        heard = kept[:, : until - self._first]
        ceiling = self._mel.ceiling if self._ended else max(self._forgotten_peak, _peak(heard))
        return self._padded(kept[:, :size], ceiling)[None], size

    @property
    def frames_read(self) -> int:
        """Frames of the recording that have been read."""
        return self._end

    def _padded(self, frames: Floats, ceiling: float) -> Floats:
        if not self._silence:
            return pad_or_trim(normalize(frames, ceiling), self._window_frames)
        missing = self._window_frames - frames.shape[1]
        return normalize(np.pad(frames, ((0, 0), (0, missing)), constant_values=SILENCE), ceiling)

    def _forget(self, seek: int) -> Floats:
        """Drop the frames before `seek`, but for how loud they were, and return the others."""
        known = np.concatenate(self._pieces, axis=1)
        gone, kept = np.split(known, [max(0, seek - self._first)], axis=1)
        self._forgotten_peak = max(self._forgotten_peak, _peak(gone))
        self._first += gone.shape[1]
        self._pieces = [kept]
        return kept

    def _read(self, seek: int, until: int) -> None:
        while self._end < until and not self._ended:
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
            if self._end <= seek:
                self._forget(seek)


def _peak(frames: Floats) -> float:
    return float(np.max(frames, initial=SILENCE))
