"""Evaluation of a recognizer: transcribe the recordings of manifests and score the texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from time import perf_counter

from harken.api import Recognizer
from harken.errors import AudioError, ManifestError, OptionError
from harken.evaluation.error_rate import normalizer
from harken.evaluation.hypotheses import EvalHypothesis, HypothesisStore, open_hypotheses, provenance
from harken.evaluation.scoring import Evaluation, Failure, Score, score, summarise
from harken.manifests import Entry, read_manifests
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
    """Transcribe the recordings of manifests and compare the texts with the references.

    Parameters
    ----------
    recognizer : Recognizer
    manifests : path, or iterable of paths
        See `harken.manifests.read_manifests`.
    options : TranscribeOptions, optional
        A language given here holds for all recordings.
    detect_language : bool
        Whether to detect the language even where the manifest names it.
    limit : int, optional
        Number of recordings of each manifest, spread evenly over it.
    hypotheses : path, optional
        File that stores the hypotheses; recordings that it already holds are not transcribed again (see
        `harken.evaluation.hypotheses.open_hypotheses`).

    Returns
    -------
    Evaluation

    Raises
    ------
    ManifestError
        If a manifest or the file of hypotheses cannot be read, or the model does not know a language of a manifest.
    OptionError
        If the model does not know the language or the task of the options.
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
        (outcome for outcome in outcomes if isinstance(outcome, Score)),
        (outcome for outcome in outcomes if isinstance(outcome, Failure)),
    )


def evaluate_entries(
    entries: Sequence[Entry],
    load: Callable[[], Recognizer],
    options: TranscribeOptions,
    *,
    detect_language: bool = False,
    hypotheses: HypothesisStore,
) -> Iterator[Score | Failure]:
    """Score recordings one after another; transcribe those without a stored hypothesis.

    Parameters
    ----------
    entries : sequence of Entry
    load : callable
        Loads the model; called at most once, and not at all if all hypotheses are stored.
    options, detect_language
        See `evaluate`.
    hypotheses : HypothesisStore
        Known hypotheses; new ones are added to it.

    Yields
    ------
    Score or Failure
        One for each recording, in order; a failure for one that cannot be read.
    """
    chosen = options.language and to_language_code(options.language)
    language_by_name = {
        entry.name: chosen or (None if detect_language else entry.language) for entry in entries
    }
    normalizer(chosen)  # fails before transcribing if the extra is missing

    @cache
    def recognizer() -> Recognizer:
        loaded = load()
        name_by_language = {language: name for name, language in language_by_name.items()}
        for language, name in name_by_language.items():
            resolve_entry_options(loaded, options, name, language)  # fails before transcribing
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


def resolve_entry_options(
    recognizer: Recognizer, options: TranscribeOptions, name: str, language: str | None
) -> TranscribeOptions:
    """Return the options of a recording, checked against the model.

    Parameters
    ----------
    recognizer : Recognizer
    options : TranscribeOptions
        A language given here holds for all recordings.
    name : str
        Name of the recording.
    language : str or None
        Its language in the manifest; None where it is to be detected.

    Raises
    ------
    OptionError
        If the model does not know the options' language or task.
    ManifestError
        If it does not know the language of the recording.
    """
    checked = recognizer.resolve_options(options)
    if options.language or language is None:
        return checked
    try:
        return recognizer.resolve_options(options, language=language)
    except OptionError as error:
        raise ManifestError(f"{name}: {error}") from error


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
