"""Evaluation of diarization: score who speaks when, and who said which words, on recordings with known turns.

Names of speakers mean nothing by themselves: those of the hypothesis are mapped one to one to those of the reference,
so that the time in which both speak is longest, or the wrong words are fewest.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial, reduce
from itertools import chain, groupby, islice
from operator import add, attrgetter, itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.api import Recognizer
from harken.errors import AudioError, ManifestError, OptionError, importing
from harken.evaluation.error_rate import (
    Counted,
    ErrorCounts,
    ErrorRate,
    align_words,
    count_word_errors,
    error_rate_of,
    normalizer,
)
from harken.evaluation.scoring import Failure, failed_recordings
from harken.formats import from_json
from harken.formats.table_format import read_rttm
from harken.manifests import Entry
from harken.results import SpeakerTurn, Transcript
from harken.speakers.clustering import join_over_pauses
from harken.speakers.diarizer import Diarizer
from harken.transcribe import TranscribeOptions

Turns = Sequence[SpeakerTurn]
Matrix = NDArray[np.float64]
Said = tuple[str, str]
"""A speaker and some words, in the order in which they were said."""


@dataclass(frozen=True, slots=True)
class Errors(Counted):
    """Errors, and the number of what could be wrong."""

    errors: float = 0
    reference_length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiarizationErrors(Counted):
    """Seconds of speech and of errors, whose rate is the DER; where two speak at once, both count."""

    speech_s: float = 0.0  # in the reference
    missed_s: float = 0.0  # for which the hypothesis has too few speakers
    false_alarm_s: float = 0.0  # for which the hypothesis has too many speakers, or which is no speech
    confused_s: float = 0.0  # that the hypothesis gives to another speaker

    @property
    def errors(self) -> float:
        """Sum of missed, false and confused speech, in seconds."""
        return self.missed_s + self.false_alarm_s + self.confused_s

    @property
    def reference_length(self) -> float:
        """Speech in the reference, in seconds."""
        return self.speech_s


def count_diarization_errors(
    reference: Turns, hypothesis: Turns, *, collar_s: float = 0.0
) -> DiarizationErrors:
    """Compare the turns of a hypothesis with those of the reference.

    Turns of one speaker that overlap or touch count as one. The time of a collar before and after each start and end
    of a turn of the reference is not scored.

    Source: NIST, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan", section 4.1.
    """
    reference, hypothesis = join_touching(reference), join_touching(hypothesis)
    collars = [(edge - collar_s, edge + collar_s) for edge in edges(reference)]
    times = np.unique([*edges(reference), *edges(hypothesis), *chain.from_iterable(collars)])
    spoken, found = activity(reference, times), activity(hypothesis, times)
    seconds = np.diff(times)
    for start_s, end_s in collars:
        seconds = np.where((times[:-1] >= start_s) & (times[1:] <= end_s), 0.0, seconds)
    n_spoken, n_found = spoken.sum(axis=0), found.sum(axis=0)
    together = (spoken * seconds) @ found.T
    rows, columns = assign(-together)
    return DiarizationErrors(
        speech_s=float(n_spoken @ seconds),
        missed_s=float(np.maximum(n_spoken - n_found, 0) @ seconds),
        false_alarm_s=float(np.maximum(n_found - n_spoken, 0) @ seconds),
        confused_s=max(0.0, float(np.minimum(n_spoken, n_found) @ seconds - together[rows, columns].sum())),
    )


def jaccard_errors(reference: Turns, hypothesis: Turns) -> Errors:
    """Return the Jaccard errors of the speakers of the reference.

    That of one is the time in which exactly one of the speaker and the mapped speaker of the hypothesis speaks, divided
    by the time in which either does; 1 for a speaker to whom none is mapped. So speakers who say little count as much
    as others. The Jaccard error rate (JER) is the mean over speakers.

    Source: Ryant et al., "The Second DIHARD Diarization Challenge" (Interspeech 2019), section 4.2.
    """
    times = np.unique([*edges(reference), *edges(hypothesis)])
    spoken, found = activity(reference, times), activity(hypothesis, times)
    seconds = np.diff(times)
    together = (spoken * seconds) @ found.T
    either = (spoken @ seconds)[:, None] + (found @ seconds)[None, :] - together
    errors = 1 - together / np.maximum(either, 1e-9)
    rows, columns = assign(errors)
    return Errors(float(errors[rows, columns].sum()) + len(spoken) - len(rows), len(spoken))


def edges(turns: Turns) -> list[float]:
    """Return the starts and the ends of turns."""
    return [edge for turn in turns for edge in (turn.start_s, turn.end_s)]


def activity(turns: Turns, times: Matrix) -> Matrix:
    """Return for each speaker 1 between two times at which it speaks, else 0."""
    names = list(dict.fromkeys(turn.speaker for turn in turns))
    active = np.zeros((len(names), max(0, len(times) - 1)))
    for turn in turns:
        first, last = np.searchsorted(times, (turn.start_s, turn.end_s))
        active[names.index(turn.speaker), first:last] = 1
    return active


def join_touching(turns: Iterable[SpeakerTurn]) -> list[SpeakerTurn]:
    """Join the turns of one speaker that overlap or touch; leave out those without length."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for turn in turns:
        if turn.start_s < turn.end_s:
            spans.setdefault(turn.speaker, []).append((turn.start_s, turn.end_s))
    return [
        SpeakerTurn(start_s=start_s, end_s=end_s, speaker=speaker)
        for speaker, own in sorted(spans.items())
        for start_s, end_s in join_over_pauses(sorted(own), 0.0)
    ]


def assign(costs: Matrix) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and columns of the one-to-one assignment with the lowest cost (the Hungarian algorithm).

    It needs the extra ``harken[speakers]``, and so do all that use it.
    """
    with importing("speakers", "scoring speakers"):
        from scipy.optimize import linear_sum_assignment
    rows, columns = linear_sum_assignment(costs)
    return rows, columns


def count_cp_word_errors(
    reference: Sequence[Said], hypothesis: Sequence[Said], language: str | None
) -> ErrorCounts:
    """Count the word errors between all words of each speaker, for the mapping of speakers with the fewest (cpWER).

    Speakers whom the other side lacks are compared with an empty text. The rules of the language, given by its code,
    normalize the texts.

    Source: Watanabe et al., "CHiME-6 Challenge" (2020), section 4.2.1: concatenated minimum-permutation word error
    rate.
    """
    normalize = normalizer(language)
    spoken = [normalize(text) for text in text_by_speaker(reference).values()]
    found = [normalize(text) for text in text_by_speaker(hypothesis).values()]
    size = max(len(spoken), len(found))
    spoken += [""] * (size - len(spoken))
    found += [""] * (size - len(found))
    counts = [[count_word_errors(one, other) for other in found] for one in spoken]
    rows, columns = assign(
        np.array([[count.errors for count in row] for row in counts], float).reshape(size, size)
    )
    return sum((counts[row][column] for row, column in zip(rows, columns, strict=True)), ErrorCounts())


def count_speaker_errors(reference: Sequence[Said], hypothesis: Sequence[Said], language: str | None) -> Errors:
    """Count the words that have the wrong speaker (WDER), among those that the hypothesis has at all.

    Source: El Shafey, Soltau and Shafran, "Joint Speech Recognition and Speaker Diarization via Sequence Transduction"
    (Interspeech 2019), section 4.2. Where several speak at once, the words of a reference stand one turn behind the
    other, so their alignment is rough.
    """
    spoken, found = speaker_by_word(reference, language), speaker_by_word(hypothesis, language)
    speakers, found_speakers = (iter([speaker for speaker, _ in words]) for words in (spoken, found))
    pairs = Counter[tuple[str, str]]()
    for chunk in align_words(" ".join(word for _, word in spoken), " ".join(word for _, word in found)):
        own, others = islice(speakers, len(chunk.reference)), islice(found_speakers, len(chunk.hypothesis))
        pairs.update(zip([*own], [*others], strict=False))
    if not pairs:
        return Errors()
    names, found_names = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
    counts = np.array([[pairs[one, other] for other in found_names] for one in names], float)
    rows, columns = assign(-counts)
    return Errors(pairs.total() - int(counts[rows, columns].sum()), pairs.total())


def text_by_speaker(said: Iterable[Said]) -> Mapping[str, str]:
    """Return all words of each speaker."""
    texts: dict[str, list[str]] = {}
    for speaker, text in said:
        texts.setdefault(speaker, []).append(text.strip())
    return {speaker: " ".join(parts) for speaker, parts in texts.items()}


def speaker_by_word(said: Iterable[Said], language: str | None) -> list[Said]:
    """Return normalized words, each with its speaker; what one says in a row is normalized together."""
    normalize = normalizer(language)
    return [
        (speaker, word)
        for speaker, turns in groupby(said, key=itemgetter(0))
        for word in normalize(" ".join(text.strip() for _, text in turns)).split()
    ]


COLLAR_S = 0.25
"""Customary time around the edges of turns that the second diarization error rate does not score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerHypothesis:
    """The result of some engine for a recording."""

    turns: Turns
    said: tuple[Said, ...] | None = None  # by segment; None if it was not transcribed
    wall_s: float | None = None  # that it took, if known


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerScore:
    """The errors of one recording; in words only where those of the reference and the hypothesis are known."""

    entry: Entry
    speakers: int  # of the reference
    found_speakers: int
    errors: DiarizationErrors  # without a collar; overlapped speech counts
    collar_errors: DiarizationErrors  # with one of `COLLAR_S` on each side
    jaccard: Errors
    cp_word_errors: ErrorCounts | None  # by speaker (cpWER)
    speaker_errors: Errors | None  # words of the wrong speaker
    wall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerEvaluation:
    """The errors over all recordings; a rate is None where nothing can be scored by it."""

    scores: tuple[SpeakerScore, ...]
    failures: tuple[Failure, ...]  # which count nowhere else
    errors: DiarizationErrors  # sums over all recordings
    collar_errors: DiarizationErrors
    der: ErrorRate | None  # diarization error rate
    collar_der: ErrorRate | None
    jer: ErrorRate | None  # Jaccard error rate
    cp_wer: ErrorRate | None  # word error rate by speaker
    wder: ErrorRate | None  # share of words that have the wrong speaker
    counted_right: int  # recordings whose number of speakers is right


def evaluate_speakers(
    entries: Sequence[Entry],
    load_diarizer: Callable[[], Diarizer],
    load_recognizer: Callable[[], Recognizer] | None = None,
    options: TranscribeOptions | None = None,
    *,
    turns: str | os.PathLike[str] | None = None,
) -> Iterator[SpeakerScore | Failure]:
    """Score recordings one after another.

    Their references are `Entry.rttm`, or else the file beside the recording that has its name and ends in .rttm. The
    diarizer and the recognizer are loaded at most once; if there is one, it transcribes the recordings of which
    `Entry.said` is known. With `turns`, a folder of hypotheses, NAME.json (the format json of a transcript) or
    NAME.rttm for each recording NAME.wav, nothing is loaded. There is a failure for a recording that cannot be read.

    Raises
    ------
    ManifestError
        If a reference or a hypothesis is missing or cannot be read.
    BackendUnavailable
        If the extras ``harken[speakers,eval]`` are not installed.
    """
    # What is missing fails before the work.
    references = [read_rttm(reference_path(entry)) for entry in entries]
    hypothesize: Callable[[Entry], SpeakerHypothesis]
    if turns:
        hypothesize = partial(_read_hypothesis, _hypothesis_paths(Path(turns), entries))
    else:
        recognizer = cache(load_recognizer) if load_recognizer else None
        hypothesize = partial(
            _compute_hypothesis, cache(load_diarizer), recognizer, options or TranscribeOptions()
        )
    assign(np.zeros((1, 1)))
    if any(entry.said for entry in entries):
        normalizer(None)
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
    return SpeakerScore(
        entry=entry,
        speakers=len({turn.speaker for turn in reference}),
        found_speakers=len({turn.speaker for turn in hypothesis.turns}),
        errors=count_diarization_errors(reference, hypothesis.turns),
        collar_errors=count_diarization_errors(reference, hypothesis.turns, collar_s=COLLAR_S),
        jaccard=jaccard_errors(reference, hypothesis.turns),
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
        **{
            name: rate and {"rate": rate.rate, "confidence_interval": rate.confidence_interval}
            for name, rate in rates.items()
        },
        "errors": asdict(evaluation.errors),
        "collar_errors": asdict(evaluation.collar_errors),
        "counted_right": evaluation.counted_right,
        "recordings": [_recording(score) for score in evaluation.scores],
        "failed": failed_recordings(evaluation.failures),
    }


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
        "cp_wer": words and words.rate,
        "cp_word_errors": words and asdict(words),
        "wder": speakers and speakers.rate,
        "speaker_errors": speakers and asdict(speakers),
    }


def _compute_hypothesis(
    diarizer: Callable[[], Diarizer],
    recognizer: Callable[[], Recognizer] | None,
    options: TranscribeOptions,
    entry: Entry,
) -> SpeakerHypothesis:
    loaded = diarizer()
    transcribe = recognizer().transcribe if recognizer and entry.said else None
    start_s = perf_counter()
    if transcribe is None:
        return SpeakerHypothesis(turns=loaded.diarize(entry.path).turns, wall_s=perf_counter() - start_s)
    language = options.language or entry.language_tag
    transcript = transcribe(entry.path, options, language=language, diarizer=loaded).result()
    return SpeakerHypothesis(
        turns=transcript.turns, said=said_by_segment(transcript), wall_s=perf_counter() - start_s
    )


def said_by_segment(transcript: Transcript) -> tuple[Said, ...]:
    """Return the main speaker and the text of each segment; nobody is the speaker of segments without one."""
    return tuple(
        (segment.speakers[0] if segment.speakers else "", segment.text) for segment in transcript.segments
    )


def _hypothesis_paths(folder: Path, entries: Iterable[Entry]) -> dict[Path, Path]:
    """Return the path of the hypothesis of each recording, given by its path."""
    found: dict[Path, Path] = {}
    recordings: dict[Path, Path] = {}
    for entry in entries:
        paths = [folder / f"{entry.path.stem}.{ending}" for ending in ("json", "rttm")]
        path = next(filter(Path.is_file, paths), None)
        if path is None:
            raise ManifestError(
                f"{folder}: has no turns for {entry.name}; allowed is {paths[0].name} or {paths[1].name}"
            )
        recording = entry.path.resolve()  # which two manifests may name
        if recordings.setdefault(path, recording) != recording:
            raise ManifestError(f"{path}: is of {entry.name} and of a recording before it; allowed is one")
        found[entry.path] = path
    return found


def _read_hypothesis(paths: Mapping[Path, Path], entry: Entry) -> SpeakerHypothesis:
    path = paths[entry.path]
    if path.suffix == ".rttm":
        return SpeakerHypothesis(turns=read_rttm(path))
    try:
        transcript = from_json(path.read_bytes())
    except (OSError, OptionError) as error:
        raise ManifestError(f"{path}: {error}") from error
    if transcript.speakers is None:
        raise ManifestError(f"{path}: has no speakers; allowed is a transcript that was made with --speakers")
    return SpeakerHypothesis(turns=transcript.turns, said=said_by_segment(transcript))
