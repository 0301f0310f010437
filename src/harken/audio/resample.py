"""Incremental resampling from any rate to 16 kHz."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harken.types import SAMPLE_RATE

if TYPE_CHECKING:
    from av import AudioFrame


class Resampler:
    """Incremental resampler of one channel; bit-equal to `harken.audio.stream_audio` for any block size.

    Parameters
    ----------
    rate_hz : int
        Sampling rate of the input. At 16 kHz, 16-bit samples are returned bit for bit.
    """

    def __init__(self, rate_hz: int) -> None:
        import av

        self._rate_hz = rate_hz
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Resample the next samples.

        Parameters
        ----------
        samples : ndarray of shape (samples,), float32
            In [-1, 1]; values outside are clipped.

        Returns
        -------
        ndarray of shape (samples at 16 kHz,), float32
            All that can be computed so far; the filter looks ahead by up to a few milliseconds.
        """
        import av

        if not len(samples):
            return samples
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples)[None], format="flt", layout="mono")
        frame.sample_rate = self._rate_hz
        return self._resample(frame)

    def flush(self) -> NDArray[np.float32]:
        """Return the samples that the filter still holds; `feed` must not be called afterwards."""
        return self._resample(None)

    def _resample(self, frame: AudioFrame | None) -> NDArray[np.float32]:
        chunks = [chunk.to_ndarray()[0] for chunk in self._resampler.resample(frame)]
        pcm = np.concatenate(chunks) if chunks else np.zeros(0, np.int16)
        return pcm.astype(np.float32) / np.float32(32768)
