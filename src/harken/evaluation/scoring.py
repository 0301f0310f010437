"""Scores of recordings, error rates over all of them, and the report of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add, attrgetter
from typing import Any

from harken.evaluation.error_rate import (
    Alignment,
    ErrorCounts,
    ErrorRate,
    align_words,
    count_character_errors,
    count_error_classes,
    count_errors,
    difference,
    error_rate_of,
    is_spaced,
    normalizer,
)
from harken.manifests import Entry

MIN_SPEAKERS = 5
"""Fewest speakers for which the confidence interval resamples speakers; fewer do not represent others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalHypothesis:
    """The transcript of a recording by some engine, and what is known of it."""

    text: str
    language: str | None = None  # code of the given or detected one
    seconds: float | None = None  # length of the recording
    wall_s: float | None = None  # that transcribing took
    dropped_s: float | None = None  # of detected speech whose text was dropped as a hallucination
    unwritten_s: float | None = None  # of detected speech that has no text


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reference, the hypothesis and the errors of one recording."""

    entry: Entry
    hypothesis: EvalHypothesis
    language: str | None  # code of the language whose rules normalized both texts
    normalized_reference: str
    normalized_hypothesis: str
    alignment: Alignment  # of both normalized texts
    word_errors: ErrorCounts | None  # None in a language without spaces between words
    character_errors: ErrorCounts  # spaces count as characters; in a language without spaces only letters count
    classes: dict[str, ErrorCounts]
    """See `harken.evaluation.error_rate.count_error_classes`; and ``language``, 1 if it is wrong, where it is known."""

    @property
    def error_counts(self) -> ErrorCounts:
        """Word errors, or character errors in a language without spaces."""
        return self.word_errors or self.character_errors

    @property
    def unit(self) -> str:
        """Unit of the errors: ``"words"`` or ``"characters"``."""
        return "words" if self.word_errors else "characters"

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
    """Text in recordings without speech."""

    recordings: int  # with an empty reference
    seconds: float  # their total length, as far as it is known
    affected: int  # those of them with text in the hypothesis
    words: int  # of those hypotheses; letters, in a language without spaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Speech without text; sums of what is known of the hypotheses (see `EvalHypothesis`)."""

    recordings: int  # with speech whose hypothesis is empty
    dropped_s: float
    unwritten_s: float


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
    languages, sets : dict of str to ErrorRate
        The same for each language, and for each folder of a manifest.
    classes : dict of str to ErrorRate
        Rates of the classes of errors (see `Score.classes`), of those that something is known about.
    resampling_unit : {"recordings", "speakers"}
        Unit that the bootstrap of the confidence intervals resamples.
    hallucinations : Hallucinations
    lost : Lost
    audio_s, wall_s : float
        Total length of the recordings and time that they took, over those for which both are known.
    """

    scores: tuple[Score, ...]
    failures: tuple[Failure, ...]
    wer: ErrorRate | None
    cer: ErrorRate | None
    overall: ErrorRate | None
    languages: dict[str, ErrorRate]
    sets: dict[str, ErrorRate]
    classes: dict[str, ErrorRate]
    resampling_unit: str
    hallucinations: Hallucinations
    lost: Lost
    audio_s: float
    wall_s: float

    @property
    def times_real_time(self) -> float | None:
        """Seconds of audio per second of computing (RTFx), without loading the model; None if unknown."""
        return self.audio_s / self.wall_s if self.wall_s else None


def score(entry: Entry, hypothesis: EvalHypothesis, language: str | None) -> Score:
    """Compare a hypothesis with the reference text, by the rules of their language if its code is known."""
    normalize = normalizer(language)
    normalized_reference, normalized_hypothesis = normalize(entry.text), normalize(hypothesis.text)
    alignment = align_words(normalized_reference, normalized_hypothesis)
    word_errors = count_errors(alignment)
    has_spaces = is_spaced(language)
    right = entry.language == hypothesis.language
    detected = ErrorCounts(hits=int(right), substitutions=int(not right))
    return Score(
        entry=entry,
        hypothesis=hypothesis,
        language=language,
        normalized_reference=normalized_reference,
        normalized_hypothesis=normalized_hypothesis,
        alignment=alignment,
        word_errors=word_errors if has_spaces else None,
        character_errors=count_character_errors(normalized_reference, normalized_hypothesis)
        if has_spaces
        else word_errors,
        classes=count_error_classes(entry.text, language, alignment)
        | {"language": detected if entry.language and hypothesis.language else ErrorCounts()},
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
    names = with_speech[0].classes if with_speech else ()
    return Evaluation(
        scores=scores,
        failures=tuple(failures),
        wer=_error_rate([scored for scored in with_speech if scored.word_errors], attrgetter("word_errors")),
        cer=_error_rate(with_speech, attrgetter("character_errors")),
        overall=_error_rate(with_speech),
        languages=dict(sorted(_rates_by(lambda scored: scored.language or "unknown", with_speech).items())),
        sets=_rates_by(lambda scored: scored.entry.set, with_speech),
        classes={name: rate for name in names if (rate := _class_rate(with_speech, name))},
        resampling_unit=_resampling_groups(with_speech)[0],
        hallucinations=Hallucinations(
            recordings=len(without_speech),
            seconds=sum(scored.seconds or 0.0 for scored in without_speech),
            affected=sum(scored.error_counts.errors > 0 for scored in without_speech),
            words=sum(scored.error_counts.errors for scored in without_speech),
        ),
        lost=Lost(
            recordings=sum(not scored.normalized_hypothesis for scored in with_speech),
            dropped_s=sum(scored.hypothesis.dropped_s or 0.0 for scored in scores),
            unwritten_s=sum(scored.hypothesis.unwritten_s or 0.0 for scored in scores),
        ),
        audio_s=sum(seconds for seconds, _ in timed),
        wall_s=sum(wall_s for _, wall_s in timed),
    )


def worst(scores: Iterable[tuple[Score, ...]]) -> list[tuple[Score, ...]]:
    """Return the scores of each recording with errors by all engines, that with the most errors first."""

    def errors(own: tuple[Score, ...]) -> int:
        return sum(scored.error_counts.errors for scored in own)

    return sorted(filter(errors, scores), key=errors, reverse=True)


def _rates_by(key: Callable[[Score], str], scores: Sequence[Score]) -> dict[str, ErrorRate]:
    """Return the error rate of each group of recordings with speech, in the order of the first of each."""
    groups: dict[str, list[Score]] = {}
    for scored in scores:
        groups.setdefault(key(scored), []).append(scored)
    return {name: rate for name, group in groups.items() if (rate := _error_rate(group))}


def _class_rate(scores: Sequence[Score], name: str) -> ErrorRate | None:
    return _error_rate(scores, lambda scored: scored.classes[name])


def _error_rate(
    scores: Sequence[Score], count: Callable[[Score], ErrorCounts] = attrgetter("error_counts")
) -> ErrorRate | None:
    """Return the error rate over groups of recordings that are resampled together."""
    _, groups = _resampling_groups(scores)
    return error_rate_of([reduce(add, map(count, group)) for group in groups])


def _resampling_groups(scores: Sequence[Score]) -> tuple[str, list[list[Score]]]:
    """Group the recordings that are resampled together: by speaker, if all are known and there are enough."""
    speakers: dict[str | None, list[Score]] = {}
    for scored in scores:
        speakers.setdefault(scored.entry.speaker, []).append(scored)
    if None not in speakers and MIN_SPEAKERS <= len(speakers) < len(scores):
        return "speakers", [*speakers.values()]
    return "recordings", [[scored] for scored in scores]


TOTALS = ("wer", "cer", "overall")
GROUPS = ("languages", "sets", "classes")
"""Attributes of an evaluation: error rates, and dicts of error rates."""


def report(evaluation: Evaluation, provenance: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    """Return an evaluation as an object for `json.dumps`; docs/eval.md lists the keys.

    The provenance is that of the hypotheses (see `harken.evaluation.evaluate.provenance`); it is `complete` if all
    recordings were done.
    """
    speed = evaluation.times_real_time
    return {
        "by": dict(provenance),
        "complete": complete,
        "audio_s": round(evaluation.audio_s, 3),
        "wall_s": round(evaluation.wall_s, 3),
        "times_real_time": None if speed is None else round(speed, 2),
        **{name: _rate(getattr(evaluation, name)) for name in TOTALS},
        **{group: {name: _rate(rate) for name, rate in getattr(evaluation, group).items()} for group in GROUPS},
        "resampling_unit": evaluation.resampling_unit,
        "hallucinations": asdict(evaluation.hallucinations),
        "lost": asdict(evaluation.lost),
        "recordings": [_recording(scored) for scored in evaluation.scores],
        "failed": failed_recordings(evaluation.failures),
    }


def report_differences(evaluation: Evaluation, base: Evaluation) -> dict[str, Any]:
    """Return the error rates of an evaluation minus those of another, under the keys of `report`."""

    def differ(rate: ErrorRate | None, other: ErrorRate | None) -> dict[str, Any] | None:
        found = difference(rate, other)
        return {"rate": found.rate, **_interval(found)} if found else None

    return {name: differ(getattr(evaluation, name), getattr(base, name)) for name in TOTALS} | {
        group: {
            name: differ(rate, getattr(base, group).get(name))
            for name, rate in getattr(evaluation, group).items()
        }
        for group in GROUPS
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
        "dropped_s": scored.hypothesis.dropped_s,
        "unwritten_s": scored.hypothesis.unwritten_s,
        "hypothesis_language": scored.hypothesis.language,
        "reference": scored.entry.text,
        "hypothesis": scored.hypothesis.text,
        "normalized_reference": scored.normalized_reference,
        "normalized_hypothesis": scored.normalized_hypothesis,
        "words": scored.word_errors and _error_counts(scored.word_errors),
        "characters": _error_counts(scored.character_errors),
    }


def _rate(rate: ErrorRate | None) -> dict[str, Any] | None:
    return _error_counts(rate.error_counts) | _interval(rate) if rate else None


def _interval(rate: ErrorRate) -> dict[str, float | None]:
    low, high = rate.confidence_interval or (None, None)
    return {"low": low, "high": high}


def _error_counts(counts: ErrorCounts) -> dict[str, Any]:
    return {"rate": counts.rate, "errors": counts.errors, "reference_length": counts.reference_length} | asdict(
        counts
    )
