"""Live sessions that hear recordings, several settings in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, attrgetter
from time import perf_counter, process_time

import numpy as np

from harken.api import Recognizer
from harken.contract import Floats
from harken.errors import AudioError
from harken.evaluation.hypotheses import EvalHypothesis
from harken.evaluation.latency import Display, Latencies, Percentiles, measure_latencies, unit_splitter
from harken.evaluation.scoring import ErrorRate, Failure, score, summarise
from harken.evaluation.simulation import (
    JoinedStream,
    LiveSessionProtocol,
    reference_word_times,
    simulate_real_time,
)
from harken.results import Word
from harken.streaming import FinalSegment, Interim, LoadChanged
from harken.text import to_language_code
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

SessionFactory = Callable[[TranscribeOptions], LiveSessionProtocol]
"""Opens a session with some options."""

WARM_UP_S = 5.0
"""How much of the first stream every session hears beforehand, so that what is compiled lazily is compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeCost:
    """What something took, in seconds: on the wall, of all processors together, and of sound it was for."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    audio_s: float = 0.0

    def __add__(self, other: ComputeCost) -> ComputeCost:
        return ComputeCost(
            wall_s=self.wall_s + other.wall_s,
            cpu_s=self.cpu_s + other.cpu_s,
            audio_s=self.audio_s + other.audio_s,
        )

    @property
    def real_time_factor(self) -> float:
        """Seconds of computing for a second of sound."""
        return self.wall_s / self.audio_s

    @property
    def cpu_real_time_factor(self) -> float:
        """Seconds of processors for a second of sound: what one core would need."""
        return self.cpu_s / self.audio_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """One stream, heard live.

    Attributes
    ----------
    interim : str
        What was shown last of every utterance before its segments.
    final : str
        Text of the committed segments.
    latencies : Latencies
    retractions : int
        How often an utterance's committed text was taken back.
    flickered : int
        Words that were shown and then not any more.
    revised : int
        Words that were committed, and that the segments have otherwise or not at all.
    updates : int
        How many times text was shown.
    loads : int
        How often the session did less, or more again, so as to keep up.
    lag_s : float
        Furthest that the session was behind the sound.
    cost : Cost
    """

    interim_text: str
    final_text: str
    latencies: Latencies
    retractions: int
    flickered: int
    revised: int
    updates: int
    load_changes: int
    lag_s: float
    cost: ComputeCost


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRound:
    """One stream: the offline pass over it, and every session's passes by the names of their settings."""

    stream: JoinedStream
    offline_text: str
    offline_cost: ComputeCost
    runs: Mapping[str, tuple[LiveRun, ...]]


def run_live_rounds(
    recognizer: Recognizer,
    sessions: Mapping[str, SessionFactory],
    streams: Sequence[JoinedStream],
    options: TranscribeOptions,
    *,
    block_samples: int,
    repeats: int,
    one_core: bool = False,
) -> Iterator[LiveRound | Failure]:
    """Have sessions hear the same streams, so that a busy minute of the machine hits all of them.

    Parameters
    ----------
    recognizer : Recognizer
        Makes the offline pass, and finds out when words are spoken.
    sessions : mapping of str to callable
        What opens one, by the names of their takes; they begin a turn in rotation.
    reels : sequence of Reel
        Their language is given to the sessions, unless the options name one.
    options : TranscribeOptions
    block_samples : int
        How much sound they are fed at a time.
    repeats : int
        Passes of each over a stream.
    one_core : bool
        See `simulate`.

    Yields
    ------
    LiveTurn or Failure
        One a stream; a failure for one that cannot be read.

    Raises
    ------
    OptionError
        If the model does not know a language or the task, or a session refuses its setting.
    """
    warmed_up = False
    for round_index, stream in enumerate(streams):
        checked_options = recognizer.resolve_options(
            options, language=options.language or stream.entry.language
        )
        try:
            recording_samples = stream.load()
            reference_words = reference_word_times(recognizer, stream, recording_samples, checked_options)
        except AudioError as error:
            yield Failure(entry=stream.entry, reason=str(error))
            continue
        samples = np.concatenate(recording_samples)
        for open_session in {} if warmed_up else sessions.values():
            run_live(open_session(checked_options), samples[: round(WARM_UP_S * SAMPLE_RATE)], block_samples)
        warmed_up = True
        offline_text, offline_cost = _transcribe_offline(recognizer, samples, checked_options)
        runs: dict[str, list[LiveRun]] = {name: [] for name in sessions}
        for repeat_index in range(repeats):
            first = (round_index + repeat_index) % len(sessions)
            for name in [*sessions][first:] + [*sessions][:first]:
                session = sessions[name](checked_options)
                runs[name].append(
                    run_live(
                        session,
                        samples,
                        block_samples,
                        reference_words,
                        language=checked_options.language,
                        one_core=one_core,
                    )
                )
        yield LiveRound(
            stream=stream,
            offline_text=offline_text,
            offline_cost=offline_cost,
            runs={name: tuple(each) for name, each in runs.items()},
        )


def run_live(
    session: LiveSessionProtocol,
    samples: Floats,
    block_samples: int,
    reference_words: Sequence[Word] = (),
    *,
    language: str | None = None,
    one_core: bool = False,
) -> LiveRun:
    """Let a session hear a stream in simulated real time (see `simulate`).

    Parameters
    ----------
    session : Live
        Fresh.
    samples : ndarray of shape (samples,), float32
    block_samples : int
    words : sequence of Word
        What is spoken, with the times of the stream.
    language : str or None
        Code or name; by its rules words are compared.
    one_core : bool
        See `simulate`.
    """
    split_units = unit_splitter(language and to_language_code(language))
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
        retractions=display.retractions,
        flickered=display.flickered,
        revised=display.revised(),
        updates=updates,
        load_changes=load_changes,
        lag_s=lag_s,
        cost=cost,
    )


def _transcribe_offline(
    recognizer: Recognizer, samples: Floats, options: TranscribeOptions
) -> tuple[str, ComputeCost]:
    start_s, start_cpu_s = perf_counter(), process_time()
    text = recognizer.transcribe(samples, options).text
    wall_s, cpu_s = perf_counter() - start_s, process_time() - start_cpu_s
    return text, ComputeCost(wall_s=wall_s, cpu_s=cpu_s, audio_s=len(samples) / SAMPLE_RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSummary:
    """What sessions of one setting came to over all streams; of the passes over each, the one of median time counts.

    Attributes
    ----------
    takes : tuple of LiveTake
    interim_unaware, interim_aware, commit_unaware, commit_aware : Spread or None
        Latency of words until they were shown to stay, and until they were committed; None where no word has one.
    latencies : Latencies
    interim, final, offline : ErrorRate or None
        Word errors of what was shown last before the segments, of the segments, and of the offline pass.
    cost, offline_cost : Cost
    """

    runs: tuple[LiveRun, ...]
    interim_latency_unaware: Percentiles | None
    interim_latency_aware: Percentiles | None
    commit_latency_unaware: Percentiles | None
    commit_latency_aware: Percentiles | None
    latencies: Latencies
    interim_wer: ErrorRate | None
    final_wer: ErrorRate | None
    offline_wer: ErrorRate | None
    cost: ComputeCost
    offline_cost: ComputeCost

    @property
    def relative_wer_increase(self) -> float | None:
        """How much higher the error rate of the segments is than the offline one, relative to that."""
        if not (self.final_wer and self.offline_wer and self.offline_wer.rate):
            return None
        return self.final_wer.rate / self.offline_wer.rate - 1

    @property
    def flicker(self) -> float | None:
        """Words taken off the screen for each that stayed."""
        words = len(self.latencies.words) + self.latencies.unmatched_hypothesis_words
        return self.total("flickered") / words if words else None

    def total(self, name: str) -> int:
        """Sum of a count over all streams."""
        return sum(getattr(run, name) for run in self.runs)


def summarise_live(rounds: Sequence[LiveRound], name: str, options: TranscribeOptions) -> LiveSummary:
    """Add up the takes of one setting.

    Parameters
    ----------
    turns : sequence of LiveTurn
    name : str
        Of the setting.
    options : TranscribeOptions
        Those of the turns.
    """
    runs = tuple(_median_run(turn.runs[name]) for turn in rounds)
    latencies: Latencies = reduce(add, (its.latencies for its in runs), Latencies())

    def percentiles(attribute: str) -> Percentiles | None:
        return Percentiles.of(map(attrgetter(attribute), latencies.words))

    def wer(texts: Iterable[str]) -> ErrorRate | None:
        language = options.language and to_language_code(options.language)
        return summarise(
            score(turn.stream.entry, EvalHypothesis(text=text), turn.stream.entry.language or language)
            for turn, text in zip(rounds, texts, strict=True)
            if turn.stream.has_reference
        ).wer

    return LiveSummary(
        runs=runs,
        interim_latency_unaware=percentiles("interim_latency.computation_unaware_s"),
        interim_latency_aware=percentiles("interim_latency.computation_aware_s"),
        commit_latency_unaware=percentiles("commit_latency.computation_unaware_s"),
        commit_latency_aware=percentiles("commit_latency.computation_aware_s"),
        latencies=latencies,
        interim_wer=wer(its.interim_text for its in runs),
        final_wer=wer(its.final_text for its in runs),
        offline_wer=wer(turn.offline_text for turn in rounds),
        cost=reduce(add, (its.cost for its in runs), ComputeCost()),
        offline_cost=reduce(add, (turn.offline_cost for turn in rounds), ComputeCost()),
    )


def _median_run(runs: Sequence[LiveRun]) -> LiveRun:
    """The one that took the median time."""
    return sorted(runs, key=lambda run: run.cost.wall_s)[(len(runs) - 1) // 2]
