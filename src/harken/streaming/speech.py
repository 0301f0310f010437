"""The speech of a stream before any word is known: where utterances begin and end, and how noisy it is.

An utterance ends at a long pause, or at a shorter one after the end of a sentence. The longer it is, the shorter the
pause that ends it, so that it ends at a pause that has just occurred. One without any pause is split at its longest
silence once it reaches the limit.

Utterances are the regions of `harken.audio.vad`, reported while they happen. Speech probabilities go in one by one, so
the result does not depend on how the samples of the stream were split into blocks::

    endpointer = Endpointer(VadOptions(), sentence_pause_s=0.5, pause_s=1.0, max_utterance_frames=2500)
    for probability in detector.feed(samples):
        for endpoint in endpointer.feed(probability, sentence_ended=text.endswith(".")):
            ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harken.audio.vad import CHUNK_SAMPLES, FrameSpan, RegionTracker, VadOptions
from harken.contract import Floats
from harken.streaming.config import MIN_PAUSE_S
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE

NOISY_DB = 10.0
"""Ratio below which a stream is noisy. In clean streams shorter windows cost words."""
HYSTERESIS_DB = 4.0
"""The ratio must exceed the limit by this much before a stream is noisy no more."""

_DECAY = 1 - CHUNK_SAMPLES / (20 * SAMPLE_RATE)
"""Time constant of 20 s: of audio for the noise, of speech for the speech."""
_SPEECH_THRESHOLD = 0.8
_MIN_SPEECH_CHUNKS = 31  # one second
_POWER_FLOOR = 1e-9
"""Power of digital silence, including the quantisation noise of 16 bits."""
_HISTOGRAM_BINS = 91  # of 1 dB, from 0 down to -90
_NOISE_QUANTILE = 0.1
_PREEMPHASIS = 0.95  # attenuates rumble below speech


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The start or the end of an utterance.

    Parameters
    ----------
    frame : int
        The first mel frame of the utterance in the stream, or the one after its last. It lies in the past: speech must
        last for some time before it counts, and some audio before it is included; with the limit often far in the past.
    reason : {"silence", "sentence", "limit", "flush", "close"}, optional
        Of the end, as in `harken.streaming.events.SpeechEnded`; None for a start.
    """

    frame: int
    reason: str | None = None

    @property
    def is_continued(self) -> bool:
        """True if speech went on at the limit: the next utterance has begun and continues this one."""
        return self.reason == "limit"


class Endpointer:
    """The endpoint detector of one stream.

    Parameters
    ----------
    vad : VadOptions
        Options of the speech regions. The parameters below replace `min_silence_s` and `max_speech_s`, and
        `speech_pad_s` is at most half of `pause_s`.
    sentence_pause_s : float
        Silence that ends an utterance after the end of a sentence.
    pause_s : float
        Silence that ends it anywhere. Both shrink from half the limit on, in proportion to what is left of it.
    max_utterance_frames : int
        The limit: a longer utterance is split at its longest silence, as `RegionTracker` does.

    Notes
    -----
    Utterances come in order of time and do not overlap. The state does not grow with the stream.
    """

    def __init__(
        self, vad: VadOptions, *, sentence_pause_s: float, pause_s: float, max_utterance_frames: int
    ) -> None:
        self._pauses_s = {"sentence": sentence_pause_s, "silence": pause_s}
        self._max_utterance_frames = max_utterance_frames
        self._regions = RegionTracker(
            replace(
                vad,
                min_silence_s=pause_s,
                speech_pad_s=min(vad.speech_pad_s, pause_s / 2),
                max_speech_s=max_utterance_frames / FRAMES_PER_SECOND,
            )
        )
        self._n_chunks = 0
        self._in_utterance = False

    def feed(self, probability: float, *, sentence_ended: bool) -> list[Endpoint]:
        """Take the speech probability of the next `CHUNK_SAMPLES` and return the new endpoints.

        Parameters
        ----------
        probability : float
        sentence_ended : bool
            True if the text of the utterance so far ends a sentence.
        """
        self._n_chunks += 1
        regions = self._regions.feed([probability])
        endpoints = self._endpoints_of(regions, "silence" if self.utterance_start_frame is None else "limit")
        if not self._in_utterance and self.utterance_start_frame is not None:
            self._in_utterance = True
            endpoints.append(Endpoint(self.utterance_start_frame))
        reason = "sentence" if sentence_ended else "silence"
        required_s = self._required_pause_s(self._pauses_s[reason])
        if self._in_utterance and self._regions.trailing_silence_s >= required_s:
            endpoints += self._endpoints_of(self._regions.end_speech(), reason)
        return endpoints

    def end(self, frames: int, reason: str) -> list[Endpoint]:
        """End the current utterance, if there is one, in a stream of `frames` frames so far: flush or close it."""
        return self._endpoints_of(self._regions.flush(frames), reason)

    @property
    def utterance_start_frame(self) -> int | None:
        """First frame of the current utterance; None while there is none."""
        return self._regions.speaking_since

    @property
    def silence_start_frame(self) -> int | None:
        """First frame of the silence in which the current utterance is; None while there is speech."""
        silence_s = self._regions.trailing_silence_s
        if not (self._in_utterance and silence_s):
            return None
        return self._n_chunks * CHUNK_SAMPLES // HOP_SAMPLES - round(silence_s * FRAMES_PER_SECOND)

    @property
    def earliest_needed_frame(self) -> int:
        """The first frame that the current utterance or a later one may contain."""
        return self._regions.stable_until_frames

    def _required_pause_s(self, pause_s: float) -> float:
        """Return the pause that ends an utterance of the current length."""
        frames = self._n_chunks * CHUNK_SAMPLES / HOP_SAMPLES - self.earliest_needed_frame
        pause_scale = min(2 * (1 - frames / self._max_utterance_frames), 1.0)
        return max(pause_scale * pause_s, MIN_PAUSE_S)

    def _endpoints_of(self, regions: Sequence[FrameSpan], reason: str) -> list[Endpoint]:
        """Return the endpoints of completed regions, without starts that have been reported already."""
        endpoints: list[Endpoint] = []
        for start, end in regions:
            endpoints += [Endpoint(start)] * (not self._in_utterance)
            endpoints.append(Endpoint(end, reason))
            self._in_utterance = False
        return endpoints


class SnrEstimator:
    """The recent signal-to-noise ratio of a stream.

    The power of speech is that of the chunks with a high speech probability; the power of noise is that of the softest
    tenth of all chunks. Gaps between words suffice for that, so it needs no pauses. (The percentile of Martin 2001,
    "Noise power spectral density estimation based on optimal smoothing and minimum statistics", with a histogram that
    decays in place of a window of minima.)
    """

    def __init__(self) -> None:
        self._level_histogram = np.zeros(_HISTOGRAM_BINS)
        self._speech_power = self._speech_weight = 0.0
        self._speech_chunks = 0

    def feed(self, chunk: Floats, probability: float) -> None:
        """Take the next `CHUNK_SAMPLES`, float32 in [-1, 1], and their speech probability."""
        power = _power(chunk)
        if power > _POWER_FLOOR:  # digital silence between words says nothing about the noise in them
            self._level_histogram *= _DECAY
            self._level_histogram[round(-10 * float(np.log10(power)))] += 1
        if probability >= _SPEECH_THRESHOLD:
            self._speech_power = _DECAY * self._speech_power + power
            self._speech_weight = _DECAY * self._speech_weight + 1
            self._speech_chunks += 1

    @property
    def snr_db(self) -> float | None:
        """Power of speech over that of noise, in dB, at least -10; None before the first second of speech."""
        if self._speech_chunks < _MIN_SPEECH_CHUNKS:
            return None
        from_softest = np.cumsum(self._level_histogram[::-1])
        noise_bin = np.searchsorted(from_softest, _NOISE_QUANTILE * self._level_histogram.sum())
        noise_power = 10 ** ((float(noise_bin) - (_HISTOGRAM_BINS - 1)) / 10)
        speech_power = self._speech_power / self._speech_weight
        return 10 * float(np.log10(max(speech_power / noise_power - 1, 0.1)))


def is_noisy(snr_db: float | None, was_noisy: bool) -> bool:
    """Return whether a stream is noisy, from the signal-to-noise ratio of `SnrEstimator`, and whether it was before."""
    return snr_db is not None and snr_db < NOISY_DB + HYSTERESIS_DB * was_noisy


def _power(chunk: Floats) -> float:
    """Return the power of a chunk without its lowest frequencies."""
    emphasised = chunk[1:].astype(np.float64) - _PREEMPHASIS * chunk[:-1]
    return float(np.clip(np.var(emphasised), _POWER_FLOOR, 1.0))
