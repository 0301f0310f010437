"""Simulated real time: a live session is fed blocks of audio without waiting, and every call is timed.

Streams join several recordings; the reference times of their words come from forced alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import PurePosixPath
from time import perf_counter, process_time

import numpy as np

from harken.api import Recognizer
from harken.audio import load_audio
from harken.contract import Floats
from harken.evaluation.scoring import EvalRecording
from harken.manifests import Entry
from harken.results import Word
from harken.streaming import Event, LiveSession
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionTime:
    """The time of an event in a stream.

    Attributes
    ----------
    computation_unaware_s : float
        Seconds of audio that had been read, as if computing took no time.
    computation_aware_s : float
        The same with the time that computing took, on the clock of a stream that continues meanwhile.
    """

    computation_unaware_s: float
    computation_aware_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One call of a session.

    Attributes
    ----------
    position_samples : int
        Samples of the stream fed so far.
    wall_s, cpu_s : float
        Duration of the call, by the wall clock and as CPU time of all processors.
    done_s : float
        Time at which it returned, in seconds from the start of the stream in real time.
    events : tuple of Event
    """

    position_samples: int
    wall_s: float
    cpu_s: float
    done_s: float
    events: tuple[Event, ...]

    @property
    def lag_s(self) -> float:
        """Seconds that the session was behind the audio when the call returned."""
        return self.done_s - self.position_samples / SAMPLE_RATE

    def emission_time(self, event: Event) -> EmissionTime:
        """Return the emission time of one of its events."""
        return EmissionTime(
            computation_unaware_s=event.emitted_samples / SAMPLE_RATE, computation_aware_s=self.done_s
        )


def simulate_real_time(
    session: LiveSession, samples: Floats, block_samples: int, *, one_core: bool = False
) -> Iterator[TimedCall]:
    """Feed a stream block by block, and close it.

    The queue of real time is simulated: a call begins once all samples of its block exist and the previous call has
    returned, and takes as long as it took here. Its events are known when it returns. Ma et al. 2020,
    "SimulEval: an evaluation toolkit for simultaneous translation", call this computation-aware;
    computation-unaware is the amount of audio that had been read.

    Parameters
    ----------
    session : LiveSession
    samples : ndarray of shape (samples,), float32
        At 16 kHz.
    block_samples : int
        Samples of a block; the last one may be shorter.
    one_core : bool
        Count CPU time of all processors instead of wall-clock time, as if one core did everything, whatever else
        the machine does meanwhile.

    Yields
    ------
    TimedCall
        One for each call; the last one closes the session.
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
    """Time a call whose samples are available at `position_samples`, started at the earliest at `previous_done_s`."""
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
    """Recordings that are transcribed as one stream.

    Attributes
    ----------
    recordings : tuple of EvalRecording
        In their order.
    gap_s : float
        Silence between two of them, in seconds.
    """

    recordings: tuple[EvalRecording, ...]
    gap_s: float = 0.0

    @property
    def has_reference(self) -> bool:
        """True if the reference texts of all recordings are known."""
        return all(recording.has_reference for recording in self.recordings)

    @property
    def entry(self) -> Entry:
        """The stream as one recording, named by the speaker."""
        first, *others = entries = [recording.entry for recording in self.recordings]
        if not others:
            return first
        folder = PurePosixPath(first.name).parent
        seconds = [entry.seconds for entry in entries]
        known = None if None in seconds else sum(filter(None, seconds)) + self.gap_s * len(others)
        return replace(
            first,
            name=str(folder / (first.speaker or "joined")),
            text=" ".join(entry.text for entry in entries),
            seconds=known,
        )

    def load(self) -> tuple[Floats, ...]:
        """Read the recordings, each followed by the silence, except the last.

        Returns
        -------
        tuple of ndarray of shape (samples,), float32
            At 16 kHz; concatenated they are the stream.

        Raises
        ------
        AudioError
            If one cannot be read.
        """
        silence = np.zeros(round(self.gap_s * SAMPLE_RATE), np.float32)
        *before, last = (load_audio(recording.entry.path) for recording in self.recordings)
        return (*(np.concatenate([samples, silence]) for samples in before), last)


def join_by_speaker(recordings: Iterable[EvalRecording], gap_s: float) -> tuple[JoinedStream, ...]:
    """Join the recordings of each speaker (of a folder, in a language) into a stream, in their order."""

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
    """Return the words of a stream with their times, found by the cross-attention of the model offline.

    A recording with a reference text is aligned with it; any other is transcribed with word timestamps.

    Parameters
    ----------
    recognizer : Recognizer
    stream : JoinedStream
    recording_samples : sequence of ndarray
        From `JoinedStream.load`.
    options : TranscribeOptions

    Returns
    -------
    tuple of Word
        Timed from the start of the stream.

    Raises
    ------
    AudioError
        If the text does not match a long recording.
    """
    words: list[Word] = []
    start_s = 0.0
    for recording, samples in zip(stream.recordings, recording_samples, strict=True):
        found: Iterable[Word]
        if text := recording.entry.text:
            # Words in capitals are many tokens each, which makes their times less exact.
            found = recognizer.align(samples, text.lower() if text.isupper() else text, options)
        else:
            segments = recognizer.transcribe(samples, options, word_timestamps=True).result().segments
            found = (word for segment in segments for word in segment.words)
        words += (replace(word, start_s=word.start_s + start_s, end_s=word.end_s + start_s) for word in found)
        start_s += len(samples) / SAMPLE_RATE
    return tuple(words)
