"""How long it takes to transcribe recordings, by several engines that take turns at each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter

from harken.api import Recognizer
from harken.decoding import Decoded, DecodeStats
from harken.errors import AudioError
from harken.evaluation.hypotheses import Heard
from harken.evaluation.manifest import Entry
from harken.evaluation.summary import Evaluation, Failure, score, summarise
from harken.results import Attempt
from harken.text import resolve
from harken.transcribe import Hooks, TranscribeOptions

Window = tuple[float, tuple[int, ...]]
"""Where a window begins, in seconds, and the tokens that were kept of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A recording to measure with.

    Attributes
    ----------
    entry : Entry
    referenced : bool
        Whether its text is known; without it, that of the entry says nothing.
    """

    entry: Entry
    referenced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """What was heard in a recording in one pass over it, and the tokens that say so, window by window."""

    entry: Entry
    heard: Heard
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
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
    outcomes: tuple[Take | Failure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """All passes over recordings that are decoded together, those of each engine in order."""

    sounds: tuple[Sound, ...]
    passes: Mapping[str, tuple[Pass, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
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
class Timing:
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
    takes: tuple[Take, ...]

    @property
    def times_real_time(self) -> float | None:
        """Seconds of audio in a second of work; None if nothing was done."""
        return self.audio_s / self.wall_s if self.wall_s else None


def take_turns(
    engines: Mapping[str, Recognizer], sounds: Sequence[Sound], options: TranscribeOptions, repeats: int
) -> Iterator[Turn]:
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
    turns = _together(sounds, options)
    for language in dict.fromkeys(language for language, _ in turns):
        for engine in engines.values():
            engine.checked(options, language=language)
    for language, its in turns[:1]:
        for engine in engines.values():
            _transcribe(engine, its[: options.batch_size + 1], replace(options, language=language))
    for number, (language, its) in enumerate(turns):
        passes: dict[str, list[Pass]] = {name: [] for name in engines}
        for repeat in range(repeats):
            first = (number + repeat) % len(engines)
            for name in [*engines][first:] + [*engines][:first]:
                passes[name].append(_transcribe(engines[name], its, replace(options, language=language)))
        yield Turn(sounds=its, passes={name: tuple(each) for name, each in passes.items()})


def timing(turns: Sequence[Turn], engine: str, options: TranscribeOptions, *, scored: bool) -> Timing:
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
    middle = [_middle(turn.passes[engine]) for turn in turns]
    sounds = [sound for turn in turns for sound in turn.sounds]
    outcomes = [outcome for its in middle for outcome in its.outcomes]
    takes = [(sound, its) for sound, its in zip(sounds, outcomes, strict=True) if isinstance(its, Take)]
    chosen = options.language and resolve(options.language)
    scores = [
        score(its.entry, its.heard, "en" if options.task == "translate" else its.entry.language or chosen)
        for sound, its in takes
        if scored and sound.referenced
    ]
    return Timing(
        stats=sum((its.stats for its in middle), DecodeStats()),
        wall_s=sum(median(its.wall_s for its in turn.passes[engine]) for turn in turns),
        audio_s=sum(its.heard.seconds or 0.0 for _, its in takes),
        evaluation=summarise(scores) if scores else None,
        takes=tuple(its for _, its in takes),
    )


def failures(turns: Iterable[Turn]) -> tuple[Failure, ...]:
    """Recordings that could not be read, each once."""
    outcomes = (its for turn in turns for each in turn.passes.values() for one in each for its in one.outcomes)
    return tuple({its.entry.name: its for its in outcomes if isinstance(its, Failure)}.values())


def partings(turns: Iterable[Turn], first: str, second: str) -> tuple[Parting, ...]:
    """Where two engines part: one for each recording in which they do so in any of their passes."""
    found: dict[str, Parting] = {}
    for turn in turns:
        for one, other in zip(turn.passes[first], turn.passes[second], strict=True):
            for pair in zip(one.outcomes, other.outcomes, strict=True):
                if its := parting(*pair):
                    found.setdefault(its.entry.name, its)
    return tuple(found.values())


def parting(one: Take | Failure, other: Take | Failure) -> Parting | None:
    """Where two takes of a recording part; None if all their tokens are equal, or it could not be read."""
    if isinstance(one, Failure) or isinstance(other, Failure):
        return None
    ours, theirs = dict(one.windows), dict(other.windows)
    for start_s in sorted({*ours, *theirs}):
        both = zip((*ours.get(start_s, ()), None), (*theirs.get(start_s, ()), None), strict=False)
        for index, tokens in enumerate(both):
            if tokens[0] != tokens[1]:
                return Parting(
                    entry=one.entry,
                    start_s=start_s,
                    index=index,
                    tokens=tokens,
                    same_text=one.heard.text == other.heard.text,
                )
    return None


def _together(
    sounds: Sequence[Sound], options: TranscribeOptions
) -> list[tuple[str | None, tuple[Sound, ...]]]:
    """Recordings by turns, and the language that is given with each turn."""
    given = [(options.language or its.entry.language, its) for its in sounds]
    if options.batch_size == 1:
        return [(language, (its,)) for language, its in given]
    return [
        (code, tuple(its for language, its in given if language == code))
        for code in dict.fromkeys(language for language, _ in given)
    ]


def _transcribe(engine: Recognizer, sounds: Sequence[Sound], options: TranscribeOptions) -> Pass:
    """Let an engine make one pass over recordings that are decoded together."""
    windows: list[list[Window]] = [[] for _ in sounds]
    hooks = {i: Hooks(decided=partial(_keep, its)) for i, its in enumerate(windows)}
    began_s = perf_counter()
    works = engine.transcribe_many([its.entry.path for its in sounds], options, hooks=hooks)
    outcomes: list[Take | Failure] = []
    for sound, work, its in zip(sounds, works, windows, strict=True):
        try:
            done = work.result()
        except AudioError as error:
            outcomes.append(Failure(entry=sound.entry, reason=str(error)))
            continue
        heard = Heard(text=done.text, language=done.language, seconds=done.duration_s)
        outcomes.append(Take(entry=sound.entry, heard=heard, windows=tuple(its)))
    return Pass(wall_s=perf_counter() - began_s, stats=works[0].batch_stats, outcomes=tuple(outcomes))


def _keep(windows: list[Window], start_s: float, decoded: Decoded, attempts: tuple[Attempt, ...]) -> None:
    """Note what was kept of a window: a hook of the transcription."""
    windows.append((start_s, decoded.hypothesis.tokens))


def _middle(passes: Sequence[Pass]) -> Pass:
    """The pass whose decoding took the median time."""
    return sorted(passes, key=lambda its: its.stats.decode_s)[(len(passes) - 1) // 2]
