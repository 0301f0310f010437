"""Where somebody speaks: regions of a recording out of speech probabilities, with two thresholds.

Speech begins where a probability reaches `threshold`, and ends where it falls below `neg_threshold` and stays below `threshold` for a
while. Nothing here waits or knows the time: probabilities go in as they come, regions come out as soon as they are
certain, and how the probabilities were cut changes nothing::

    detector, regions = SpeechDetector(), Regions(VadOptions())
    for block in stream("talk.mp3"):
        certain = regions.feed(detector.feed(block))
    certain = regions.feed(detector.flush()) + regions.flush(n_frames)

Source: snakers4/silero-vad, utils_vad.py, get_speech_timestamps_from_probs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harken.audio.silero import CHUNK_SAMPLES, SpeechDetector
from harken.errors import OptionError
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, WINDOW_S

__all__ = ["CHUNK_SAMPLES", "RegionTracker", "SpeechDetector", "SpeechRegion", "VadOptions"]

SpeechRegion = tuple[int, int]
"""First mel frame, and the one behind the last."""

_HYSTERESIS = 0.15
_CHUNKS_PER_SECOND = SAMPLE_RATE / CHUNK_SAMPLES


def _option(default: Any, help: str) -> Any:
    """A field with the sentence that faces show beside it."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class VadOptions:
    """What counts as speech.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    threshold: float = _option(0.5, "Speech begins where it is at least this probable.")
    neg_threshold: float | None = _option(
        None, "Speech ends where it is less probable than this; none is 0.15 below the threshold."
    )
    min_speech_s: float = _option(0.1, "Shorter speech is passed over, in seconds.")
    min_silence_s: float = _option(1.0, "Shorter silence belongs to the speech around it, in seconds.")
    speech_pad_s: float = _option(0.4, "Sound kept before and behind speech, in seconds.")
    max_speech_s: float = _option(29.0, "Longer speech is cut, at its longest silence, in seconds.")

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise OptionError("threshold", self.threshold, "a probability above 0 and below 1")
        if self.neg_threshold is not None and not 0 < self.neg_threshold <= self.threshold:
            raise OptionError(
                "neg_threshold",
                self.neg_threshold,
                f"a probability above 0 and at most threshold={self.threshold}",
            )
        if not 0 <= self.min_speech_s <= WINDOW_S:
            raise OptionError("min_speech_s", self.min_speech_s, f"0 to {WINDOW_S} seconds")
        if not 0 <= self.min_silence_s <= 3600:
            raise OptionError("min_silence_s", self.min_silence_s, "0 to 3600 seconds")
        if not 0 <= self.speech_pad_s <= self.min_silence_s / 2:
            allowed = f"0 seconds to half of min_silence_s={self.min_silence_s}"
            raise OptionError("speech_pad_s", self.speech_pad_s, allowed)
        if not 1 + 2 * self.speech_pad_s <= self.max_speech_s <= WINDOW_S:
            allowed = f"{1 + 2 * self.speech_pad_s:g} to {WINDOW_S} seconds, the padding included"
            raise OptionError("max_speech_s", self.max_speech_s, allowed)

    @property
    def effective_neg_threshold(self) -> float:
        """Probability below which speech ends (Silero's `neg_threshold`)."""
        return max(self.threshold - _HYSTERESIS, 0.01) if self.neg_threshold is None else self.neg_threshold


class RegionTracker:
    """Regions of speech in one recording.

    Parameters
    ----------
    options : VadOptions

    Notes
    -----
    Regions come in order of time, do not overlap, and are at most `max_speech_s` long, their padding included. Speech
    that goes on for longer is cut in its longest silence; where it has none, it is cut as late as may be.
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

    def feed(self, speech_probs: Iterable[float]) -> list[SpeechRegion]:
        """Take the next probabilities, one for every `CHUNK_SAMPLES`, and return the regions that are now certain."""
        return [region for speech_prob in speech_probs for region in self._step(float(speech_prob))]

    def flush(self, frames: int) -> list[SpeechRegion]:
        """End the recording, which has `frames` frames, and return the last region if there is one.

        What is fed after it is taken for more of the recording, in which speech begins anew.
        """
        # The silence behind it is not long enough to count, but the region may be too long for it.
        regions = [
            (start, frames if frames - start <= self._max_frames else min(end, frames))
            for start, end in self.end_speech()
            if start < frames
        ]
        self._last_end_frames = max([self._last_end_frames, *(end for _, end in regions)])
        return regions

    def end_speech(self) -> list[SpeechRegion]:
        """End the speech that is going on where it fell quiet, and return its region unless it is too short."""
        region, self._open_region = self._open_region, None
        if region is None or region.length_chunks(self._n_chunks) < self._min_speech_chunks:
            return []
        padded_end_frames = _chunk_to_frame(region.end_chunk(self._n_chunks)) + self._speech_pad_frames
        self._last_end_frames = min(padded_end_frames, _chunk_to_frame(self._n_chunks))
        return [(region.start_frames, self._last_end_frames)]

    @property
    def speaking_since(self) -> int | None:
        """Frame where a region begins that has not ended, its padding included; None while nobody speaks."""
        if self._open_region and self._open_region.length_chunks(self._n_chunks) >= self._min_speech_chunks:
            return self._open_region.start_frames
        return None

    @property
    def trailing_silence_s(self) -> float:
        """For how long the speech that has not ended has been quiet; 0 where there is none."""
        silence_start = self._open_region.silence_start if self._open_region else None
        return 0.0 if silence_start is None else (self._n_chunks - silence_start) / _CHUNKS_PER_SECOND

    @property
    def stable_until_frames(self) -> int:
        """Every region that is still to come begins at this frame or behind it."""
        return (
            self._open_region.start_frames if self._open_region else self._region_start_frames(self._n_chunks)
        )

    def _step(self, speech_prob: float) -> list[SpeechRegion]:
        chunk, region = self._n_chunks, self._open_region
        self._n_chunks += 1
        if region is None:
            if speech_prob >= self._options.threshold:
                self._open_region = _OpenRegion(
                    start_frames=self._region_start_frames(chunk), first_chunk=chunk
                )
            return []
        if speech_prob >= self._options.threshold:
            region.end_silence(chunk)
        elif speech_prob < self._options.effective_neg_threshold:
            region.start_silence(chunk)
        if region.silence_start is not None:
            return (
                self.end_speech() if self._n_chunks - region.silence_start >= self._min_silence_chunks else []
            )
        end = _chunk_to_frame(self._n_chunks) + self._speech_pad_frames
        return [self._split(region, chunk)] if end - region.start_frames > self._max_frames else []

    def _split(self, region: _OpenRegion, chunk: int) -> SpeechRegion:
        """End the speech in its longest silence, the last of several; it goes on behind that.

        A silence in its second half, if there is one: what is left of a sentence by an early cut is short, and is heard
        badly (docs/decisions/vad.md).
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
        if not self._last_end_frames and chunk < self._min_silence_chunks:
            return 0
        return max(_chunk_to_frame(chunk) - self._speech_pad_frames, self._last_end_frames)


@dataclass(slots=True)
class _OpenRegion:
    """Speech that has not ended; positions in chunks.

    Attributes
    ----------
    start_frames : int
        Where its region begins.
    begin : int
        Where it was heard first.
    quiet : int or None
        Since when it has been quiet.
    silences : list of (int, int)
        Where it fell quiet and rose again.
    carried_chunks : int
        How much of it has been cut off.
    """

    start_frames: int
    first_chunk: int
    silence_start: int | None = None
    silences: list[tuple[int, int]] = field(default_factory=list)
    split_off_chunks: int = 0

    def start_silence(self, chunk: int) -> None:
        self.silence_start = chunk if self.silence_start is None else self.silence_start

    def end_silence(self, chunk: int) -> None:
        if self.silence_start is not None:
            self.silences.append((self.silence_start, chunk))
        self.silence_start = None

    def end_chunk(self, n_chunks: int) -> int:
        return n_chunks if self.silence_start is None else self.silence_start

    def length_chunks(self, n_chunks: int) -> int:
        """How long it is, with what was cut off."""
        return self.split_off_chunks + self.end_chunk(n_chunks) - self.first_chunk


def _chunk_to_frame(chunk: float) -> int:
    """Mel frame in which a chunk begins."""
    return int(chunk * CHUNK_SAMPLES / HOP_SAMPLES)
