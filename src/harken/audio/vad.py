"""Voice activity detection: the probability of speech at any level, and the speech regions of a recording.

Silero VAD hears speech down to peaks of about -45 dBFS, less and less below that, and nothing from -75 dBFS on
(docs/decisions/quiet-speech.md). So `SpeechDetector` gives stretches below -40 dBFS to a second detector, louder by 30
to 48 dB, and the greater probability counts. Nor does Silero hear all speech in a room with much reverberation
(docs/decisions/vad.md): where it is in doubt, a second detector is given the sound without its reverberation. Elsewhere
there is none: the probabilities are Silero's, to the bit.

`RegionTracker` has two thresholds. Speech begins where a probability reaches `threshold`. It ends where the probability
falls below `neg_threshold` and then stays below `threshold` for `min_silence_s`. Regions are returned as soon as they
are final, and do not depend on how the probabilities are divided into calls::

    detector, tracker = SpeechDetector(), RegionTracker(VadOptions())
    for block in stream_audio("talk.mp3"):
        regions = tracker.feed(detector.feed(block))
    regions = tracker.feed(detector.flush()) + tracker.flush(n_frames)

Source: snakers4/silero-vad, utils_vad.py, get_speech_timestamps_from_probs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.audio.mel import Float32, hann
from harken.audio.silero import CHUNK_SAMPLES, SileroDetector
from harken.errors import HarkenError, OptionError
from harken.option_types import check, contradiction, option
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, WINDOW_S

__all__ = ["CHUNK_SAMPLES", "FrameSpan", "RegionTracker", "SpeechDetector", "VadOptions", "detect_speech"]

FrameSpan = tuple[int, int]
"""First mel frame, and the one behind the last."""

_HYSTERESIS = 0.15
_CHUNKS_PER_SECOND = SAMPLE_RATE / CHUNK_SAMPLES

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
"""Chunks that speech of a second detector must last, 0.1 s: a breath is often taken for speech for one or two."""
DOUBT_CHUNKS = 31
"""Chunks, a second, none of which is speech before there is a doubt, as in most pauses there is none."""
DOUBT = 0.005
"""Mean probability of the last half of them from which on there is one; in silence and in most music it is lower."""
BELIEVED = 0.9
"""Probability from which on the second detector is believed: from 0.8 on a crowd is taken for speech."""
SURE = 0.5
"""Probability of a chunk of speech."""
_HOP = CHUNK_SAMPLES // 2
_ROOT_HANN = np.sqrt(hann(2 * _HOP))  # twice applied, its halves add up to 1
_LATE_FRAMES, _LATE_DECAY = 3, 0.85  # of 16 ms: late is after 48 ms; the mean is over about a tenth of a second
_LEAST_SHARE, _LEAST_POWER = 0.01, 1e-12


class SpeechDetector:
    """Incremental detector of speech in one recording, fed in blocks of any size, with bit-equal results for each."""

    def __init__(self) -> None:
        self._detector = SileroDetector()
        self._amplified: _AmplifyingDetector | None = None
        self._doubt = _Doubt()
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
        probabilities = self._doubt.settled(chunks, self._detector.feed(finished))
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


class _LastingDetector:
    """Silero in whole chunks; a probability is the lowest of the last `LASTING_CHUNKS`."""

    def __init__(self) -> None:
        self._detector = SileroDetector()
        self._recent = np.zeros(LASTING_CHUNKS - 1, np.float32)

    def feed(self, samples: Float32) -> Float32:
        """Return the speech probabilities of the next chunks."""
        probabilities = np.concatenate([self._recent, self._detector.feed(samples)])
        self._recent = probabilities[len(probabilities) - len(self._recent) :].copy()
        lasting: Float32 = np.lib.stride_tricks.sliding_window_view(probabilities, LASTING_CHUNKS).min(axis=1)
        return lasting


class _AmplifyingDetector:
    """Detector of quiet speech in whole chunks."""

    def __init__(self, max_gain: float) -> None:
        self._max_gain = max_gain
        self._peak_level = 0.0
        self._detector = _LastingDetector()
        self._offset: float | None = None

    def feed(self, chunks: Float32) -> Float32:
        """Return the speech probabilities of the next chunks, an array of shape (chunks, samples)."""
        amplified = self._gains(chunks)[:, None] * (chunks - self._follow_offset(chunks)[:, None])
        return self._detector.feed(amplified.ravel())

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


class _Doubt:
    """A detector's doubt, and what another one finds there without the reverberation."""

    def __init__(self) -> None:
        self._chunks = np.zeros((DOUBT_CHUNKS, CHUNK_SAMPLES), np.float32)
        self._probabilities = np.ones(DOUBT_CHUNKS, np.float32)  # no doubt within the first second
        self._second: _DryDetector | None = None

    def settled(self, chunks: Float32, probabilities: Float32) -> Float32:
        """Return the probabilities of the next chunks, those in doubt raised to the second detector's."""
        settled = probabilities.copy()
        chunks = np.concatenate([self._chunks, chunks])
        probabilities = np.concatenate([self._probabilities, probabilities])
        self._chunks, self._probabilities = (each[len(settled) :].copy() for each in (chunks, probabilities))
        for is_doubtful, first, end in _runs(_doubtful(probabilities).tolist()):
            if not is_doubtful:
                self._second = None
                continue
            if self._second is None:
                self._second = _DryDetector()
                self._second.feed(chunks[first : first + DOUBT_CHUNKS])
            second = self._second.feed(chunks[first + DOUBT_CHUNKS : end + DOUBT_CHUNKS])
            settled[first:end] = np.maximum(settled[first:end], np.where(second >= BELIEVED, second, 0))
        return settled


def _doubtful(probabilities: Float32) -> NDArray[np.bool_]:
    """Return of each chunk but the first `DOUBT_CHUNKS` whether it and those before it leave a doubt."""
    # Sums of integers are exact, so it changes none how the probabilities are divided into calls.
    thousandths = np.rint(1000 * probabilities)
    half = DOUBT_CHUNKS // 2
    doubtful: NDArray[np.bool_] = (_sums(probabilities >= SURE, DOUBT_CHUNKS) == 0) & (
        _sums(thousandths, half)[DOUBT_CHUNKS - half :] >= 1000 * DOUBT * half
    )
    return doubtful


def _sums(values: NDArray[Any], n: int) -> NDArray[np.int64]:
    """Return the sum of each value but the first n and of those before it, n in all."""
    sums = np.cumsum(values, dtype=np.int64)
    return sums[n:] - sums[:-n]


class _DryDetector:
    """Detector of speech in whole chunks without their reverberation, 16 ms late.

    The power of late reverberation is about the mean of that of the last tenths of a second, and is subtracted from the
    spectrum. Source: Lebart, Boucher and Denbigh, A new method based on spectral subtraction for speech
    dereverberation, 2001.
    """

    def __init__(self) -> None:
        self._detector = _LastingDetector()
        self._before = np.zeros(_HOP, np.float32)
        self._overlap = np.zeros(_HOP)
        self._powers = np.zeros((_LATE_FRAMES, _HOP + 1))
        self._late = np.zeros(_HOP + 1)

    def feed(self, chunks: Float32) -> Float32:
        """Return the speech probabilities of the next chunks, an array of shape (chunks, samples)."""
        samples = np.concatenate([self._before, chunks.ravel()])
        self._before = samples[-_HOP:].copy()
        spectra = np.fft.rfft(_ROOT_HANN * np.lib.stride_tricks.sliding_window_view(samples, 2 * _HOP)[::_HOP])
        powers = spectra.real**2 + spectra.imag**2
        before = np.concatenate([self._powers, powers])
        self._powers = before[len(powers) :].copy()
        late = (1 - _LATE_DECAY) * before[: len(powers)]
        for frame in late:
            frame += _LATE_DECAY * self._late
            self._late = frame
        self._late = self._late.copy()
        spectra *= np.sqrt(np.maximum(1 - late / (powers + _LEAST_POWER), _LEAST_SHARE))
        first, second = np.split(_ROOT_HANN * np.fft.irfft(spectra), 2, axis=1)
        dry = first + np.concatenate([self._overlap[None], second[:-1]])
        self._overlap = second[-1].copy()
        return self._detector.feed(dry.ravel().astype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class VadOptions:
    """Options of voice activity detection.

    Attributes
    ----------
    threshold : float
        Speech begins where it is at least this probable.
    min_speech_s : float
        Shorter speech is ignored.
    min_silence_s : float
        Shorter silence belongs to the speech around it.
    speech_pad_s : float
        Audio kept before and after speech.
    max_speech_s : float
        Longer speech is split at its longest silence.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    threshold: float = option(0.5, above=0, below=1, noun="a probability")
    min_speech_s: float = option(0.1, low=0, high=WINDOW_S, noun="seconds")
    min_silence_s: float = option(1.0, low=0, high=3600, noun="seconds")
    speech_pad_s: float = option(0.4, low=0, high=14, noun="seconds")
    max_speech_s: float = option(29.0, low=1, high=WINDOW_S, noun="seconds")

    def __post_init__(self) -> None:
        check(self)
        if self.min_silence_s < 2 * self.speech_pad_s:
            raise contradiction(
                self,
                min_silence_s=f"at least {2 * self.speech_pad_s:g} seconds, "
                f"twice speech_pad_s={self.speech_pad_s:g}",
                speech_pad_s=f"at most {self.min_silence_s / 2:g} seconds, "
                f"half of min_silence_s={self.min_silence_s:g}",
            )
        if 1 + 2 * self.speech_pad_s > self.max_speech_s:
            allowed = f"{1 + 2 * self.speech_pad_s:g} to {WINDOW_S} seconds, the padding included"
            raise OptionError("max_speech_s", self.max_speech_s, allowed)

    @property
    def neg_threshold(self) -> float:
        """Probability below which speech ends (Silero's `neg_threshold`)."""
        return max(self.threshold - _HYSTERESIS, 0.01)


class RegionTracker:
    """Incremental tracker of the speech regions of one recording.

    Parameters
    ----------
    options : VadOptions

    Notes
    -----
    Regions are in order of time, do not overlap, and are at most `max_speech_s` long, including their padding. Longer
    speech is split at its longest silence or, if it has none, as late as possible.
    """

    def __init__(self, options: VadOptions) -> None:
        self._options = options
        self._speech_pad_frames = round(options.speech_pad_s * FRAMES_PER_SECOND)
        self._min_speech_chunks = options.min_speech_s * _CHUNKS_PER_SECOND
        self._min_silence_chunks = max(2.0, options.min_silence_s * _CHUNKS_PER_SECOND)
        self._max_frames = round(options.max_speech_s * FRAMES_PER_SECOND)
        self._n_chunks = 0
        self._last_end_frames = 0
        self._open_region: _OpenRegion | None = None

    def feed(self, speech_probs: Iterable[float]) -> list[FrameSpan]:
        """Return the regions that the next probabilities, one per `CHUNK_SAMPLES`, complete."""
        return [region for speech_prob in speech_probs for region in self._step(float(speech_prob))]

    def flush(self, frames: int) -> list[FrameSpan]:
        """End the recording, which has `frames` frames, and return its last region, if any.

        Probabilities fed afterwards continue the recording, with no speech in progress.
        """
        # The trailing silence is too short to end the region, so it belongs to it unless the region gets too long.
        regions = [
            (start, frames if frames - start <= self._max_frames else min(end, frames))
            for start, end in self.end_speech()
            if start < frames
        ]
        self._last_end_frames = max([self._last_end_frames, *(end for _, end in regions)])
        return regions

    def end_speech(self) -> list[FrameSpan]:
        """End the speech in progress at its trailing silence and return its region unless it is too short."""
        region, self._open_region = self._open_region, None
        if region is None or region.length_chunks(self._n_chunks) < self._min_speech_chunks:
            return []
        padded_end_frames = _chunk_to_frame(region.end_chunk(self._n_chunks)) + self._speech_pad_frames
        self._last_end_frames = min(padded_end_frames, _chunk_to_frame(self._n_chunks))
        return [(region.start_frames, self._last_end_frames)]

    @property
    def speaking_since(self) -> int | None:
        """First frame, including padding, of the speech in progress; None if there is none."""
        if self._open_region and self._open_region.length_chunks(self._n_chunks) >= self._min_speech_chunks:
            return self._open_region.start_frames
        return None

    @property
    def trailing_silence_s(self) -> float:
        """Seconds of silence at the end of the speech in progress; 0 if there is none."""
        silence_start = self._open_region.silence_start if self._open_region else None
        return 0.0 if silence_start is None else (self._n_chunks - silence_start) / _CHUNKS_PER_SECOND

    @property
    def stable_until_frames(self) -> int:
        """Frame at or after which every future region begins."""
        region = self._open_region
        return region.start_frames if region else self._region_start_frames(self._n_chunks)

    def _step(self, speech_prob: float) -> list[FrameSpan]:
        chunk, region = self._n_chunks, self._open_region
        self._n_chunks += 1
        if region is None:
            if speech_prob >= self._options.threshold:
                self._open_region = _OpenRegion(
                    start_frames=self._region_start_frames(chunk), first_chunk=chunk
                )
            return []
        if speech_prob >= self._options.threshold:
            if region.silence_start is not None:
                region.silences.append((region.silence_start, chunk))
            region.silence_start = None
        elif speech_prob < self._options.neg_threshold and region.silence_start is None:
            region.silence_start = chunk
        if region.silence_start is not None:
            n_silent = self._n_chunks - region.silence_start
            return self.end_speech() if n_silent >= self._min_silence_chunks else []
        end = _chunk_to_frame(self._n_chunks) + self._speech_pad_frames
        return [self._split(region, chunk)] if end - region.start_frames > self._max_frames else []

    def _split(self, region: _OpenRegion, chunk: int) -> FrameSpan:
        """Split the speech at its longest silence, the last one of several equally long.

        Silences in the second half of the region are preferred: an early split leaves a short rest of a sentence, which
        is transcribed badly (docs/decisions/vad.md).
        """
        middle_frames = region.start_frames + self._max_frames / 2
        candidates = [
            silence for silence in region.silences if _chunk_to_frame(silence[0]) >= middle_frames
        ] or region.silences
        longest = max(candidates, key=lambda silence: (silence[1] - silence[0], silence), default=None)
        silence_start, silence_end = longest or (chunk, chunk)
        silence_middle_frames = _chunk_to_frame((silence_start + silence_end) / 2)
        self._last_end_frames = min(
            _chunk_to_frame(silence_start) + self._speech_pad_frames, silence_middle_frames
        )
        self._open_region = _OpenRegion(
            start_frames=max(_chunk_to_frame(silence_end) - self._speech_pad_frames, silence_middle_frames),
            first_chunk=silence_end,
            silences=[silence for silence in region.silences if silence[0] > silence_end],
            split_off_chunks=region.split_off_chunks + silence_start - region.first_chunk,
        )
        return region.start_frames, self._last_end_frames

    def _region_start_frames(self, chunk: int) -> int:
        start = max(_chunk_to_frame(chunk) - self._speech_pad_frames, self._last_end_frames)
        # Silence that would not end a region begins none: it belongs to the first.
        return 0 if not self._last_end_frames and start < _chunk_to_frame(self._min_silence_chunks) else start


@dataclass(slots=True)
class _OpenRegion:
    """Speech in progress; positions are in chunks.

    Attributes
    ----------
    start_frames : int
        First mel frame of its region.
    first_chunk : int
        First chunk with speech.
    silence_start : int or None
        First chunk of the current silence.
    silences : list of (int, int)
        First chunk of each earlier silence, and the chunk after its last.
    split_off_chunks : int
        Number of chunks of the same speech in regions that were split off.
    """

    start_frames: int
    first_chunk: int
    silence_start: int | None = None
    silences: list[tuple[int, int]] = field(default_factory=list)
    split_off_chunks: int = 0

    def end_chunk(self, n_chunks: int) -> int:
        return n_chunks if self.silence_start is None else self.silence_start

    def length_chunks(self, n_chunks: int) -> int:
        """Return the number of chunks of speech, including those split off."""
        return self.split_off_chunks + self.end_chunk(n_chunks) - self.first_chunk


def _chunk_to_frame(chunk: float) -> int:
    """Return the mel frame in which a chunk begins."""
    return int(chunk * CHUNK_SAMPLES / HOP_SAMPLES)


def detect_speech(samples: Float32, options: VadOptions) -> tuple[Float32, list[FrameSpan]]:
    """Return the speech probabilities of a whole recording, and its speech regions."""
    detector, tracker = SpeechDetector(), RegionTracker(options)
    probabilities = np.concatenate([detector.feed(samples), detector.flush()])
    n_frames = len(samples) * FRAMES_PER_SECOND // SAMPLE_RATE
    return probabilities, [*tracker.feed(probabilities.tolist()), *tracker.flush(n_frames)]
