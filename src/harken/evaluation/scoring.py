"""What comes out of an evaluation: scores of recordings, and error rates over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import groupby
from operator import add, attrgetter
from typing import Any

from harken.errors import OptionError
from harken.evaluation.error_rate import (
    ErrorCounts,
    bootstrap_error_rates,
    confidence_interval,
    count_character_errors,
    count_word_errors,
    is_spaced,
    normalizer,
)
from harken.evaluation.hypotheses import EvalHypothesis
from harken.evaluation.manifest import Entry

MIN_SPEAKERS = 5
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
    hypothesis: EvalHypothesis
    language: str | None
    normalized_reference: str
    normalized_hypothesis: str
    word_errors: ErrorCounts | None
    character_errors: ErrorCounts

    @property
    def error_counts(self) -> ErrorCounts:
        """Words, or characters where there are no words: what counts in its language."""
        return self.word_errors or self.character_errors

    @property
    def seconds(self) -> float | None:
        """Length of the recording, if known."""
        return self.hypothesis.seconds if self.entry.seconds is None else self.entry.seconds


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

    error_counts: ErrorCounts
    confidence_interval: tuple[float, float] | None

    @property
    def rate(self) -> float:
        """Errors over units of the reference."""
        return self.error_counts.errors / self.error_counts.reference_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Hallucinations:
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
    affected: int
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
    resampling_unit: str
    hallucinations: Hallucinations
    audio_s: float
    wall_s: float

    @property
    def times_real_time(self) -> float | None:
        """Seconds of audio in a second of work, loading the model left out; None if that is not known."""
        return self.audio_s / self.wall_s if self.wall_s else None

    def worst(self, count: int) -> tuple[Score, ...]:
        """Give those recordings that have the most errors, and weigh most in the total; those without any never."""
        wrong = sorted(
            (score for score in self.scores if score.error_counts.errors),
            key=lambda scored: -scored.error_counts.errors,
        )
        return tuple(wrong[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRateDifference:
    """How much higher the error rate of one engine is than that of another.

    Attributes
    ----------
    rate : float
        The first's less the second's, of what counts in each language.
    interval : (float, float), or None
        What holds it with 95 % confidence; None for a single recording.
    """

    rate: float
    confidence_interval: tuple[float, float] | None


def score(entry: Entry, hypothesis: EvalHypothesis, language: str | None) -> Score:
    """Compare what was heard with what is said.

    Parameters
    ----------
    entry : Entry
    heard : Heard
    language : str or None
        Code of the language of both texts; None if it is not known.
    """
    normalize = normalizer(language)
    normalized_reference, normalized_hypothesis = normalize(entry.text), normalize(hypothesis.text)
    word_errors = count_word_errors(normalized_reference, normalized_hypothesis)
    has_spaces = is_spaced(language)
    return Score(
        entry=entry,
        hypothesis=hypothesis,
        language=language,
        normalized_reference=normalized_reference,
        normalized_hypothesis=normalized_hypothesis,
        word_errors=word_errors if has_spaces else None,
        character_errors=count_character_errors(normalized_reference, normalized_hypothesis)
        if has_spaces
        else word_errors,
    )


def summarise(scores: Iterable[Score], failures: Iterable[Failure] = ()) -> Evaluation:
    """Add up the scores of recordings."""
    scores = tuple(scores)
    with_speech = [its for its in scores if its.normalized_reference]
    without_speech = [its for its in scores if not its.normalized_reference]
    timed = [
        (its.seconds, its.hypothesis.wall_s)
        for its in scores
        if its.seconds is not None and its.hypothesis.wall_s
    ]
    by_language = groupby(sorted(with_speech, key=_language_or_unknown), key=_language_or_unknown)
    return Evaluation(
        scores=scores,
        failures=tuple(failures),
        wer=_error_rate([its for its in with_speech if its.word_errors], "word_errors"),
        cer=_error_rate(with_speech, "character_errors"),
        overall=_error_rate(with_speech, "error_counts"),
        languages={code: rate for code, its in by_language if (rate := _error_rate([*its], "error_counts"))},
        resampling_unit=_resampling_groups(with_speech)[0],
        hallucinations=Hallucinations(
            recordings=len(without_speech),
            seconds=sum(its.seconds or 0.0 for its in without_speech),
            affected=sum(its.error_counts.errors > 0 for its in without_speech),
            words=sum(its.error_counts.errors for its in without_speech),
        ),
        audio_s=sum(seconds for seconds, _ in timed),
        wall_s=sum(wall_s for _, wall_s in timed),
    )


def compare_evaluations(first: Evaluation, second: Evaluation) -> ErrorRateDifference | None:
    """Compare two engines by the same recordings; None if nothing is said in them.

    The test sets that are drawn are the same for both, so the interval is narrower than their own intervals suggest.

    Raises
    ------
    OptionError
        If the recordings differ.
    """
    scored = [[its for its in evaluation.scores if its.normalized_reference] for evaluation in (first, second)]
    first_entries, second_entries = ([its.entry for its in scores] for scores in scored)
    if first_entries != second_entries:
        raise OptionError("second", f"{len(second_entries)} recordings", "an evaluation of the same recordings")
    if not (first.overall and second.overall):
        return None
    rates = (
        [bootstrap_error_rates(_group_error_counts(scores, "error_counts")) for scores in scored]
        if len(first_entries) > 1
        else None
    )
    return ErrorRateDifference(
        rate=first.overall.rate - second.overall.rate,
        confidence_interval=confidence_interval(rates[0] - rates[1]) if rates else None,
    )


def _language_or_unknown(score: Score) -> str:
    return score.language or "unknown"


def _error_rate(scores: Sequence[Score], unit: str) -> ErrorRate | None:
    if not scores:
        return None
    error_counts = _group_error_counts(scores, unit)
    return ErrorRate(
        error_counts=reduce(add, error_counts),
        confidence_interval=confidence_interval(bootstrap_error_rates(error_counts))
        if len(error_counts) > 1
        else None,
    )


def _group_error_counts(scores: Sequence[Score], unit: str) -> list[ErrorCounts]:
    """One for each group that is drawn together."""
    _, groups = _resampling_groups(scores)
    return [reduce(add, map(attrgetter(unit), group)) for group in groups]


def _resampling_groups(scores: Sequence[Score]) -> tuple[str, list[list[Score]]]:
    """Groups of recordings that are drawn together: those of a speaker, if all are known and there are enough."""
    speakers: dict[str | None, list[Score]] = {}
    for its in scores:
        speakers.setdefault(its.entry.speaker, []).append(its)
    if None not in speakers and MIN_SPEAKERS <= len(speakers) < len(scores):
        return "speakers", [*speakers.values()]
    return "recordings", [[its] for its in scores]


def report(evaluation: Evaluation, provenance: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    """Turn an evaluation into what `json.dumps` takes; docs/eval.md lists the keys.

    Parameters
    ----------
    evaluation : Evaluation
    by : mapping
        What made the hypotheses (see `harken.evaluation.provenance`).
    complete : bool
        Whether all recordings were done.
    """
    speed = evaluation.times_real_time
    return {
        "by": dict(provenance),
        "complete": complete,
        "audio_s": round(evaluation.audio_s, 3),
        "wall_s": round(evaluation.wall_s, 3),
        "times_real_time": None if speed is None else round(speed, 2),
        "wer": _rate(evaluation.wer),
        "cer": _rate(evaluation.cer),
        "overall": _rate(evaluation.overall),
        "languages": {code: _rate(rate) for code, rate in evaluation.languages.items()},
        "resampling_unit": evaluation.resampling_unit,
        "hallucinations": asdict(evaluation.hallucinations),
        "recordings": [_recording(score) for score in evaluation.scores],
        "failed": [{"audio": failure.entry.name, "reason": failure.reason} for failure in evaluation.failures],
    }


def _recording(score: Score) -> dict[str, Any]:
    return {
        "audio": score.entry.name,
        "language": score.language,
        "speaker": score.entry.speaker,
        "seconds": score.seconds,
        "wall_s": score.hypothesis.wall_s,
        "hypothesis_language": score.hypothesis.language,
        "reference": score.entry.text,
        "hypothesis": score.hypothesis.text,
        "normalized_reference": score.normalized_reference,
        "normalized_hypothesis": score.normalized_hypothesis,
        "words": score.word_errors and _error_counts(score.word_errors),
        "characters": _error_counts(score.character_errors),
    }


def _rate(rate: ErrorRate | None) -> dict[str, Any] | None:
    if rate is None:
        return None
    low, high = rate.confidence_interval or (None, None)
    return _error_counts(rate.error_counts) | {"low": low, "high": high}


def _error_counts(counts: ErrorCounts) -> dict[str, Any]:
    return {"rate": counts.rate, "errors": counts.errors, "reference_length": counts.reference_length} | asdict(
        counts
    )
