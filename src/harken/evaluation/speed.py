"""Speed of several engines on the same recordings, run in turn, and the first tokens where two of them differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

from harken.api import Recognizer
from harken.decoding import DecodeStats, DecodingResult
from harken.errors import AudioError
from harken.evaluation.evaluate import reference_language, resolve_entry_options
from harken.evaluation.scoring import EvalHypothesis, Evaluation, Failure, score, summarise
from harken.manifests import Entry
from harken.results import Attempt
from harken.transcribe import Callbacks, TranscribeOptions

RunT = TypeVar("RunT")
WindowTokens = tuple[float, tuple[int, ...]]
"""Start of a window in seconds, and the tokens of its final hypothesis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingResult:
    """The transcript of one recording in one run, and the tokens of its windows."""

    entry: Entry
    hypothesis: EvalHypothesis
    windows: tuple[WindowTokens, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One timed run of an engine over recordings that are decoded together."""

    wall_s: float  # from the files to the segments
    stats: DecodeStats
    results: Sequence[RecordingResult | Failure]  # one for each recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All runs over recordings that are decoded together, those of each engine in order."""

    recordings: tuple[Entry, ...]
    runs: Mapping[str, Sequence[Run]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token at which the results of two engines differ in a recording."""

    entry: Entry
    start_s: float  # of its window
    index: int  # equal tokens before it in the window
    tokens: tuple[int | None, int | None]  # of each engine; None is the end of the window
    same_text: bool  # nevertheless


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSummary:
    """The totals of one engine over all recordings."""

    stats: DecodeStats  # sum over the rounds, of the run with the median decoding time
    wall_s: float  # from the files to the segments: sum of the medians of the rounds
    audio_s: float
    evaluation: Evaluation | None  # of the recordings with a reference text
    results: tuple[RecordingResult, ...]  # of those runs, recording by recording

    @property
    def times_real_time(self) -> float | None:
        """Seconds of audio per second of computing (RTFx); None if nothing was transcribed."""
        return self.audio_s / self.wall_s if self.wall_s else None


def run_rounds(
    engines: Mapping[str, Recognizer],
    recordings: Sequence[Entry],
    options: TranscribeOptions,
    repeats: int,
) -> Iterator[Round | Failure]:
    """Run engines over the same recordings in turn, so that a busy minute of the machine affects all of them.

    With a `batch_size` above 1 all recordings of one language are a round, otherwise every recording is one. Before the
    first round each engine warms up on some of its recordings; which one runs first rotates. They get the language of
    the entry, unless the options name one; what language or task one does not know is an error before the first round.
    The recordings of a round that could not be read come before it, each once.
    """
    batches = _batch_by_language(recordings, options)
    for language, (first, *_) in dict(reversed(batches)).items():
        for engine in engines.values():
            resolve_entry_options(engine, options, first.name, language)
    for language, batch in batches[:1]:
        for engine in engines.values():
            _transcribe(engine, batch[: options.effective_batch_size + 1], replace(options, language=language))
    for round_index, (language, batch) in enumerate(batches):
        runs: dict[str, list[Run]] = {name: [] for name in engines}
        for name in rotation(engines, round_index, repeats):
            runs[name].append(_transcribe(engines[name], batch, replace(options, language=language)))
        outcomes = (outcome for own in runs.values() for run in own for outcome in run.results)
        failures = {outcome.entry.name: outcome for outcome in outcomes if isinstance(outcome, Failure)}
        yield from failures.values()
        yield Round(recordings=batch, runs=runs)


def rotation(names: Iterable[str], round_index: int, repeats: int) -> Iterator[str]:
    """Yield all names once per repeat; each repeat, and each round, begins with another name."""
    names = [*names]
    for repeat_index in range(repeats):
        first = (round_index + repeat_index) % len(names)
        yield from names[first:] + names[:first]


def median_run(runs: Sequence[RunT], seconds: Callable[[RunT], float]) -> RunT:
    """Return the run with the median time, the lower one of an even number."""
    return sorted(runs, key=seconds)[(len(runs) - 1) // 2]


def summarise_speed(
    rounds: Sequence[Round], engine: str, options: TranscribeOptions, *, scored: bool
) -> SpeedSummary:
    """Add up the runs of an engine, given the options of the rounds.

    Errors in the recordings with a reference text are counted where they are to be `scored`, which needs the extra
    ``harken[eval]``.
    """
    median_runs = [median_run(one.runs[engine], lambda run: run.stats.decode_s) for one in rounds]
    outcomes = (outcome for run in median_runs for outcome in run.results)
    results = tuple(outcome for outcome in outcomes if isinstance(outcome, RecordingResult))
    scores = [
        score(result.entry, result.hypothesis, reference_language(result.entry, options))
        for result in results
        if scored and result.entry.has_reference
    ]
    return SpeedSummary(
        stats=sum((run.stats for run in median_runs), DecodeStats()),
        wall_s=sum(median(run.wall_s for run in one.runs[engine]) for one in rounds),
        audio_s=sum(result.hypothesis.seconds or 0.0 for result in results),
        evaluation=summarise(scores) if scores else None,
        results=results,
    )


def divergences(rounds: Iterable[Round], first: str, second: str) -> tuple[Divergence, ...]:
    """Return the first divergence of two engines in each recording in which any pair of their runs differs."""
    found: dict[str, Divergence] = {}
    for bench_round in rounds:
        for one, other in zip(bench_round.runs[first], bench_round.runs[second], strict=True):
            for pair in zip(one.results, other.results, strict=True):
                if divergence := _first_divergence(*pair):
                    found.setdefault(divergence.entry.name, divergence)
    return tuple(found.values())


def _first_divergence(one: RecordingResult | Failure, other: RecordingResult | Failure) -> Divergence | None:
    """Return the first divergence of two results; None if all tokens are equal, or a recording could not be read."""
    if isinstance(one, Failure) or isinstance(other, Failure):
        return None
    one_windows, other_windows = dict(one.windows), dict(other.windows)
    for start_s in sorted({*one_windows, *other_windows}):
        both = zip((*one_windows.get(start_s, ()), None), (*other_windows.get(start_s, ()), None), strict=False)
        for index, tokens in enumerate(both):
            if tokens[0] != tokens[1]:
                return Divergence(
                    entry=one.entry,
                    start_s=start_s,
                    index=index,
                    tokens=tokens,
                    same_text=one.hypothesis.text == other.hypothesis.text,
                )
    return None


def _batch_by_language(
    recordings: Sequence[Entry], options: TranscribeOptions
) -> list[tuple[str | None, tuple[Entry, ...]]]:
    """Return the recordings of each round, with the language that the engines get."""
    with_language = [(options.language or recording.language_tag, recording) for recording in recordings]
    if options.effective_batch_size == 1:
        return [(language, (recording,)) for language, recording in with_language]
    return [
        (code, tuple(recording for language, recording in with_language if language == code))
        for code in dict.fromkeys(language for language, _ in with_language)
    ]


def _transcribe(engine: Recognizer, recordings: Sequence[Entry], options: TranscribeOptions) -> Run:
    """Run an engine once over recordings that are decoded together, and time it."""
    windows: list[list[WindowTokens]] = [[] for _ in recordings]

    def record(i: int, start_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]) -> None:
        windows[i].append((start_s, decoded.hypothesis.tokens))

    callbacks = {i: Callbacks(on_window_end=partial(record, i)) for i in range(len(recordings))}
    start_s = perf_counter()
    transcriptions = engine.transcribe_many(
        [recording.path for recording in recordings], options, callbacks=callbacks
    )
    outcomes: list[RecordingResult | Failure] = []
    for recording, transcription, recorded in zip(recordings, transcriptions, windows, strict=True):
        try:
            transcript = transcription.result()
        except AudioError as error:
            outcomes.append(Failure(entry=recording, reason=str(error)))
            continue
        hypothesis = EvalHypothesis(
            text=transcript.text, language=transcript.language, seconds=transcript.duration_s
        )
        outcomes.append(RecordingResult(entry=recording, hypothesis=hypothesis, windows=tuple(recorded)))
    return Run(wall_s=perf_counter() - start_s, stats=transcriptions[0].batch_stats, results=outcomes)
