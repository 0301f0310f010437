"""Transcribing what manifests name, and scoring it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from time import perf_counter

from harken.api import Recognizer
from harken.errors import AudioError
from harken.evaluation.error_rate import normalizer
from harken.evaluation.hypotheses import EvalHypothesis, HypothesisStore, open_hypotheses, provenance
from harken.evaluation.manifest import Entry, read_manifests
from harken.evaluation.scoring import Evaluation, Failure, Score, score, summarise
from harken.text import to_language_code
from harken.transcribe import TranscribeOptions


def evaluate(
    recognizer: Recognizer,
    manifests: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    options: TranscribeOptions | None = None,
    *,
    detect_language: bool = False,
    limit: int | None = None,
    hypotheses: str | os.PathLike[str] | None = None,
) -> Evaluation:
    """Transcribe the recordings of manifests and compare with what is said in them.

    Parameters
    ----------
    recognizer : Recognizer
    manifests : path, or iterable of paths
        See `harken.evaluation.manifest.read_manifests`.
    options : TranscribeOptions, optional
        If they name a language, it holds for all recordings.
    detect : bool
        Whether the language is to be detected although the manifest tells it.
    limit : int, optional
        How many recordings of each manifest, spread evenly over it.
    hypotheses : path, optional
        File that keeps what was heard; what is in it is not transcribed again (see
        `harken.evaluation.hypotheses.open_hypotheses`).

    Returns
    -------
    Evaluation

    Raises
    ------
    ManifestError
        If a manifest or the file of hypotheses cannot be read.
    OptionError
        If the model does not know a language or the task.
    OutputError
        If a hypothesis cannot be written.
    BackendUnavailable
        If the extra ``harken[eval]`` is not installed.

    Examples
    --------
    >>> import harken
    >>> from harken.evaluation import evaluate
    >>> evaluation = evaluate(harken.load("tiny.en"), "examples")
    >>> f"{evaluation.wer.rate:.2%}"
    """
    options = options or TranscribeOptions()
    paths = [manifests] if isinstance(manifests, (str, os.PathLike)) else manifests
    capabilities = recognizer.backend.capabilities
    made_by = provenance(
        options,
        model=recognizer.model,
        backend=capabilities.name,
        precision=capabilities.precision,
        detect=detect_language,
    )
    entries = read_manifests(paths, limit)
    with open_hypotheses(hypotheses, made_by) as store:
        outcomes = [
            *evaluate_entries(
                entries, lambda: recognizer, options, detect_language=detect_language, hypotheses=store
            )
        ]
    return summarise(
        (its for its in outcomes if isinstance(its, Score)),
        (its for its in outcomes if isinstance(its, Failure)),
    )


def evaluate_entries(
    entries: Sequence[Entry],
    load: Callable[[], Recognizer],
    options: TranscribeOptions,
    *,
    detect_language: bool = False,
    hypotheses: HypothesisStore,
) -> Iterator[Score | Failure]:
    """Score recordings one after another; transcribe those of which no hypothesis is known.

    Parameters
    ----------
    entries : sequence of Entry
    load : callable
        Loads the model; called once at most, and not at all if all hypotheses are known.
    options, detect
        See `evaluate`.
    hypotheses : Hypotheses
        What is known; what is heard is added to it.

    Yields
    ------
    Score or Failure
        One for each recording, in order; a failure for one that cannot be read.
    """
    chosen = options.language and to_language_code(options.language)
    language_by_name = {
        entry.name: chosen or (None if detect_language else entry.language) for entry in entries
    }
    normalizer(chosen)  # fails before the work if the extra is missing

    @cache
    def recognizer() -> Recognizer:
        loaded = load()
        for language in sorted({language for language in language_by_name.values() if language}):
            loaded.resolve_options(options, language=language)  # or fail before the work
        return loaded

    for entry in entries:
        if (hypothesis := hypotheses.by_name.get(entry.name)) is None:
            try:
                hypothesis = _transcribe(recognizer(), entry, options, language_by_name[entry.name])
            except AudioError as error:
                yield Failure(entry=entry, reason=str(error))
                continue
            hypotheses.add(entry.name, hypothesis)
        yield score(entry, hypothesis, "en" if options.task == "translate" else entry.language or chosen)


def _transcribe(
    recognizer: Recognizer, entry: Entry, options: TranscribeOptions, language: str | None
) -> EvalHypothesis:
    start_s = perf_counter()
    transcript = recognizer.transcribe(entry.path, options, language=language).result()
    return EvalHypothesis(
        text=transcript.text,
        language=transcript.language,
        seconds=transcript.duration_s,
        wall_s=perf_counter() - start_s,
    )
