"""The signal-to-noise ratio of a stream, and the window length for it.

The power of speech is that of the chunks with a high speech probability; the power of noise is that of the softest
tenth of all chunks. Gaps between words suffice for that, so it needs no pauses. (The percentile of Martin 2001, "Noise
power spectral density estimation based on optimal smoothing and minimum statistics", with a histogram that decays in
place of a window of minima.)
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from harken.audio.vad import CHUNK_SAMPLES
from harken.contract import Floats
from harken.types import SAMPLE_RATE

NORMAL_WINDOW_FRAMES, NOISY_WINDOW_FRAMES = 200, 300
NOISY_DB = 10.0
"""Ratio below which a stream is noisy. In clean streams shorter windows cost words."""
HYSTERESIS_DB = 4.0
"""The ratio must exceed the limit by this much before the window changes back."""

_DECAY = 1 - CHUNK_SAMPLES / (20 * SAMPLE_RATE)
"""Time constant of 20 s: of audio for the noise, of speech for the speech."""
_SPEECH_THRESHOLD = 0.8
_MIN_SPEECH_CHUNKS = 31  # one second
_POWER_FLOOR = 1e-9
"""Power of digital silence, including the quantisation noise of 16 bits."""
_HISTOGRAM_BINS = 91  # of 1 dB, from 0 down to -90
_NOISE_QUANTILE = 0.1
_PREEMPHASIS = 0.95  # attenuates rumble below speech


class SnrEstimator:
    """The recent signal-to-noise ratio of a stream, independent of how the samples were split into blocks."""

    def __init__(self) -> None:
        self._pending_samples = np.empty(0, np.float32)
        self._level_histogram = np.zeros(_HISTOGRAM_BINS)
        self._speech_power = self._speech_weight = 0.0
        self._speech_chunks = 0

    def feed(self, samples: Floats, probabilities: Iterable[float]) -> None:
        """Take the next samples.

        Parameters
        ----------
        samples : ndarray of shape (samples,), float32, 16 kHz, in [-1, 1]
        probabilities : iterable of float
            Speech probability of each chunk that they complete, as `SpeechDetector.feed` returns them.
        """
        pending = np.concatenate([self._pending_samples, samples])
        complete = len(pending) // CHUNK_SAMPLES * CHUNK_SAMPLES
        self._pending_samples = pending[complete:].copy()
        for chunk, probability in zip(
            pending[:complete].reshape(-1, CHUNK_SAMPLES), probabilities, strict=True
        ):
            self._add_chunk(_power(chunk), probability)

    @property
    def snr_db(self) -> float | None:
        """Power of speech over that of noise, in dB, at least -10; None before the first second of speech."""
        if self._speech_chunks < _MIN_SPEECH_CHUNKS:
            return None
        noise_bin = np.searchsorted(
            np.cumsum(self._level_histogram[::-1]), _NOISE_QUANTILE * self._level_histogram.sum()
        )
        noise_power = 10 ** ((float(noise_bin) - (_HISTOGRAM_BINS - 1)) / 10)
        speech_power = self._speech_power / self._speech_weight
        return 10 * float(np.log10(max(speech_power / noise_power - 1, 0.1)))

    def _add_chunk(self, power: float, probability: float) -> None:
        if power > _POWER_FLOOR:  # digital silence between words says nothing about the noise in them
            self._level_histogram *= _DECAY
            self._level_histogram[round(-10 * float(np.log10(power)))] += 1
        if probability >= _SPEECH_THRESHOLD:
            self._speech_power = _DECAY * self._speech_power + power
            self._speech_weight = _DECAY * self._speech_weight + 1
            self._speech_chunks += 1


def window_frames_for_snr(snr_db: float | None, current_frames: int = NORMAL_WINDOW_FRAMES) -> int:
    """Return the window length for a signal-to-noise ratio.

    Parameters
    ----------
    snr_db : float or None
        From `SnrEstimator`; None gives the normal length.
    current_frames : int
        The present length; a longer one stays until the ratio exceeds the limit by `HYSTERESIS_DB`.

    Returns
    -------
    int
        200 or 300 frames: longer for noisy speech.
    """
    if snr_db is None:
        return NORMAL_WINDOW_FRAMES
    if snr_db < NOISY_DB + HYSTERESIS_DB * (current_frames == NOISY_WINDOW_FRAMES):
        return NOISY_WINDOW_FRAMES
    return NORMAL_WINDOW_FRAMES


def _power(chunk: Floats) -> float:
    """Return the power of a chunk without its lowest frequencies."""
    emphasised = chunk[1:].astype(np.float64) - _PREEMPHASIS * chunk[:-1]
    return float(np.clip(np.var(emphasised), _POWER_FLOOR, 1.0))
