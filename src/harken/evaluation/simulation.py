"""A live session in simulated real time: sound comes in blocks, nobody sleeps, and every call is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import PurePosixPath
from time import perf_counter, process_time
from typing import Protocol

import numpy as np

from harken.api import Recognizer
from harken.audio import load_audio
from harken.contract import Floats
from harken.evaluation.manifest import Entry
from harken.evaluation.speed import EvalRecording
from harken.results import Word
from harken.streaming import Event
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE


class LiveSessionProtocol(Protocol):
    """What can be fed with a stream: `harken.streaming` has one, a benchmark may have others."""

    def feed(self, samples: Floats) -> list[Event]:
        """Take the next samples, 16 kHz mono, and tell what came of it."""
        ...

    def close(self) -> list[Event]:
        """End the stream, and tell what is left."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionTime:
    """When something was known.

    Attributes
    ----------
    unaware_s : float
        By the sound that it took alone, as if computing took no time: seconds of the stream.
    aware_s : float
        With the time that computing took, on the clock of a stream that goes on meanwhile.
    """

    computation_unaware_s: float
    computation_aware_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One call of a session.

    Attributes
    ----------
    samples : int
        Length of the stream so far.
    wall_s, cpu_s : float
        What the call took, on the wall and of all processors together.
    done_s : float
        When it was done, in seconds from the start of the stream in real time.
    events : tuple of Event
    """

    position_samples: int
    wall_s: float
    cpu_s: float
    done_s: float
    events: tuple[Event, ...]

    @property
    def lag_s(self) -> float:
        """How far the session was behind the sound when it was done."""
        return self.done_s - self.position_samples / SAMPLE_RATE

    def emission_time(self, event: Event) -> EmissionTime:
        """When an event of it was known."""
        return EmissionTime(
            computation_unaware_s=event.emitted_samples / SAMPLE_RATE, computation_aware_s=self.done_s
        )


def simulate_real_time(
    session: LiveSessionProtocol, samples: Floats, block_samples: int, *, one_core: bool = False
) -> Iterator[TimedCall]:
    """Feed a stream block by block, and close it.

    The queue of real time is simulated: a call begins once its block has been spoken and the call before it is
    done, and takes as long as it took here. Its events are known when it returns. That is what Ma et al. 2020,
    "SimulEval: an evaluation toolkit for simultaneous translation", call computation-aware; computation-unaware is
    how much sound had been read.

    Parameters
    ----------
    session : Live
    samples : ndarray of shape (samples,), float32
        At 16 kHz.
    block_samples : int
        Samples of a block; the last one may be shorter.
    one_core : bool
        Let the time of all processors together pass instead of that on the wall: as if one core did everything,
        whatever else the machine does meanwhile.

    Yields
    ------
    Step
        One a call, the last one of closing.
    """
    timed_call = TimedCall(position_samples=0, wall_s=0.0, cpu_s=0.0, done_s=0.0, events=())
    for start in range(0, len(samples), block_samples):
        block = samples[start : start + block_samples]
        timed_call = _time_call(partial(session.feed, block), start + len(block), timed_call.done_s, one_core)
        yield timed_call
    yield _time_call(session.close, len(samples), timed_call.done_s, one_core)


def _time_call(
    call: Callable[[], list[Event]], position_samples: int, previous_done_s: float, one_core: bool
) -> TimedCall:
    """Do a piece of work for which there is sound so far, at the earliest at `free_s`."""
    start_s, start_cpu_s = perf_counter(), process_time()
    events = call()
    wall_s, cpu_s = perf_counter() - start_s, process_time() - start_cpu_s
    return TimedCall(
        position_samples=position_samples,
        wall_s=wall_s,
        cpu_s=cpu_s,
        done_s=max(position_samples / SAMPLE_RATE, previous_done_s) + (cpu_s if one_core else wall_s),
        events=tuple(events),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedStream:
    """Recordings that are heard as one stream.

    Attributes
    ----------
    sounds : tuple of Sound
        In their order.
    gap_s : float
        Silence between two of them.
    """

    recordings: tuple[EvalRecording, ...]
    gap_s: float = 0.0

    @property
    def has_reference(self) -> bool:
        """Whether all that is said in it is known."""
        return all(sound.has_reference for sound in self.recordings)

    @property
    def entry(self) -> Entry:
        """The stream as one recording, named by the speaker."""
        first, *others = (sound.entry for sound in self.recordings)
        if not others:
            return first
        folder = PurePosixPath(first.name).parent
        seconds = [sound.entry.seconds for sound in self.recordings]
        known = None if None in seconds else sum(filter(None, seconds)) + self.gap_s * len(others)
        return replace(
            first,
            name=str(folder / (first.speaker or "joined")),
            text=" ".join(sound.entry.text for sound in self.recordings),
            seconds=known,
        )

    def load(self) -> tuple[Floats, ...]:
        """Read its recordings, each with the silence behind it but the last.

        Returns
        -------
        tuple of ndarray of shape (samples,), float32
            At 16 kHz; one behind the other they are the stream.

        Raises
        ------
        AudioError
            If one cannot be read.
        """
        silence = np.zeros(round(self.gap_s * SAMPLE_RATE), np.float32)
        *before, last = (load_audio(sound.entry.path) for sound in self.recordings)
        return (*(np.concatenate([samples, silence]) for samples in before), last)


def join_by_speaker(recordings: Iterable[EvalRecording], gap_s: float) -> tuple[JoinedStream, ...]:
    """One stream a speaker (of a folder, in a language), its recordings in their order, with silence between them."""

    def speaker(recording: EvalRecording) -> tuple[str, ...]:
        entry = recording.entry
        return str(PurePosixPath(entry.name).parent), entry.language or "", entry.speaker or ""

    return tuple(
        JoinedStream(recordings=tuple(group), gap_s=gap_s)
        for _, group in groupby(sorted(recordings, key=speaker), key=speaker)
    )


def reference_word_times(
    recognizer: Recognizer,
    stream: JoinedStream,
    recording_samples: Sequence[Floats],
    options: TranscribeOptions,
) -> tuple[Word, ...]:
    """When each word of a stream is spoken, as the model's own attention tells that hears all of it.

    A recording whose text is known is aligned with that; any other is transcribed with times of words.

    Parameters
    ----------
    recognizer : Recognizer
    reel : Reel
    parts : sequence of ndarray
        From `Reel.load`.
    options : TranscribeOptions

    Returns
    -------
    tuple of Word
        With the times of the stream.

    Raises
    ------
    AudioError
        If a long recording does not say its text.
    """
    words: list[Word] = []
    start_s = 0.0
    for recording, samples in zip(stream.recordings, recording_samples, strict=True):
        found: Iterable[Word]
        if text := recording.entry.text:
            # Words in capitals are many tokens each, which blurs the times.
            found = recognizer.align(samples, text.lower() if text.isupper() else text, options)
        else:
            segments = recognizer.transcribe(samples, options, word_timestamps=True).result().segments
            found = (word for segment in segments for word in segment.words)
        words += (
            replace(timed, start_s=timed.start_s + start_s, end_s=timed.end_s + start_s) for timed in found
        )
        start_s += len(samples) / SAMPLE_RATE
    return tuple(words)
