"""How noisy a stream is, and how long the windows have to be for that.

Speech is as loud as the chunks that voice activity detection is sure of; noise is as loud as the softest tenth of all
chunks, so it is known where nobody pauses too: between words there is nothing else (the percentile of Martin 2001,
"Noise power spectral density estimation based on optimal smoothing and minimum statistics", with a histogram that
fades in place of a window of minima).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from harken.audio.vad import CHUNK_SAMPLES
from harken.contract import Floats
from harken.types import SAMPLE_RATE

CLEAN_WINDOW_FRAMES, NORMAL_WINDOW_FRAMES, NOISY_WINDOW_FRAMES = 100, 200, 300
CLEAN_DB, NOISY_DB = 26.0, 10.0
"""Ratios from which on it is quiet, and below which it is noisy."""
HYSTERESIS_DB = 4.0
"""So much further it has to go back before the window changes back."""

_DECAY = 1 - CHUNK_SAMPLES / (20 * SAMPLE_RATE)
"""A chunk is forgotten in some 20 s: of sound as to noise, of speech as to speech."""
_SPEECH_THRESHOLD = 0.8
_MIN_SPEECH_CHUNKS = 31  # a second
_POWER_FLOOR = 1e-9
"""Of digital silence, the quantisation of 16 bits included."""
_HISTOGRAM_BINS = 91  # in dB, 0 down to that
_NOISE_QUANTILE = 0.1
_PREEMPHASIS = 0.95  # what rumbles below speech disturbs nobody


class SnrEstimator:
    """Ratio of speech to noise in what has been heard lately; the same however the samples were cut."""

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
            Of speech in the chunks that they complete, as `SpeechDetector.feed` gives them.
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
        """Power of speech over that of noise, in dB from -10 on; None before a second of speech has been heard."""
        if self._speech_chunks < _MIN_SPEECH_CHUNKS:
            return None
        noise_bin = np.searchsorted(
            np.cumsum(self._level_histogram[::-1]), _NOISE_QUANTILE * self._level_histogram.sum()
        )
        noise_power = 10 ** ((float(noise_bin) - (_HISTOGRAM_BINS - 1)) / 10)
        speech_power = self._speech_power / self._speech_weight
        return 10 * float(np.log10(max(speech_power / noise_power - 1, 0.1)))

    def _add_chunk(self, power: float, probability: float) -> None:
        if power > _POWER_FLOOR:  # what is muted between words says nothing of what they are heard in
            self._level_histogram *= _DECAY
            self._level_histogram[round(-10 * float(np.log10(power)))] += 1
        if probability >= _SPEECH_THRESHOLD:
            self._speech_power = _DECAY * self._speech_power + power
            self._speech_weight = _DECAY * self._speech_weight + 1
            self._speech_chunks += 1


def window_frames_for_snr(snr_db: float | None, current_frames: int = NORMAL_WINDOW_FRAMES) -> int:
    """How long a window should be.

    Parameters
    ----------
    snr_db : float or None
        Of `SignalToNoise`; of None nothing follows.
    before_frames : int
        How long it has been up to now: one of these lengths is kept until it is clearly wrong.

    Returns
    -------
    int
        100, 200 or 300 frames: shorter where it is quiet, longer where it is noisy.
    """
    if snr_db is None:
        return NORMAL_WINDOW_FRAMES
    if snr_db >= CLEAN_DB - HYSTERESIS_DB * (current_frames == CLEAN_WINDOW_FRAMES):
        return CLEAN_WINDOW_FRAMES
    if snr_db < NOISY_DB + HYSTERESIS_DB * (current_frames == NOISY_WINDOW_FRAMES):
        return NOISY_WINDOW_FRAMES
    return NORMAL_WINDOW_FRAMES


def _power(chunk: Floats) -> float:
    """Power of a chunk without its lowest frequencies."""
    emphasised = chunk[1:].astype(np.float64) - _PREEMPHASIS * chunk[:-1]
    return float(np.clip(np.var(emphasised), _POWER_FLOOR, 1.0))
