"""What comes out of an evaluation: scores of recordings, and error rates over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import add, attrgetter

from harken.errors import OptionError
from harken.evaluation.bootstrap import interval, resampled
from harken.evaluation.compare import Tally, count_characters, count_words
from harken.evaluation.hypotheses import Heard
from harken.evaluation.manifest import Entry
from harken.evaluation.normalize import has_words, normalizer

FEWEST_SPEAKERS = 5
"""From how many speakers on the confidence interval draws speakers: fewer say nothing about others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One recording: what is said, what was heard, and the errors.

    Attributes
    ----------
    entry : Entry
    heard : Heard
    language : str or None
        Code of the language by whose rules both texts were normalized.
    said, understood : str
        The reference and the hypothesis, normalized.
    words : Tally or None
        None in a language without spaces between words.
    characters : Tally
        Spaces among them, but in a language without spaces only letters.
    """

    entry: Entry
    heard: Heard
    language: str | None
    said: str
    understood: str
    words: Tally | None
    characters: Tally

    @property
    def tally(self) -> Tally:
        """Words, or characters where there are no words: what counts in its language."""
        return self.words or self.characters

    @property
    def seconds(self) -> float | None:
        """Length of the recording, if known."""
        return self.heard.seconds if self.entry.seconds is None else self.entry.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A recording that could not be read, and why."""

    entry: Entry
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRate:
    """Errors of many recordings together.

    Attributes
    ----------
    tally : Tally
    interval : (float, float), or None
        What holds the rate with 95 % confidence; None for a single recording, which tells nothing about others.
    """

    tally: Tally
    interval: tuple[float, float] | None

    @property
    def rate(self) -> float:
        """Errors over units of the reference."""
        return self.tally.errors / self.tally.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Invented:
    """What was heard where nothing is said.

    Attributes
    ----------
    recordings : int
        How many have an empty reference.
    seconds : float
        Their length together, as far as it is known.
    spoiled : int
        In how many of them something was heard.
    words : int
        Words (or letters, in a language without spaces) that were heard in them.
    """

    recordings: int
    seconds: float
    spoiled: int
    words: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of recordings, and what they amount to.

    Attributes
    ----------
    scores : tuple of Score
        In the order of the manifests.
    failures : tuple of Failure
        Recordings that could not be read; nothing else counts them.
    wer : ErrorRate or None
        Of words, over all recordings with speech in languages with spaces; None if there are none.
    cer : ErrorRate or None
        Of characters, over all recordings with speech.
    overall : ErrorRate or None
        Of what counts in each language, words or characters, all together, as the reference's tables have it.
    languages : dict of str to ErrorRate
        Of what counts in each language.
    drawn : {"recordings", "speakers"}
        What the confidence intervals draw anew.
    invented : Invented
    audio_s, wall_s : float
        Length of the recordings and the time that they took, over those of which both are known.
    """

    scores: tuple[Score, ...]
    failures: tuple[Failure, ...]
    wer: ErrorRate | None
    cer: ErrorRate | None
    overall: ErrorRate | None
    languages: dict[str, ErrorRate]
    drawn: str
    invented: Invented
    audio_s: float
    wall_s: float

    @property
    def times_real_time(self) -> float | None:
        """Seconds of audio in a second of work, loading the model left out; None if that is not known."""
        return self.audio_s / self.wall_s if self.wall_s else None

    def worst(self, count: int) -> tuple[Score, ...]:
        """Give those recordings that have the most errors, and weigh most in the total; those without any never."""
        wrong = sorted(
            (score for score in self.scores if score.tally.errors), key=lambda its: -its.tally.errors
        )
        return tuple(wrong[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much higher the error rate of one engine is than that of another.

    Attributes
    ----------
    rate : float
        The first's less the second's, of what counts in each language.
    interval : (float, float), or None
        What holds it with 95 % confidence; None for a single recording.
    """

    rate: float
    interval: tuple[float, float] | None


def score(entry: Entry, heard: Heard, language: str | None) -> Score:
    """Compare what was heard with what is said.

    Parameters
    ----------
    entry : Entry
    heard : Heard
    language : str or None
        Code of the language of both texts; None if it is not known.
    """
    normalize = normalizer(language)
    said, understood = normalize(entry.text), normalize(heard.text)
    words = count_words(said, understood)
    spaced = has_words(language)
    return Score(
        entry=entry,
        heard=heard,
        language=language,
        said=said,
        understood=understood,
        words=words if spaced else None,
        characters=count_characters(said, understood) if spaced else words,
    )


def summarise(scores: Iterable[Score], failures: Iterable[Failure] = ()) -> Evaluation:
    """Add up the scores of recordings."""
    scores = tuple(scores)
    spoken = [its for its in scores if its.said]
    silent = [its for its in scores if not its.said]
    timed = [(its.seconds, its.heard.wall_s) for its in scores if its.seconds is not None and its.heard.wall_s]
    by_language = groupby(sorted(spoken, key=_language), key=_language)
    return Evaluation(
        scores=scores,
        failures=tuple(failures),
        wer=_error_rate([its for its in spoken if its.words], "words"),
        cer=_error_rate(spoken, "characters"),
        overall=_error_rate(spoken, "tally"),
        languages={code: rate for code, its in by_language if (rate := _error_rate([*its], "tally"))},
        drawn=_independent(spoken)[0],
        invented=Invented(
            recordings=len(silent),
            seconds=sum(its.seconds or 0.0 for its in silent),
            spoiled=sum(its.tally.errors > 0 for its in silent),
            words=sum(its.tally.errors for its in silent),
        ),
        audio_s=sum(seconds for seconds, _ in timed),
        wall_s=sum(wall_s for _, wall_s in timed),
    )


def difference(first: Evaluation, second: Evaluation) -> Difference | None:
    """Compare two engines by the same recordings; None if nothing is said in them.

    The test sets that are drawn are the same for both, so the interval is narrower than their own intervals suggest.

    Raises
    ------
    OptionError
        If the recordings differ.
    """
    heard = [[its for its in evaluation.scores if its.said] for evaluation in (first, second)]
    ours, theirs = ([its.entry for its in scores] for scores in heard)
    if ours != theirs:
        raise OptionError("second", f"{len(theirs)} recordings", "an evaluation of the same recordings")
    if not (first.overall and second.overall):
        return None
    rates = [resampled(_tallies(scores, "tally")) for scores in heard] if len(ours) > 1 else None
    return Difference(
        rate=first.overall.rate - second.overall.rate, interval=interval(rates[0] - rates[1]) if rates else None
    )


def _language(its: Score) -> str:
    return its.language or "unknown"


def _error_rate(scores: Sequence[Score], unit: str) -> ErrorRate | None:
    if not scores:
        return None
    tallies = _tallies(scores, unit)
    return ErrorRate(
        tally=reduce(add, tallies), interval=interval(resampled(tallies)) if len(tallies) > 1 else None
    )


def _tallies(scores: Sequence[Score], unit: str) -> list[Tally]:
    """One for each group that is drawn together."""
    _, groups = _independent(scores)
    return [reduce(add, map(attrgetter(unit), group)) for group in groups]


def _independent(scores: Sequence[Score]) -> tuple[str, list[list[Score]]]:
    """Groups of recordings that are drawn together: those of a speaker, if all are known and there are enough."""
    speakers: dict[str | None, list[Score]] = {}
    for its in scores:
        speakers.setdefault(its.entry.speaker, []).append(its)
    if None not in speakers and FEWEST_SPEAKERS <= len(speakers) < len(scores):
        return "speakers", [*speakers.values()]
    return "recordings", [[its] for its in scores]
