"""Live runs: sessions of several settings transcribe the same streams in simulated real time.

Streams join several recordings; the reference times of their words come from forced alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from operator import add
from pathlib import PurePosixPath

import numpy as np

from harken.api import Recognizer
from harken.audio import load_audio
from harken.contract import Floats
from harken.errors import AudioError, OptionError
from harken.evaluation.error_rate import ErrorRate, Summed
from harken.evaluation.evaluate import reference_language, resolve_entry_options
from harken.evaluation.latency import (
    Display,
    Latencies,
    measure_latencies,
    simulate_real_time,
    timed,
    unit_splitter,
)
from harken.evaluation.scoring import EvalHypothesis, Failure, score, summarise
from harken.evaluation.speed import median_run, rotation
from harken.manifests import Entry
from harken.results import Word, shifted
from harken.streaming import FinalSegment, Interim, LiveSession, LoadChanged
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedStream:
    """Recordings that are transcribed as one stream, in their order, with silence between them."""

    recordings: tuple[Entry, ...]
    gap_s: float = 0.0

    @property
    def entry(self) -> Entry:
        """The stream as one recording, named by the speaker."""
        first, *others = self.recordings
        if not others:
            return first
        folder = PurePosixPath(first.name).parent
        seconds = [recording.seconds for recording in self.recordings]
        known = None if None in seconds else sum(filter(None, seconds)) + self.gap_s * len(others)
        return replace(
            first,
            name=str(folder / (first.speaker or "joined")),
            text=" ".join(recording.text for recording in self.recordings),
            seconds=known,
            has_reference=all(recording.has_reference for recording in self.recordings),
        )

    def load(self) -> tuple[Floats, ...]:
        """Read the recordings at 16 kHz, each followed by the silence except the last: concatenated, the stream."""
        silence = np.zeros(round(self.gap_s * SAMPLE_RATE), np.float32)
        *before, last = (load_audio(recording.path) for recording in self.recordings)
        return (*(np.concatenate([samples, silence]) for samples in before), last)


def join_by_speaker(recordings: Iterable[Entry], gap_s: float) -> tuple[JoinedStream, ...]:
    """Join the recordings of each speaker (of a folder, in a language) into a stream, in their order."""

    def speaker(entry: Entry) -> tuple[str, ...]:
        return str(PurePosixPath(entry.name).parent), entry.language_tag or "", entry.speaker or ""

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
    """Return the words of a stream with their times in it, found by the cross-attention of the model offline.

    A recording with a reference text is aligned with it; any other is transcribed with word timestamps. The samples
    are those of `JoinedStream.load`. An `AudioError` names a text that does not match its recording.
    """
    words: list[Word] = []
    start_s = 0.0
    for recording, samples in zip(stream.recordings, recording_samples, strict=True):
        found: Iterable[Word]
        if text := recording.text:
            # Words in capitals are many tokens each, which makes their times less exact.
            try:
                found = recognizer.align(samples, text.lower() if text.isupper() else text, options)
            except (AudioError, OptionError) as error:  # the text is that of another recording, or too long
                raise AudioError(f"{recording.path}: {error}") from error
        else:
            segments = recognizer.transcribe(samples, options, word_timestamps=True).result().segments
            found = (word for segment in segments for word in segment.words)
        words += (shifted(word, start_s) for word in found)
        start_s += len(samples) / SAMPLE_RATE
    return tuple(words)


WARM_UP_S = 5.0
"""Seconds of the first stream that every session transcribes beforehand, so that lazy compilation is not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeCost(Summed):
    """Computing time in seconds (wall clock, and CPU time of all processors), and the seconds of audio it was for."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    audio_s: float = 0.0

    @property
    def real_time_factor(self) -> float:
        """Seconds of wall clock per second of audio."""
        return self.wall_s / self.audio_s

    @property
    def cpu_real_time_factor(self) -> float:
        """Seconds of CPU time per second of audio: the real-time factor on one core."""
        return self.cpu_s / self.audio_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCounts(Summed):
    """Counts of what happened while a stream ran."""

    updates: int = 0  # of the displayed text
    retractions: int = 0  # of committed text of an utterance
    flickered: int = 0  # words that were displayed and then removed
    revised: int = 0  # committed words that the segments replace or drop
    load_changes: int = 0  # times that the session reduced or restored its work to keep up


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """The result of one live run over a stream."""

    interim_text: str  # the last displayed of every utterance before its segments
    final_text: str  # of the committed segments
    latencies: Latencies
    counts: LiveCounts
    lag_s: float  # the largest of the session behind the audio
    cost: ComputeCost


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRound:
    """One stream: its offline transcript and the runs of every setting by name."""

    stream: JoinedStream
    offline_text: str
    offline_cost: ComputeCost
    runs: Mapping[str, Sequence[LiveRun]]


def run_live_rounds(
    recognizer: Recognizer,
    sessions: Mapping[str, Callable[[TranscribeOptions], LiveSession]],
    streams: Sequence[JoinedStream],
    options: TranscribeOptions,
    *,
    block_samples: int,
    repeats: int,
    one_core: bool = False,
) -> Iterator[LiveRound | Failure]:
    """Run sessions over the same streams in turn, so that a busy minute of the machine affects all of them.

    Each setting has a name; which one runs first rotates. The recognizer transcribes offline, and finds the times of
    the reference words. It and the sessions get the language of the stream, unless the options name one; a language or
    task that the model does not know is an error before the first stream. A stream that cannot be read is a failure.
    """
    warmed_up = False
    entries = [stream.entry for stream in streams]
    options_of_streams = [
        resolve_entry_options(recognizer, options, entry.name, entry.language_tag) for entry in entries
    ]
    for round_index, (stream, entry, checked_options) in enumerate(
        zip(streams, entries, options_of_streams, strict=True)
    ):
        try:
            recording_samples = stream.load()
            reference_words = reference_word_times(recognizer, stream, recording_samples, checked_options)
        except AudioError as error:
            yield Failure(entry=entry, reason=str(error))
            continue
        samples = np.concatenate(recording_samples)
        if not warmed_up:
            for open_session in sessions.values():
                run_live(
                    open_session(checked_options), samples[: round(WARM_UP_S * SAMPLE_RATE)], block_samples
                )
            warmed_up = True
        transcription = recognizer.transcribe(samples, checked_options)
        transcript, wall_s, cpu_s = timed(transcription.result)
        runs: dict[str, list[LiveRun]] = {name: [] for name in sessions}
        run = partial(
            run_live, reference_words=reference_words, language=checked_options.language_code, one_core=one_core
        )
        for name in rotation(sessions, round_index, repeats):
            runs[name].append(run(sessions[name](checked_options), samples, block_samples))
        yield LiveRound(
            stream=stream,
            offline_text=transcript.text,
            offline_cost=ComputeCost(wall_s=wall_s, cpu_s=cpu_s, audio_s=len(samples) / SAMPLE_RATE),
            runs=runs,
        )


def run_live(
    session: LiveSession,
    samples: Floats,
    block_samples: int,
    reference_words: Sequence[Word] = (),
    *,
    language: str | None = None,
    one_core: bool = False,
) -> LiveRun:
    """Run a new session over a stream in simulated real time (see `simulate_real_time`).

    The rules of the language normalize the words for the comparison with those of the reference.
    """
    split_units = unit_splitter(language)
    display = Display(split_units)
    updates = load_changes = 0
    lag_s = 0.0
    cost = ComputeCost(audio_s=len(samples) / SAMPLE_RATE)
    for timed_call in simulate_real_time(session, samples, block_samples, one_core=one_core):
        cost += ComputeCost(wall_s=timed_call.wall_s, cpu_s=timed_call.cpu_s)
        lag_s = max(lag_s, timed_call.lag_s)
        for event in timed_call.events:
            display.update(event, timed_call.emission_time(event))
            updates += isinstance(event, Interim | FinalSegment)
            load_changes += isinstance(event, LoadChanged)
    displayed_words = display.words()
    return LiveRun(
        interim_text=" ".join(display.interim_texts),
        final_text="".join(display.final_texts),
        latencies=measure_latencies(displayed_words, reference_words, split_units),
        counts=LiveCounts(
            updates=updates,
            retractions=display.retractions,
            flickered=display.flickered,
            revised=display.revised(),
            load_changes=load_changes,
        ),
        lag_s=lag_s,
        cost=cost,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSummary:
    """Totals of the runs of one setting over all streams; of the runs over each, the one of median time counts.

    The word errors are those of the last text displayed before the segments, of the segments, and of the offline
    transcript.
    """

    runs: Sequence[LiveRun]
    latencies: Latencies
    counts: LiveCounts
    interim_wer: ErrorRate | None
    final_wer: ErrorRate | None
    offline_wer: ErrorRate | None
    cost: ComputeCost
    offline_cost: ComputeCost

    @property
    def relative_wer_increase(self) -> float | None:
        """Increase of the word error rate of the segments over the offline one, relative to the offline one."""
        if not (self.final_wer and self.offline_wer and self.offline_wer.rate):
            return None
        return self.final_wer.rate / self.offline_wer.rate - 1

    @property
    def flicker(self) -> float | None:
        """Words removed from the display per word that stayed.

        Source: unstable partial word ratio, Shangguan et al. 2020, "Analyzing the quality and stability of a streaming
        end-to-end on-device speech recognizer".
        """
        words = len(self.latencies.words) + self.latencies.unmatched_hypothesis_words
        return self.counts.flickered / words if words else None


def summarise_live(rounds: Sequence[LiveRound], name: str, options: TranscribeOptions) -> LiveSummary:
    """Add up the runs of one setting, given its name and the options of the rounds."""
    runs = [median_run(live_round.runs[name], lambda run: run.cost.wall_s) for live_round in rounds]

    def wer(texts: Iterable[str]) -> ErrorRate | None:
        return summarise(
            score(stream.entry, EvalHypothesis(text=text), reference_language(stream.entry, options))
            for stream, text in zip((live_round.stream for live_round in rounds), texts, strict=True)
            if stream.entry.has_reference
        ).wer

    return LiveSummary(
        runs=runs,
        latencies=reduce(add, (run.latencies for run in runs), Latencies()),
        counts=reduce(add, (run.counts for run in runs), LiveCounts()),
        interim_wer=wer(run.interim_text for run in runs),
        final_wer=wer(run.final_text for run in runs),
        offline_wer=wer(live_round.offline_text for live_round in rounds),
        cost=reduce(add, (run.cost for run in runs), ComputeCost()),
        offline_cost=reduce(add, (live_round.offline_cost for live_round in rounds), ComputeCost()),
    )
