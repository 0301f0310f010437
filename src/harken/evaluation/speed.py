"""How long it takes to transcribe recordings, by several engines that take turns at each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter

from harken.api import Recognizer
from harken.decoding import DecodeStats, DecodingResult
from harken.errors import AudioError
from harken.evaluation.hypotheses import EvalHypothesis
from harken.evaluation.manifest import Entry
from harken.evaluation.scoring import Evaluation, Failure, score, summarise
from harken.results import Attempt
from harken.text import to_language_code
from harken.transcribe import Callbacks, TranscribeOptions

WindowTokens = tuple[float, tuple[int, ...]]
"""Where a window begins, in seconds, and the tokens that were kept of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecording:
    """A recording to measure with.

    Attributes
    ----------
    entry : Entry
    referenced : bool
        Whether its text is known; without it, that of the entry says nothing.
    """

    entry: Entry
    has_reference: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingResult:
    """What was heard in a recording in one pass over it, and the tokens that say so, window by window."""

    entry: Entry
    hypothesis: EvalHypothesis
    windows: tuple[WindowTokens, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pass of an engine over recordings that are decoded together.

    Attributes
    ----------
    wall_s : float
        From the files to the segments.
    stats : DecodeStats
    outcomes : tuple of Take or Failure
        One a recording; a failure for one that cannot be read.
    """

    wall_s: float
    stats: DecodeStats
    results: tuple[RecordingResult | Failure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All passes over recordings that are decoded together, those of each engine in order."""

    recordings: tuple[EvalRecording, ...]
    runs: Mapping[str, tuple[Run, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token that two engines have chosen differently in a recording.

    Attributes
    ----------
    entry : Entry
    start_s : float
        Where its window begins.
    index : int
        How many tokens of the window are equal before it.
    tokens : tuple of int or None
        What each has chosen; None is the end of the window.
    same_text : bool
        Whether the texts are equal all the same.
    """

    entry: Entry
    start_s: float
    index: int
    tokens: tuple[int | None, int | None]
    same_text: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSummary:
    """What one engine has taken for all recordings.

    Attributes
    ----------
    stats : DecodeStats
        Of each turn the pass whose decoding took the median time.
    wall_s : float
        From the files to the segments: the median of each turn.
    audio_s : float
    evaluation : Evaluation or None
        Errors in the recordings whose text is known.
    takes : tuple of Take
        What was heard in those passes, recording by recording.
    """

    stats: DecodeStats
    wall_s: float
    audio_s: float
    evaluation: Evaluation | None
    results: tuple[RecordingResult, ...]

    @property
    def times_real_time(self) -> float | None:
        """Seconds of audio in a second of work; None if nothing was done."""
        return self.audio_s / self.wall_s if self.wall_s else None


def run_rounds(
    engines: Mapping[str, Recognizer],
    recordings: Sequence[EvalRecording],
    options: TranscribeOptions,
    repeats: int,
) -> Iterator[Round]:
    """Have engines transcribe the same recordings, so that a busy minute of the machine hits all of them.

    With `batch_size=1` every recording is a turn, otherwise all that are in one language. Before the first one each
    engine warms up on some of it.

    Parameters
    ----------
    engines : mapping of str to Recognizer
        By the names of their passes; they begin a turn in rotation.
    sounds : sequence of Sound
        The language of an entry is given to the engines, unless the options name one.
    options : TranscribeOptions
    repeats : int
        Passes of each engine in a turn.

    Raises
    ------
    OptionError
        Before the first turn, if an engine does not know a language or the task.
    """
    batches = _batch_by_language(recordings, options)
    for language in dict.fromkeys(language for language, _ in batches):
        for engine in engines.values():
            engine.resolve_options(options, language=language)
    for language, its in batches[:1]:
        for engine in engines.values():
            _transcribe(engine, its[: options.batch_size + 1], replace(options, language=language))
    for round_index, (language, its) in enumerate(batches):
        runs: dict[str, list[Run]] = {name: [] for name in engines}
        for repeat_index in range(repeats):
            first = (round_index + repeat_index) % len(engines)
            for name in [*engines][first:] + [*engines][:first]:
                runs[name].append(_transcribe(engines[name], its, replace(options, language=language)))
        yield Round(recordings=its, runs={name: tuple(each) for name, each in runs.items()})


def summarise_speed(
    rounds: Sequence[Round], engine: str, options: TranscribeOptions, *, scored: bool
) -> SpeedSummary:
    """Add up what an engine has taken.

    Parameters
    ----------
    turns : sequence of Turn
    engine : str
    options : TranscribeOptions
        Those of the turns.
    scored : bool
        Whether to count errors in the recordings whose text is known.

    Raises
    ------
    BackendUnavailable
        If errors are to be counted and the extra ``harken[eval]`` is not installed.
    """
    median_runs = [_median_run(turn.runs[engine]) for turn in rounds]
    sounds = [sound for turn in rounds for sound in turn.recordings]
    outcomes = [outcome for its in median_runs for outcome in its.results]
    results = [
        (sound, its) for sound, its in zip(sounds, outcomes, strict=True) if isinstance(its, RecordingResult)
    ]
    chosen = options.language and to_language_code(options.language)
    scores = [
        score(its.entry, its.hypothesis, "en" if options.task == "translate" else its.entry.language or chosen)
        for sound, its in results
        if scored and sound.has_reference
    ]
    return SpeedSummary(
        stats=sum((its.stats for its in median_runs), DecodeStats()),
        wall_s=sum(median(its.wall_s for its in turn.runs[engine]) for turn in rounds),
        audio_s=sum(its.hypothesis.seconds or 0.0 for _, its in results),
        evaluation=summarise(scores) if scores else None,
        results=tuple(its for _, its in results),
    )


def failures(rounds: Iterable[Round]) -> tuple[Failure, ...]:
    """Recordings that could not be read, each once."""
    outcomes = (its for turn in rounds for each in turn.runs.values() for one in each for its in one.results)
    return tuple({its.entry.name: its for its in outcomes if isinstance(its, Failure)}.values())


def divergences(rounds: Iterable[Round], first: str, second: str) -> tuple[Divergence, ...]:
    """Where two engines part: one for each recording in which they do so in any of their passes."""
    found: dict[str, Divergence] = {}
    for turn in rounds:
        for one, other in zip(turn.runs[first], turn.runs[second], strict=True):
            for pair in zip(one.results, other.results, strict=True):
                if divergence := first_divergence(*pair):
                    found.setdefault(divergence.entry.name, divergence)
    return tuple(found.values())


def first_divergence(one: RecordingResult | Failure, other: RecordingResult | Failure) -> Divergence | None:
    """Where two takes of a recording part; None if all their tokens are equal, or it could not be read."""
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
    recordings: Sequence[EvalRecording], options: TranscribeOptions
) -> list[tuple[str | None, tuple[EvalRecording, ...]]]:
    """Recordings by turns, and the language that is given with each turn."""
    with_language = [(options.language or its.entry.language, its) for its in recordings]
    if options.batch_size == 1:
        return [(language, (its,)) for language, its in with_language]
    return [
        (code, tuple(its for language, its in with_language if language == code))
        for code in dict.fromkeys(language for language, _ in with_language)
    ]


def _transcribe(engine: Recognizer, recordings: Sequence[EvalRecording], options: TranscribeOptions) -> Run:
    """Let an engine make one pass over recordings that are decoded together."""
    windows: list[list[WindowTokens]] = [[] for _ in recordings]
    callbacks = {i: Callbacks(on_window_end=partial(_record_window, its)) for i, its in enumerate(windows)}
    start_s = perf_counter()
    transcriptions = engine.transcribe_many(
        [its.entry.path for its in recordings], options, callbacks=callbacks
    )
    outcomes: list[RecordingResult | Failure] = []
    for recording, transcription, its in zip(recordings, transcriptions, windows, strict=True):
        try:
            transcript = transcription.result()
        except AudioError as error:
            outcomes.append(Failure(entry=recording.entry, reason=str(error)))
            continue
        hypothesis = EvalHypothesis(
            text=transcript.text, language=transcript.language, seconds=transcript.duration_s
        )
        outcomes.append(RecordingResult(entry=recording.entry, hypothesis=hypothesis, windows=tuple(its)))
    return Run(wall_s=perf_counter() - start_s, stats=transcriptions[0].batch_stats, results=tuple(outcomes))


def _record_window(
    windows: list[WindowTokens], start_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]
) -> None:
    """Note what was kept of a window: a hook of the transcription."""
    windows.append((start_s, decoded.hypothesis.tokens))


def _median_run(runs: Sequence[Run]) -> Run:
    """The pass whose decoding took the median time."""
    return sorted(runs, key=lambda run: run.stats.decode_s)[(len(runs) - 1) // 2]
