"""Where somebody speaks: regions of a recording out of speech probabilities, with two thresholds.

Speech begins where a probability reaches `onset`, and ends where it falls below `offset` and stays below `onset` for a
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

__all__ = ["CHUNK_SAMPLES", "Region", "Regions", "SpeechDetector", "VadOptions"]

Region = tuple[int, int]
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

    onset: float = _option(0.5, "Speech begins where it is at least this probable.")
    offset: float | None = _option(
        None, "Speech ends where it is less probable than this; none is 0.15 below the onset."
    )
    min_speech_s: float = _option(0.1, "Shorter speech is passed over, in seconds.")
    min_silence_s: float = _option(1.0, "Shorter silence belongs to the speech around it, in seconds.")
    padding_s: float = _option(0.4, "Sound kept before and behind speech, in seconds.")
    max_region_s: float = _option(29.0, "Longer speech is cut, at its longest silence, in seconds.")

    def __post_init__(self) -> None:
        if not 0 < self.onset < 1:
            raise OptionError("onset", self.onset, "a probability above 0 and below 1")
        if self.offset is not None and not 0 < self.offset <= self.onset:
            raise OptionError("offset", self.offset, f"a probability above 0 and at most onset={self.onset}")
        if not 0 <= self.min_speech_s <= WINDOW_S:
            raise OptionError("min_speech_s", self.min_speech_s, f"0 to {WINDOW_S} seconds")
        if not 0 <= self.min_silence_s <= 3600:
            raise OptionError("min_silence_s", self.min_silence_s, "0 to 3600 seconds")
        if not 0 <= self.padding_s <= self.min_silence_s / 2:
            allowed = f"0 seconds to half of min_silence_s={self.min_silence_s}"
            raise OptionError("padding_s", self.padding_s, allowed)
        if not 1 + 2 * self.padding_s <= self.max_region_s <= WINDOW_S:
            allowed = f"{1 + 2 * self.padding_s:g} to {WINDOW_S} seconds, the padding included"
            raise OptionError("max_region_s", self.max_region_s, allowed)

    @property
    def silence_below(self) -> float:
        """Probability below which speech ends (Silero's `neg_threshold`)."""
        return max(self.onset - _HYSTERESIS, 0.01) if self.offset is None else self.offset


class Regions:
    """Regions of speech in one recording.

    Parameters
    ----------
    options : VadOptions

    Notes
    -----
    Regions come in order of time, do not overlap, and are at most `max_region_s` long, their padding included. Speech
    that goes on for longer is cut in its longest silence; where it has none, it is cut as late as may be.
    """

    def __init__(self, options: VadOptions) -> None:
        self._options = options
        self._padding_frames = round(options.padding_s * FRAMES_PER_SECOND)
        self._min_speech_chunks = options.min_speech_s * _CHUNKS_PER_SECOND
        self._min_silence_chunks = max(2.0, options.min_silence_s * _CHUNKS_PER_SECOND)
        self._max_frames = round(options.max_region_s * FRAMES_PER_SECOND)
        self._heard_chunks = 0
        self._edge_frames = 0
        self._speech: _Speech | None = None

    def feed(self, probabilities: Iterable[float]) -> list[Region]:
        """Take the next probabilities, one for every `CHUNK_SAMPLES`, and return the regions that are now certain."""
        return [region for probability in probabilities for region in self._hear(float(probability))]

    def flush(self, frames: int) -> list[Region]:
        """End the recording, which has `frames` frames, and return the last region if there is one.

        What is fed after it is taken for more of the recording, in which speech begins anew.
        """
        # The silence behind it is not long enough to count, but the region may be too long for it.
        regions = [
            (start, frames if frames - start <= self._max_frames else min(end, frames))
            for start, end in self.end_speech()
            if start < frames
        ]
        self._edge_frames = max([self._edge_frames, *(end for _, end in regions)])
        return regions

    def end_speech(self) -> list[Region]:
        """End the speech that is going on where it fell quiet, and return its region unless it is too short."""
        speech, self._speech = self._speech, None
        if speech is None or speech.chunks(self._heard_chunks) < self._min_speech_chunks:
            return []
        padded = _frame(speech.end(self._heard_chunks)) + self._padding_frames
        self._edge_frames = min(padded, _frame(self._heard_chunks))
        return [(speech.start_frames, self._edge_frames)]

    @property
    def speaking_since(self) -> int | None:
        """Frame where a region begins that has not ended, its padding included; None while nobody speaks."""
        if self._speech and self._speech.chunks(self._heard_chunks) >= self._min_speech_chunks:
            return self._speech.start_frames
        return None

    @property
    def silence_s(self) -> float:
        """For how long the speech that has not ended has been quiet; 0 where there is none."""
        quiet = self._speech.quiet if self._speech else None
        return 0.0 if quiet is None else (self._heard_chunks - quiet) / _CHUNKS_PER_SECOND

    @property
    def settled_frames(self) -> int:
        """Every region that is still to come begins at this frame or behind it."""
        return self._speech.start_frames if self._speech else self._start(self._heard_chunks)

    def _hear(self, probability: float) -> list[Region]:
        chunk, speech = self._heard_chunks, self._speech
        self._heard_chunks += 1
        if speech is None:
            if probability >= self._options.onset:
                self._speech = _Speech(start_frames=self._start(chunk), begin=chunk)
            return []
        if probability >= self._options.onset:
            speech.resume(chunk)
        elif probability < self._options.silence_below:
            speech.pause(chunk)
        if speech.quiet is not None:
            return self.end_speech() if self._heard_chunks - speech.quiet >= self._min_silence_chunks else []
        end = _frame(self._heard_chunks) + self._padding_frames
        return [self._cut(speech, chunk)] if end - speech.start_frames > self._max_frames else []

    def _cut(self, speech: _Speech, chunk: int) -> Region:
        """End the speech in its longest silence, the last of several; it goes on behind that.

        A silence in its second half, if there is one: what is left of a sentence by an early cut is short, and is heard
        badly (docs/decisions/vad.md).
        """
        half = speech.start_frames + self._max_frames / 2
        late = [silence for silence in speech.silences if _frame(silence[0]) >= half] or speech.silences
        longest = max(late, key=lambda silence: (silence[1] - silence[0], silence), default=None)
        fell, rose = longest or (chunk, chunk)
        middle = _frame((fell + rose) / 2)
        self._edge_frames = min(_frame(fell) + self._padding_frames, middle)
        self._speech = _Speech(
            start_frames=max(_frame(rose) - self._padding_frames, middle),
            begin=rose,
            silences=[silence for silence in speech.silences if silence[0] > rose],
            carried_chunks=speech.carried_chunks + fell - speech.begin,
        )
        return speech.start_frames, self._edge_frames

    def _start(self, chunk: int) -> int:
        if not self._edge_frames and chunk < self._min_silence_chunks:
            return 0
        return max(_frame(chunk) - self._padding_frames, self._edge_frames)


@dataclass(slots=True)
class _Speech:
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
    begin: int
    quiet: int | None = None
    silences: list[tuple[int, int]] = field(default_factory=list)
    carried_chunks: int = 0

    def pause(self, chunk: int) -> None:
        self.quiet = chunk if self.quiet is None else self.quiet

    def resume(self, chunk: int) -> None:
        if self.quiet is not None:
            self.silences.append((self.quiet, chunk))
        self.quiet = None

    def end(self, heard_chunks: int) -> int:
        return heard_chunks if self.quiet is None else self.quiet

    def chunks(self, heard_chunks: int) -> int:
        """How long it is, with what was cut off."""
        return self.carried_chunks + self.end(heard_chunks) - self.begin


def _frame(chunk: float) -> int:
    """Mel frame in which a chunk begins."""
    return int(chunk * CHUNK_SAMPLES / HOP_SAMPLES)
