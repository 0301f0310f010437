"""Detection of speech at any level: Silero VAD on the samples as they are and, where they are quiet, amplified too.

Silero VAD hears speech down to peaks of about -45 dBFS, less and less below that, and nothing from -75 dBFS on
(docs/decisions/quiet-speech.md). So stretches below -40 dBFS are given to a second detector, louder by 30 to 48 dB,
and the greater probability counts. Elsewhere there is no second detector: the probabilities are Silero's, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from harken.audio.silero import CHUNK_SAMPLES, Float32, SileroDetector
from harken.errors import HarkenError

QUIET_LEVEL = 0.01
"""Amplitude, without a constant offset, below which samples are quiet: -40 dBFS."""
HOLD_CHUNKS = 10
"""Quiet chunks after a loud one before quiet is believed: 0.3 s, longer than the gaps between most words.

It is shorter than the silence that ends a region, so that a quiet speaker who answers a loud one is found in time.
"""
MIN_GAIN, MAX_GAIN = 32.0, 256.0
"""Amplification of quiet samples, 30 to 48 dB: the more, the quieter, so that none exceeds half of full scale.

Behind loud sound it is always `MIN_GAIN`: much louder, the breath and the room in a pause are taken for speech.
"""
OFFSET_RATE = 0.03
"""Share of the mean of a chunk in the estimate of the constant offset, which follows within a second."""
LASTING_CHUNKS = 3
"""Chunks that amplified speech must last, 0.1 s: a breath in a pause is often taken for speech for one or two."""


class SpeechDetector:
    """Incremental detector of speech in one recording, fed in blocks of any size, with bit-equal results for each."""

    def __init__(self) -> None:
        self._detector = SileroDetector()
        self._amplified: _AmplifyingDetector | None = None
        self._unfinished = np.empty(0, np.float32)
        self._n_quiet_chunks = HOLD_CHUNKS
        self._has_been_loud = False
        self._flushed = False

    def feed(self, samples: Float32) -> Float32:
        """Return the speech probabilities of the chunks that the next samples complete.

        Parameters
        ----------
        samples : ndarray of shape (samples,), float32, 16 kHz, in [-1, 1]

        Returns
        -------
        ndarray of shape (chunks,), float32, 0 to 1
            One probability per `CHUNK_SAMPLES` samples.
        """
        if self._flushed:
            raise HarkenError("SpeechDetector was flushed: a new recording needs a new SpeechDetector")
        waiting = np.concatenate([self._unfinished, samples])
        n_chunks = len(waiting) // CHUNK_SAMPLES
        finished, unfinished = np.split(waiting, [n_chunks * CHUNK_SAMPLES])
        self._unfinished = unfinished.copy()
        chunks = finished.reshape(n_chunks, CHUNK_SAMPLES)
        probabilities = self._detector.feed(finished)
        for is_quiet, first, end in _runs(self._follow_level(chunks)):
            if is_quiet:
                # A new one detects better than one that still remembers the loud chunks before.
                if self._amplified is None:
                    self._amplified = _AmplifyingDetector(MIN_GAIN if self._has_been_loud else MAX_GAIN)
                amplified = self._amplified.feed(chunks[first:end])
                probabilities[first:end] = np.maximum(probabilities[first:end], amplified)
            else:
                self._amplified, self._has_been_loud = None, True
        return probabilities

    def flush(self) -> Float32:
        """End the recording and return the probability of its last, incomplete chunk, padded with zeros.

        Returns
        -------
        ndarray of shape (0 or 1,), float32
        """
        last = self.feed(np.zeros(-len(self._unfinished) % CHUNK_SAMPLES, np.float32))
        self._flushed = True
        return last

    def _follow_level(self, chunks: Float32) -> list[bool]:
        """Return of each chunk whether it is quiet, and has been for long enough."""
        quiet = []
        for is_loud in (~(_levels(chunks) < QUIET_LEVEL)).tolist():
            self._n_quiet_chunks = 0 if is_loud else min(self._n_quiet_chunks + 1, HOLD_CHUNKS + 1)
            quiet.append(self._n_quiet_chunks > HOLD_CHUNKS)
        return quiet


def _levels(chunks: Float32) -> Float32:
    """Return the amplitude of each chunk, without a constant offset."""
    levels: Float32 = (chunks.max(axis=1) - chunks.min(axis=1)) / 2
    return levels


def _runs(values: Sequence[bool]) -> Iterator[tuple[bool, int, int]]:
    """Yield each run of equal values: the value, the index of the first and the one behind the last."""
    end = 0
    for value, run in groupby(values):
        first, end = end, end + len(list(run))
        yield value, first, end


class _AmplifyingDetector:
    """Detector of quiet speech in whole chunks; a probability is the lowest of the last `LASTING_CHUNKS`."""

    def __init__(self, max_gain: float) -> None:
        self._max_gain = max_gain
        self._peak_level = 0.0
        self._detector = SileroDetector()
        self._recent = np.zeros(LASTING_CHUNKS - 1, np.float32)
        self._offset: float | None = None

    def feed(self, chunks: Float32) -> Float32:
        """Return the speech probabilities of the next chunks, an array of shape (chunks, samples)."""
        amplified = self._gains(chunks)[:, None] * (chunks - self._follow_offset(chunks)[:, None])
        probabilities = np.concatenate([self._recent, self._detector.feed(amplified.ravel())])
        self._recent = probabilities[len(probabilities) - len(self._recent) :].copy()
        lasting: Float32 = np.lib.stride_tricks.sliding_window_view(probabilities, LASTING_CHUNKS).min(axis=1)
        return lasting

    def _gains(self, chunks: Float32) -> Float32:
        """Return the amplification of each chunk, a power of two that falls where the level reaches a new peak."""
        levels = np.maximum.accumulate([self._peak_level, *_levels(chunks)])[1:]
        self._peak_level = float(levels[-1])
        gains = np.exp2(np.floor(np.log2(0.5 / np.maximum(levels, 0.5 / MAX_GAIN))))
        return np.clip(gains, MIN_GAIN, self._max_gain).astype(np.float32)

    def _follow_offset(self, chunks: Float32) -> Float32:
        """Return the constant offset of the samples as known in each chunk: amplified, it would drown the speech."""
        offsets = []
        for mean in chunks.mean(axis=1, dtype=np.float64).tolist():
            self._offset = mean if self._offset is None else self._offset + OFFSET_RATE * (mean - self._offset)
            offsets.append(self._offset)
        return np.array(offsets, np.float32)
