"""The filter bank that speaker embeddings are computed from, equal to Kaldi's with the options of 3D-Speaker.

Recipe (torchaudio.compliance.kaldi.fbank without dither): frames of 25 ms every 10 ms, only those that lie whole in the
piece; their mean removed, pre-emphasis, Povey window, power spectrum of 512 points, 80 triangles on Kaldi's mel scale
from 20 Hz to 8 kHz, natural logarithm. Then each band's mean over time is subtracted, which makes the result
independent of the loudness.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats

N_BANDS = 80
FRAME_SAMPLES = 400
HOP_SAMPLES = 160

_FFT_SAMPLES = 512
_PREEMPHASIS = np.float32(0.97)
_LOWEST_HZ, _HIGHEST_HZ = 20.0, 8000.0
_FLOOR = np.finfo(np.float32).eps
_CHUNK_FRAMES = 64
"""Frames, spectra and powers of one chunk stay in a core's L2 cache."""
_GROUP_BANDS = 16
"""So few bands have few points in common, and their product is too small for OpenBLAS to wake other threads."""


def frame_count(samples: int) -> int:
    """Return the number of whole frames in a number of samples."""
    return max(0, 1 + (samples - FRAME_SAMPLES) // HOP_SAMPLES)


def fbank(samples: Floats) -> Floats:
    """Compute the log filter bank of a piece, without the mean of each band.

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32, 16 kHz
        Full scale is 1. At least `FRAME_SAMPLES`.

    Returns
    -------
    ndarray of shape (frames, 80), float32
    """
    bands = np.empty((frame_count(len(samples)), N_BANDS), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME_SAMPLES)[::HOP_SAMPLES]
    for start in range(0, len(bands), _CHUNK_FRAMES):
        _log_energies(frames[start : start + _CHUNK_FRAMES], bands[start : start + _CHUNK_FRAMES])
    bands -= bands.mean(axis=0, dtype=np.float64).astype(np.float32)
    return bands


def _log_energies(frames: Floats, out: Floats) -> None:
    """Write the logarithms of the bands' energies of some frames to `out`."""
    centred = frames - frames.mean(axis=1, keepdims=True)
    windowed = np.empty_like(centred)
    np.multiply(centred[:, :-1], -_PREEMPHASIS, out=windowed[:, 1:])
    windowed[:, 1:] += centred[:, 1:]
    windowed[:, 0] = centred[:, 0] * (1 - _PREEMPHASIS)  # the sample before the first equals it
    windowed *= _window()
    spectrum = np.fft.rfft(windowed, _FFT_SAMPLES)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32, copy=False)
    for bands, points, triangles in _band_groups():
        np.matmul(power[:, points], triangles, out=out[:, bands])
    np.log(np.maximum(out, _FLOOR, out=out), out=out)


@cache
def _window() -> Floats:
    """Return the Povey window: Hann's, to the power of 0.85."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME_SAMPLES) / (FRAME_SAMPLES - 1))
    window: Floats = (hann**0.85).astype(np.float32)
    return window


@cache
def _band_groups() -> list[tuple[slice, slice, Floats]]:
    """List groups of bands: the bands, the points of the spectrum in them, and each point's weight in each band."""
    triangles = _triangles()
    groups = []
    for first in range(0, N_BANDS, _GROUP_BANDS):
        bands = slice(first, first + _GROUP_BANDS)
        used = np.flatnonzero(triangles[:, bands].any(axis=1))
        points = slice(int(used[0]), int(used[-1]) + 1)
        groups.append((bands, points, np.ascontiguousarray(triangles[points, bands])))
    return groups


def _triangles() -> Floats:
    """Return the weight of each point of the spectrum in each band, (256, 80): none reaches the last point."""
    edges = np.linspace(_mel(_LOWEST_HZ), _mel(_HIGHEST_HZ), N_BANDS + 2)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    points = _mel(np.arange(_FFT_SAMPLES // 2) * (16000 / _FFT_SAMPLES))[:, None]
    rising, falling = (points - left) / (centre - left), (right - points) / (right - centre)
    triangles: Floats = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    return triangles


def _mel(hertz: float | NDArray[Any]) -> Any:
    return 1127.0 * np.log1p(np.asarray(hertz) / 700.0)
