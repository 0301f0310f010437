"""Log-mel spectrograms, equal to openai-whisper's `audio.py`, offline or incremental.

The reference pads a whole recording with 30 s of zeros, computes its spectrogram, and clamps it at 8 decades below
its maximum. Constant memory requires two steps, the raw frames and their normalization::

    mel = LogMel(n_mels=80)
    for block in stream_audio("talk.mp3"):
        frames = mel.feed(block)                # raw log10 bands, 100 frames per second
        ...
    frames = mel.flush()                        # the last frames of the recording
    features = pad_or_trim(normalize(window, mel.ceiling))

Recipe: 25 ms periodic Hann window, 10 ms hop, frame i centred at sample 160 * i, power spectrum, Slaney mel
filterbank, log10 clamped at 1e-10.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, addressof, c_int32, c_int64, c_void_p
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from harken.compiled_library import load_library
from harken.errors import BackendUnavailable, HarkenError, OptionError
from harken.types import HOP_SAMPLES, SAMPLE_RATE, WINDOW_FRAMES

FFT_SAMPLES = 400
LOG_MEL_FLOOR = -10.0
"""Raw log10 mel value of digital silence, at which the reference clamps."""

_TINY = np.finfo(np.float32).tiny  # avoids log10(0); the exact clamp at LOG_MEL_FLOOR comes after the logarithm
_EDGE_SAMPLES = FFT_SAMPLES // 2
_CHUNK_FRAMES = 100  # windows, spectra and powers of one chunk stay in a core's L2 cache

Float32 = NDArray[np.float32]


class LogMel:
    """Incremental extractor of the raw log10 mel frames of one recording, fed in blocks of any size.

    The frames are bit-equal for every block size. `feed` and `flush` together return ``samples // 160`` of them: the
    reference's content frames, computed with zeros after the last sample.

    Parameters
    ----------
    n_mels : int
        Number of mel bands: 80, or 128 for large-v3 and turbo; 1 to 128 are allowed.

    Attributes
    ----------
    ceiling : float
        Maximum log10 value so far, initially `LOG_MEL_FLOOR`. After `flush` it is the maximum that the reference
        normalizes with, which includes padding frames that overlap the last samples.

    Raises
    ------
    OptionError
        If `n_mels` is not allowed.
    """

    def __init__(self, n_mels: int = 80) -> None:
        self.n_mels = n_mels
        self.ceiling = LOG_MEL_FLOOR
        self._frames_of = _frames_function(n_mels)
        self._pending = np.empty(0, np.float32)
        self._fed_samples = 0
        self._n_frames = 0
        self._flushed = False

    def feed(self, samples: Float32) -> Float32:
        """Return the frames that the next samples complete.

        Parameters
        ----------
        samples : ndarray of shape (samples,), float32, 16 kHz

        Returns
        -------
        ndarray of shape (n_mels, frames), float32, log10 mel
            Possibly no frames: the first frame needs 201 samples, as its left half is reflected.
        """
        self._fed_samples += len(samples)
        return self._advance(samples)

    def flush(self) -> Float32:
        """End the recording and return its last frames.

        Returns
        -------
        ndarray of shape (n_mels, frames), float32, log10 mel
        """
        n_content_frames = self._fed_samples // HOP_SAMPLES - self._n_frames
        last_frames = self._advance(np.zeros(FFT_SAMPLES, np.float32))
        self._flushed = True
        return last_frames[:, :n_content_frames]

    def _advance(self, samples: Float32) -> Float32:
        if self._flushed:
            raise HarkenError("LogMel was flushed: a new recording needs a new LogMel")
        waveform = np.concatenate([self._pending, samples])
        if len(waveform) < (FFT_SAMPLES if self._n_frames else _EDGE_SAMPLES + 1):
            self._pending = waveform
            return np.empty((self.n_mels, 0), np.float32)
        if not self._n_frames:
            waveform = np.concatenate([waveform[_EDGE_SAMPLES:0:-1], waveform])
        frames = self._frames_of(waveform)
        self._pending = waveform[frames.shape[1] * HOP_SAMPLES :].copy()
        self._n_frames += frames.shape[1]
        self.ceiling = max(self.ceiling, float(np.max(frames, initial=LOG_MEL_FLOOR)))
        return frames


class _MelTables(Structure):
    """``struct harken_mel_tables``."""

    _fields_ = (
        ("window", c_void_p),
        ("roots", c_void_p),
        ("filters", c_void_p),
        ("filter_bins", c_void_p),
        ("n_mels", c_int32),
    )


class CompiledFrames:
    """Function from a waveform to the raw log10 mel, shape (n_mels, frames), of its whole frames.

    The compiled library takes a tenth of numpy's time, and has the same bits on every processor.

    Parameters
    ----------
    window : ndarray of shape (400,), float32
    filters : ndarray of shape (n_mels, 201), float32

    Raises
    ------
    BackendUnavailable
        If the library was not built, or cannot be loaded.
    """

    def __init__(self, window: Float32, filters: Float32) -> None:
        self._function = load_library().harken_log_mel
        self._function.restype = None
        self._function.argtypes = (c_void_p, c_void_p, c_int32, c_void_p, c_int64)
        angles = -2 * np.pi * np.arange(len(window)) / len(window)
        touched = [np.flatnonzero(row) for row in filters]
        spans = [(int(bins[0]), int(bins[-1]) + 1) if len(bins) else (0, 0) for bins in touched]
        self._arrays = (
            window / np.float32(2),
            np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32),
            np.concatenate([row[start:end] for row, (start, end) in zip(filters, spans, strict=True)]),
            np.array([(start, end - start) for start, end in spans], np.int32),
        )
        self._tables = _MelTables(*(array.ctypes.data for array in self._arrays), len(filters))

    def __call__(self, waveform: Float32) -> Float32:
        waveform = np.ascontiguousarray(waveform, np.float32)
        n_frames = (len(waveform) - len(self._arrays[0])) // HOP_SAMPLES + 1
        frames = np.empty((self._tables.n_mels, n_frames), np.float32)
        self._function(addressof(self._tables), waveform.ctypes.data, n_frames, frames.ctypes.data, n_frames)
        return frames


def numpy_frames(waveform: Float32, n_mels: int) -> Float32:
    """Compute the same as `CompiledFrames` where there is no compiled library, but for the rounding."""
    framed = np.lib.stride_tricks.sliding_window_view(waveform, FFT_SAMPLES)[::HOP_SAMPLES]
    frames = np.empty((n_mels, len(framed)), np.float32)
    for start in range(0, len(framed), _CHUNK_FRAMES):
        spectra = np.fft.rfft(framed[start : start + _CHUNK_FRAMES] * hann(FFT_SAMPLES))
        power = spectra.real**2 + spectra.imag**2
        # A product for each frame: the rounding of BLAS depends on the shape, and so would the bits on the blocks.
        frames[:, start : start + _CHUNK_FRAMES] = np.matmul(mel_filters(n_mels), power[:, :, None])[:, :, 0].T
    return np.maximum(np.log10(np.maximum(frames, _TINY)), np.float32(LOG_MEL_FLOOR))


def log_mel(samples: Float32, n_mels: int = 80, padding_samples: int = 0) -> Float32:
    """Return the normalized log-mel spectrogram of a recording (the reference's `log_mel_spectrogram`).

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32, 16 kHz
    n_mels : int
        Number of mel bands.
    padding_samples : int
        Number of zeros appended to the recording; the reference's `transcribe` appends 30 s.

    Returns
    -------
    ndarray of shape (n_mels, (samples + padding_samples) // 160), float32
        Both ends of the padded recording are reflected, as in ``torch.stft(center=True)``.
    """
    padded = np.pad(samples, (0, padding_samples))
    frames = _frames_function(n_mels)(np.pad(padded, _EDGE_SAMPLES, mode="reflect"))[:, :-1]
    return normalize(frames, float(np.max(frames, initial=LOG_MEL_FLOOR)))


def normalize(log_mel: Float32, ceiling: float) -> Float32:
    """Clamp values at 8 decades below `ceiling` and scale to the range that the encoder was trained on.

    Parameters
    ----------
    log_mel : ndarray of shape (..., frames), float32, log10 mel
        Raw frames of `LogMel`.
    ceiling : float
        Maximum log10 value of the recording, `LogMel.ceiling`.

    Returns
    -------
    ndarray of the same shape, float32
        Values in [(ceiling - 4) / 4, (ceiling + 4) / 4] (the end of the reference's `log_mel_spectrogram`).
    """
    floored = np.maximum(log_mel, np.float32(ceiling - 8.0))
    floored += np.float32(4.0)
    floored /= np.float32(4.0)
    return floored


def pad_or_trim(mel: Float32, frames: int = WINDOW_FRAMES) -> Float32:
    """Trim a window to `frames` frames, or pad it with 0.0 (the reference's `pad_or_trim`).

    Parameters
    ----------
    mel : ndarray of shape (..., any), float32
        Normalized log-mel.
    frames : int
        Length of the result.

    Returns
    -------
    ndarray of shape (..., frames), float32
    """
    padded = np.zeros((*mel.shape[:-1], frames), mel.dtype)
    padded[..., : mel.shape[-1]] = mel[..., :frames]
    return padded


@cache
def mel_filters(n_mels: int) -> Float32:
    """Return Slaney's mel filterbank, normalized to equal area (``librosa.filters.mel(sr=16000, n_fft=400)``).

    Mel numbers are linear below 1 kHz (15 mel) and logarithmic above: 27 mel for a factor of 6.4
    (M. Slaney, Auditory Toolbox, 1998).

    Parameters
    ----------
    n_mels : int
        Number of triangular filters between 0 Hz and 8 kHz.

    Returns
    -------
    ndarray of shape (n_mels, 201), float32, read-only

    Raises
    ------
    OptionError
        If `n_mels` is not from 1 to 128.
    """
    if not 1 <= n_mels <= 128:
        raise OptionError("n_mels", n_mels, "80 or 128, or any from 1 to 128")
    knee_hz, knee_mel, mels_per_log_hz = 1000.0, 15.0, 27.0 / np.log(6.4)
    top_mel = knee_mel + mels_per_log_hz * np.log(SAMPLE_RATE / 2 / knee_hz)
    mels = np.linspace(0.0, top_mel, n_mels + 2)
    above_knee = knee_hz * np.exp((mels - knee_mel) / mels_per_log_hz)
    corners_hz = np.where(mels < knee_mel, mels * knee_hz / knee_mel, above_knee)

    bins_hz = np.fft.rfftfreq(FFT_SAMPLES, 1 / SAMPLE_RATE)
    left, centre, right = (corners_hz[i : i + n_mels, None] for i in range(3))
    rising, falling = (bins_hz - left) / (centre - left), (right - bins_hz) / (right - centre)
    area = (right - left) / 2
    filters: Float32 = (np.maximum(0.0, np.minimum(rising, falling)) / area).astype(np.float32)
    filters.flags.writeable = False
    return filters


@cache
def _frames_function(n_mels: int) -> Callable[[Float32], Float32]:
    """Return the compiled function, or that in numpy if the library is not there."""
    filters = mel_filters(n_mels)
    try:
        return CompiledFrames(hann(FFT_SAMPLES), filters)
    except BackendUnavailable:
        return partial(numpy_frames, n_mels=n_mels)


@cache
def hann(n_samples: int) -> Float32:
    """Return the periodic Hann window, as ``torch.hann_window`` does."""
    window: Float32 = np.hanning(n_samples + 1)[:-1].astype(np.float32)
    return window
