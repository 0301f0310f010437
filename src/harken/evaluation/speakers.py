"""Evaluation of diarization: score who speaks when, and who said which words, on recordings with known turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial, reduce
from operator import add, attrgetter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from harken.api import Recognizer
from harken.errors import AudioError, ManifestError, OptionError
from harken.evaluation.error_rate import ErrorCounts, ErrorRate, error_rate_of, normalizer
from harken.evaluation.scoring import Failure, failed_recordings
from harken.evaluation.speaker_errors import (
    DiarizationErrors,
    Errors,
    Said,
    Turns,
    assign,
    count_cp_word_errors,
    count_diarization_errors,
    count_speaker_errors,
    jaccard_errors,
)
from harken.formats import from_json
from harken.formats.rttm import read_rttm
from harken.manifests import Entry
from harken.results import Transcript
from harken.transcribe import TranscribeOptions

if TYPE_CHECKING:
    from harken.speakers.diarizer import Diarizer

COLLAR_S = 0.25
"""Customary time around the edges of turns that the second diarization error rate does not score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerHypothesis:
    """The result of some engine for a recording.

    Attributes
    ----------
    turns : sequence of SpeakerTurn
    said : tuple of (str, str), or None
        Speaker and text of each segment; None if it was not transcribed.
    wall_s : float or None
        Time that it took, in seconds, if known.
    """

    turns: Turns
    said: tuple[Said, ...] | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerScore:
    """The errors of one recording.

    Attributes
    ----------
    entry : Entry
    speakers, found_speakers : int
        Number of speakers of the reference and of the hypothesis.
    errors, collar_errors : DiarizationErrors
        Without a collar, and with one of `COLLAR_S` on each side; overlapped speech counts.
    jaccard : Errors
    cp_word_errors : ErrorCounts or None
        Word errors by speaker (cpWER); None where the words of the reference or of the hypothesis are unknown.
    speaker_errors : Errors or None
        Words of the wrong speaker.
    wall_s : float or None
    """

    entry: Entry
    speakers: int
    found_speakers: int
    errors: DiarizationErrors
    collar_errors: DiarizationErrors
    jaccard: Errors
    cp_word_errors: ErrorCounts | None
    speaker_errors: Errors | None
    wall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerEvaluation:
    """The errors over all recordings; a rate is None where nothing can be scored by it.

    Attributes
    ----------
    scores : tuple of SpeakerScore
    failures : tuple of Failure
        Recordings that could not be read; they count nowhere else.
    errors, collar_errors : DiarizationErrors
        Sums over all recordings.
    der, collar_der, jer, cp_wer, wder : ErrorRate or None
        Diarization error rate without and with a collar, Jaccard error rate, word error rate by speaker, and the
        share of words that have the wrong speaker.
    counted_right : int
        Recordings whose number of speakers is right.
    """

    scores: tuple[SpeakerScore, ...]
    failures: tuple[Failure, ...]
    errors: DiarizationErrors
    collar_errors: DiarizationErrors
    der: ErrorRate | None
    collar_der: ErrorRate | None
    jer: ErrorRate | None
    cp_wer: ErrorRate | None
    wder: ErrorRate | None
    counted_right: int


def evaluate_speakers(
    entries: Sequence[Entry],
    load_diarizer: Callable[[], Diarizer],
    load_recognizer: Callable[[], Recognizer] | None = None,
    options: TranscribeOptions | None = None,
    *,
    turns: str | os.PathLike[str] | None = None,
) -> Iterator[SpeakerScore | Failure]:
    """Score recordings one after another.

    Parameters
    ----------
    entries : sequence of Entry
        Their reference is `Entry.rttm`, or else the file beside the recording that has its name and ends in .rttm.
    load_diarizer : callable
        Called at most once.
    load_recognizer : callable, optional
        Called at most once; transcribes the recordings of which `Entry.said` is known. Without, none is transcribed.
    options : TranscribeOptions, optional
    turns : path, optional
        Folder of hypotheses, NAME.json (the format json of a transcript) or NAME.rttm for each recording NAME.wav.
        Then nothing is loaded.

    Yields
    ------
    SpeakerScore or Failure
        One for each recording, in order; a failure for one that cannot be read.

    Raises
    ------
    ManifestError
        If a reference or a hypothesis is missing or cannot be read.
    BackendUnavailable
        If the extras ``harken[speakers,eval]`` are not installed.
    """
    references = [read_rttm(reference_path(entry)) for entry in entries]  # a missing one fails before the work
    if turns:
        hypothesize: Callable[[Entry], SpeakerHypothesis] = partial(_read_hypothesis, Path(turns))
        for entry in entries:
            _hypothesis_path(Path(turns), entry)
    else:
        recognizer = cache(load_recognizer) if load_recognizer else None
        hypothesize = partial(
            _compute_hypothesis, cache(load_diarizer), recognizer, options or TranscribeOptions()
        )
    _require_extras(entries)
    for entry, reference in zip(entries, references, strict=True):
        try:
            yield score_speakers(entry, reference, hypothesize(entry))
        except AudioError as error:
            yield Failure(entry=entry, reason=str(error))


def reference_path(entry: Entry) -> Path:
    """Return the path of the turns of a recording."""
    return entry.rttm or entry.path.with_suffix(".rttm")


def score_speakers(entry: Entry, reference: Turns, hypothesis: SpeakerHypothesis) -> SpeakerScore:
    """Compare the turns and the words of a hypothesis with the reference."""
    said = hypothesis.said if entry.said else None
    jaccard = jaccard_errors(reference, hypothesis.turns)
    return SpeakerScore(
        entry=entry,
        speakers=len({turn.speaker for turn in reference}),
        found_speakers=len({turn.speaker for turn in hypothesis.turns}),
        errors=count_diarization_errors(reference, hypothesis.turns),
        collar_errors=count_diarization_errors(reference, hypothesis.turns, collar_s=COLLAR_S),
        jaccard=Errors(sum(jaccard.values()), len(jaccard)),
        cp_word_errors=None if said is None else count_cp_word_errors(entry.said, said, entry.language),
        speaker_errors=None if said is None else count_speaker_errors(entry.said, said, entry.language),
        wall_s=hypothesis.wall_s,
    )


def summarise_speakers(scores: Iterable[SpeakerScore], failures: Iterable[Failure] = ()) -> SpeakerEvaluation:
    """Compute the rates over all scores."""
    scores = tuple(scores)

    def rate(name: str) -> ErrorRate | None:
        return error_rate_of([count for score in scores if (count := attrgetter(name)(score)) is not None])

    return SpeakerEvaluation(
        scores=scores,
        failures=tuple(failures),
        errors=reduce(add, (score.errors for score in scores), DiarizationErrors()),
        collar_errors=reduce(add, (score.collar_errors for score in scores), DiarizationErrors()),
        der=rate("errors"),
        collar_der=rate("collar_errors"),
        jer=rate("jaccard"),
        cp_wer=rate("cp_word_errors"),
        wder=rate("speaker_errors"),
        counted_right=sum(score.speakers == score.found_speakers for score in scores),
    )


def report_speakers(evaluation: SpeakerEvaluation, *, complete: bool) -> dict[str, Any]:
    """Return an evaluation as an object for `json.dumps`; docs/eval.md lists the keys."""
    rates = {name: getattr(evaluation, name) for name in ("der", "collar_der", "jer", "cp_wer", "wder")}
    return {
        "complete": complete,
        **{name: None if rate is None else _rate(rate) for name, rate in rates.items()},
        "errors": asdict(evaluation.errors),
        "collar_errors": asdict(evaluation.collar_errors),
        "counted_right": evaluation.counted_right,
        "recordings": [_recording(score) for score in evaluation.scores],
        "failed": failed_recordings(evaluation.failures),
    }


def _rate(rate: ErrorRate) -> dict[str, Any]:
    return {"rate": rate.rate, "confidence_interval": rate.confidence_interval}


def _recording(score: SpeakerScore) -> dict[str, Any]:
    words, speakers = score.cp_word_errors, score.speaker_errors
    return {
        "audio": score.entry.name,
        "seconds": score.entry.seconds,
        "wall_s": score.wall_s,
        "speakers": score.speakers,
        "found_speakers": score.found_speakers,
        "der": score.errors.rate,
        "errors": asdict(score.errors),
        "collar_der": score.collar_errors.rate,
        "collar_errors": asdict(score.collar_errors),
        "jer": score.jaccard.rate,
        "cp_wer": None if words is None else words.rate,
        "cp_word_errors": None if words is None else asdict(words),
        "wder": None if speakers is None else speakers.rate,
        "speaker_errors": None if speakers is None else asdict(speakers),
    }


def _require_extras(entries: Sequence[Entry]) -> None:
    """Fail before the work if an extra is missing."""
    import numpy as np

    assign(np.zeros((1, 1)))
    if any(entry.said for entry in entries):
        normalizer(None)


def _compute_hypothesis(
    diarizer: Callable[[], Diarizer],
    recognizer: Callable[[], Recognizer] | None,
    options: TranscribeOptions,
    entry: Entry,
) -> SpeakerHypothesis:
    loaded: Any = diarizer()
    transcribe: Any = recognizer().transcribe if recognizer and entry.said else None
    start_s = perf_counter()
    if transcribe is None:
        return SpeakerHypothesis(turns=loaded.diarize(entry.path).turns, wall_s=perf_counter() - start_s)
    language = options.language or entry.language
    transcript = transcribe(entry.path, options, language=language, diarizer=loaded).result()
    return SpeakerHypothesis(
        turns=transcript.turns, said=said_by_segment(transcript), wall_s=perf_counter() - start_s
    )


def said_by_segment(transcript: Transcript) -> tuple[Said, ...]:
    """Return the main speaker and the text of each segment; nobody is the speaker of segments without one."""
    return tuple(
        (segment.speakers[0] if segment.speakers else "", segment.text) for segment in transcript.segments
    )


def _hypothesis_path(folder: Path, entry: Entry) -> Path:
    paths = [folder / f"{entry.path.stem}.{ending}" for ending in ("json", "rttm")]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise ManifestError(
            f"{folder}: has no turns for {entry.name}; allowed is {paths[0].name} or {paths[1].name}"
        )
    return found


def _read_hypothesis(folder: Path, entry: Entry) -> SpeakerHypothesis:
    path = _hypothesis_path(folder, entry)
    if path.suffix == ".rttm":
        return SpeakerHypothesis(turns=read_rttm(path))
    try:
        transcript = from_json(path.read_bytes())
    except (OSError, OptionError) as error:
        raise ManifestError(f"{path}: {error}") from error
    if transcript.speakers is None:
        raise ManifestError(f"{path}: has no speakers; allowed is a transcript that was made with --diarize")
    return SpeakerHypothesis(turns=transcript.turns, said=said_by_segment(transcript))
