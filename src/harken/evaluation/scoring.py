"""Scores of recordings, error rates over all of them, and the report of an evaluation."""

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
    ErrorRate,
    bootstrap_error_rates,
    confidence_interval,
    count_character_errors,
    count_word_errors,
    error_rate_of,
    is_spaced,
    normalizer,
)
from harken.manifests import Entry

MIN_SPEAKERS = 5
"""Fewest speakers for which the confidence interval resamples speakers; fewer do not represent others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalHypothesis:
    """The transcript of a recording by some engine.

    Attributes
    ----------
    text : str
    language : str or None
        Code of the given or detected language, if known.
    seconds : float or None
        Length of the recording, if known.
    wall_s : float or None
        Time that transcribing took, in seconds, if known.
    """

    text: str
    language: str | None = None
    seconds: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecording:
    """A recording to measure with.

    Attributes
    ----------
    entry : Entry
    has_reference : bool
        True if the text of the entry is the reference; otherwise the text means nothing.
    """

    entry: Entry
    has_reference: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reference, the hypothesis and the errors of one recording.

    Attributes
    ----------
    entry : Entry
    hypothesis : EvalHypothesis
    language : str or None
        Code of the language whose rules normalized both texts.
    normalized_reference, normalized_hypothesis : str
    word_errors : ErrorCounts or None
        None in a language without spaces between words.
    character_errors : ErrorCounts
        Spaces count as characters; in a language without spaces only letters count.
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
        """Word errors, or character errors in a language without spaces."""
        return self.word_errors or self.character_errors

    @property
    def seconds(self) -> float | None:
        """Length of the recording, if known."""
        return self.hypothesis.seconds if self.entry.seconds is None else self.entry.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A recording that could not be read, and the reason."""

    entry: Entry
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hallucinations:
    """Text in recordings without speech.

    Attributes
    ----------
    recordings : int
        Recordings with an empty reference.
    seconds : float
        Their total length, as far as it is known.
    affected : int
        Number of them with text in the hypothesis.
    words : int
        Words of those hypotheses (letters, in a language without spaces).
    """

    recordings: int
    seconds: float
    affected: int
    words: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of recordings and the error rates over all of them.

    Attributes
    ----------
    scores : tuple of Score
        In the order of the manifests.
    failures : tuple of Failure
        Recordings that could not be read; they count nowhere else.
    wer : ErrorRate or None
        Word error rate over all recordings with speech in languages with spaces; None if there are none.
    cer : ErrorRate or None
        Character error rate over all recordings with speech.
    overall : ErrorRate or None
        Word errors, or character errors in languages without spaces, all together, as in the tables of the
        reference.
    languages : dict of str to ErrorRate
        The same for each language.
    resampling_unit : {"recordings", "speakers"}
        Unit that the bootstrap of the confidence intervals resamples.
    hallucinations : Hallucinations
    audio_s, wall_s : float
        Total length of the recordings and time that they took, over those for which both are known.
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
        """Seconds of audio per second of computing (RTFx), without loading the model; None if unknown."""
        return self.audio_s / self.wall_s if self.wall_s else None

    def worst(self, count: int) -> tuple[Score, ...]:
        """Return the recordings with the most errors, at most `count`; recordings without errors are left out."""
        wrong = sorted(
            (scored for scored in self.scores if scored.error_counts.errors),
            key=lambda scored: -scored.error_counts.errors,
        )
        return tuple(wrong[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRateDifference:
    """The difference between the error rates of two engines.

    Attributes
    ----------
    rate : float
        Error rate of the first minus that of the second (see `Evaluation.overall`).
    confidence_interval : (float, float), or None
        95 % confidence interval of the difference; None for a single recording.
    """

    rate: float
    confidence_interval: tuple[float, float] | None


def score(entry: Entry, hypothesis: EvalHypothesis, language: str | None) -> Score:
    """Compare a hypothesis with the reference text.

    Parameters
    ----------
    entry : Entry
    hypothesis : EvalHypothesis
    language : str or None
        Code of the language of both texts; None if it is unknown.
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
    """Compute the error rates over all scores."""
    scores = tuple(scores)
    with_speech = [scored for scored in scores if scored.normalized_reference]
    without_speech = [scored for scored in scores if not scored.normalized_reference]
    timed = [
        (scored.seconds, scored.hypothesis.wall_s)
        for scored in scores
        if scored.seconds is not None and scored.hypothesis.wall_s
    ]
    by_language = groupby(sorted(with_speech, key=_language_or_unknown), key=_language_or_unknown)
    return Evaluation(
        scores=scores,
        failures=tuple(failures),
        wer=_error_rate([scored for scored in with_speech if scored.word_errors], "word_errors"),
        cer=_error_rate(with_speech, "character_errors"),
        overall=_error_rate(with_speech, "error_counts"),
        languages={
            code: rate for code, group in by_language if (rate := _error_rate([*group], "error_counts"))
        },
        resampling_unit=_resampling_groups(with_speech)[0],
        hallucinations=Hallucinations(
            recordings=len(without_speech),
            seconds=sum(scored.seconds or 0.0 for scored in without_speech),
            affected=sum(scored.error_counts.errors > 0 for scored in without_speech),
            words=sum(scored.error_counts.errors for scored in without_speech),
        ),
        audio_s=sum(seconds for seconds, _ in timed),
        wall_s=sum(wall_s for _, wall_s in timed),
    )


def compare_evaluations(first: Evaluation, second: Evaluation) -> ErrorRateDifference | None:
    """Compare two engines on the same recordings; None if none of them has speech.

    The bootstrap draws the same test sets for both, so the interval is narrower than their own intervals suggest.

    Raises
    ------
    OptionError
        If the recordings differ.
    """
    with_speech = [
        [scored for scored in evaluation.scores if scored.normalized_reference]
        for evaluation in (first, second)
    ]
    first_entries, second_entries = ([scored.entry for scored in scores] for scores in with_speech)
    if first_entries != second_entries:
        raise OptionError("second", f"{len(second_entries)} recordings", "an evaluation of the same recordings")
    if not (first.overall and second.overall):
        return None
    rates = (
        [bootstrap_error_rates(_group_error_counts(scores, "error_counts")) for scores in with_speech]
        if len(first_entries) > 1
        else None
    )
    return ErrorRateDifference(
        rate=first.overall.rate - second.overall.rate,
        confidence_interval=confidence_interval(rates[0] - rates[1]) if rates else None,
    )


def _language_or_unknown(scored: Score) -> str:
    return scored.language or "unknown"


def _error_rate(scores: Sequence[Score], unit: str) -> ErrorRate | None:
    return error_rate_of(_group_error_counts(scores, unit))


def _group_error_counts(scores: Sequence[Score], unit: str) -> list[ErrorCounts]:
    """Return one sum for each group that is resampled together."""
    _, groups = _resampling_groups(scores)
    return [reduce(add, map(attrgetter(unit), group)) for group in groups]


def _resampling_groups(scores: Sequence[Score]) -> tuple[str, list[list[Score]]]:
    """Group the recordings that are resampled together: by speaker, if all are known and there are enough."""
    speakers: dict[str | None, list[Score]] = {}
    for scored in scores:
        speakers.setdefault(scored.entry.speaker, []).append(scored)
    if None not in speakers and MIN_SPEAKERS <= len(speakers) < len(scores):
        return "speakers", [*speakers.values()]
    return "recordings", [[scored] for scored in scores]


def report(evaluation: Evaluation, provenance: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    """Return an evaluation as an object for `json.dumps`; docs/eval.md lists the keys.

    Parameters
    ----------
    evaluation : Evaluation
    provenance : mapping
        Settings that produced the hypotheses (see `harken.evaluation.evaluate.provenance`).
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
        "recordings": [_recording(scored) for scored in evaluation.scores],
        "failed": failed_recordings(evaluation.failures),
    }


def failed_recordings(failures: Iterable[Failure]) -> list[dict[str, str]]:
    """Return the recordings that could not be read as objects for `json.dumps`."""
    return [{"audio": failure.entry.name, "reason": failure.reason} for failure in failures]


def _recording(scored: Score) -> dict[str, Any]:
    return {
        "audio": scored.entry.name,
        "language": scored.language,
        "speaker": scored.entry.speaker,
        "seconds": scored.seconds,
        "wall_s": scored.hypothesis.wall_s,
        "hypothesis_language": scored.hypothesis.language,
        "reference": scored.entry.text,
        "hypothesis": scored.hypothesis.text,
        "normalized_reference": scored.normalized_reference,
        "normalized_hypothesis": scored.normalized_hypothesis,
        "words": scored.word_errors and _error_counts(scored.word_errors),
        "characters": _error_counts(scored.character_errors),
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
