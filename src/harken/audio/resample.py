"""Samples of any rate to 16 kHz while they come, with the resampler that recordings pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harken.types import SAMPLE_RATE

if TYPE_CHECKING:
    from av import AudioFrame

_FORMATS = {np.dtype(np.int16): "s16", np.dtype(np.int32): "s32", np.dtype(np.float32): "flt"}
_LAYOUTS = {1: "mono", 2: "stereo"}


class Resampler:
    """Incremental resampler to mono 16 kHz; bit-equal to `harken.audio.stream_audio` for any block size.

    Parameters
    ----------
    rate_hz : int
        Sampling rate of the input. At 16 kHz, 16-bit samples are returned bit for bit.
    channels : int
        1 or 2; two are mixed.
    dtype : dtype
        int16, int32, or float32 in [-1, 1]; values outside are clipped.
    """

    def __init__(self, rate_hz: int, channels: int = 1, dtype: Any = np.float32) -> None:
        self._rate_hz, self._layout, self._format = rate_hz, _LAYOUTS[channels], _FORMATS[np.dtype(dtype)]
        self._begin()

    def feed(self, samples: NDArray[Any]) -> NDArray[np.float32]:
        """Resample the next samples.

        Parameters
        ----------
        samples : ndarray of shape (samples * channels,)
            Those of two channels in turn.

        Returns
        -------
        ndarray of shape (samples at 16 kHz,), float32
            All that can be computed so far; the filter looks ahead by up to a few milliseconds.
        """
        import av

        if not len(samples):
            return np.zeros(0, np.float32)
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(samples)[None], format=self._format, layout=self._layout
        )
        frame.sample_rate = self._rate_hz
        return self._resample(frame)

    def flush(self) -> NDArray[np.float32]:
        """Return the samples that the filter still holds; what is fed next is another stream."""
        rest = self._resample(None)
        self._begin()
        return rest

    def _begin(self) -> None:
        import av

        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)

    def _resample(self, frame: AudioFrame | None) -> NDArray[np.float32]:
        blocks = [block.to_ndarray()[0] for block in self._resampler.resample(frame)]
        pcm = np.concatenate([np.zeros(0, np.int16), *blocks])
        return pcm.astype(np.float32) / np.float32(32768)
