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


class StreamResampler:
    """A resampler of one stream to mono 16 kHz; its output does not depend on how the samples were cut into blocks.

    Parameters
    ----------
    rate_hz : int
    channels : int
        1 or 2; two are mixed.
    dtype : dtype
        int16, int32 or float32.
    """

    def __init__(self, rate_hz: int, channels: int = 1, dtype: Any = np.int16) -> None:
        self._rate_hz, self._layout, self._format = rate_hz, _LAYOUTS[channels], _FORMATS[np.dtype(dtype)]
        self._begin()

    def feed(self, samples: NDArray[Any]) -> NDArray[np.float32]:
        """Take samples, those of two channels in turn, and return those at 16 kHz that are ready."""
        import av

        if not len(samples):
            return np.zeros(0, np.float32)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format=self._format, layout=self._layout)
        frame.sample_rate = self._rate_hz
        return self._resampled(frame)

    def flush(self) -> NDArray[np.float32]:
        """Return the samples that waited for later ones; what is fed next begins anew."""
        rest = self._resampled(None)
        self._begin()
        return rest

    def _begin(self) -> None:
        import av

        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)

    def _resampled(self, frame: AudioFrame | None) -> NDArray[np.float32]:
        blocks = [frame.to_ndarray()[0] for frame in self._resampler.resample(frame)]
        pcm = np.concatenate([np.zeros(0, np.int16), *blocks])
        return pcm.astype(np.float32) / np.float32(32768)
