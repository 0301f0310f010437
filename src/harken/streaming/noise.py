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

QUIET_FRAMES, USUAL_FRAMES, NOISY_FRAMES = 100, 200, 300
QUIET_DB, NOISY_DB = 26.0, 10.0
"""Ratios from which on it is quiet, and below which it is noisy."""
RETURN_DB = 4.0
"""So much further it has to go back before the window changes back."""

_MEMORY = 1 - CHUNK_SAMPLES / (20 * SAMPLE_RATE)
"""A chunk is forgotten in some 20 s: of sound as to noise, of speech as to speech."""
_SURE = 0.8
_ENOUGH_CHUNKS = 31  # a second
_SILENT_POWER = 1e-9
"""Of digital silence, the quantisation of 16 bits included."""
_LEVELS = 91  # in dB, 0 down to that
_SOFTEST = 0.1
_EMPHASIS = 0.95  # what rumbles below speech disturbs nobody


class SignalToNoise:
    """Ratio of speech to noise in what has been heard lately; the same however the samples were cut."""

    def __init__(self) -> None:
        self._rest = np.empty(0, np.float32)
        self._levels = np.zeros(_LEVELS)
        self._speech_power = self._speech_weight = 0.0
        self._speech_chunks = 0

    def hear(self, samples: Floats, probabilities: Iterable[float]) -> None:
        """Take the next samples.

        Parameters
        ----------
        samples : ndarray of shape (samples,), float32, 16 kHz, in [-1, 1]
        probabilities : iterable of float
            Of speech in the chunks that they complete, as `SpeechDetector.feed` gives them.
        """
        waiting = np.concatenate([self._rest, samples])
        complete = len(waiting) // CHUNK_SAMPLES * CHUNK_SAMPLES
        self._rest = waiting[complete:].copy()
        for chunk, probability in zip(
            waiting[:complete].reshape(-1, CHUNK_SAMPLES), probabilities, strict=True
        ):
            self._hear(_power(chunk), probability)

    @property
    def snr_db(self) -> float | None:
        """Power of speech over that of noise, in dB from -10 on; None before a second of speech has been heard."""
        if self._speech_chunks < _ENOUGH_CHUNKS:
            return None
        softest = np.searchsorted(np.cumsum(self._levels[::-1]), _SOFTEST * self._levels.sum())
        noise_power = 10 ** ((float(softest) - (_LEVELS - 1)) / 10)
        speech_power = self._speech_power / self._speech_weight
        return 10 * float(np.log10(max(speech_power / noise_power - 1, 0.1)))

    def _hear(self, power: float, probability: float) -> None:
        if power > _SILENT_POWER:  # what is muted between words says nothing of what they are heard in
            self._levels *= _MEMORY
            self._levels[round(-10 * float(np.log10(power)))] += 1
        if probability >= _SURE:
            self._speech_power = _MEMORY * self._speech_power + power
            self._speech_weight = _MEMORY * self._speech_weight + 1
            self._speech_chunks += 1


def window_for(snr_db: float | None, before_frames: int = USUAL_FRAMES) -> int:
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
        return USUAL_FRAMES
    if snr_db >= QUIET_DB - RETURN_DB * (before_frames == QUIET_FRAMES):
        return QUIET_FRAMES
    if snr_db < NOISY_DB + RETURN_DB * (before_frames == NOISY_FRAMES):
        return NOISY_FRAMES
    return USUAL_FRAMES


def _power(chunk: Floats) -> float:
    """Power of a chunk without its lowest frequencies."""
    emphasised = chunk[1:].astype(np.float64) - _EMPHASIS * chunk[:-1]
    return float(np.clip(np.var(emphasised), _SILENT_POWER, 1.0))
