"""Transcribing what manifests name, and scoring it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from time import perf_counter

from harken.api import Recognizer
from harken.errors import AudioError
from harken.evaluation.hypotheses import Heard, Hypotheses, open_hypotheses, provenance
from harken.evaluation.manifest import Entry, read_manifests
from harken.evaluation.normalize import normalizer
from harken.evaluation.summary import Evaluation, Failure, Score, score, summarise
from harken.text import resolve
from harken.transcribe import TranscribeOptions


def evaluate(
    recognizer: Recognizer,
    manifests: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    options: TranscribeOptions | None = None,
    *,
    detect: bool = False,
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
    engine = recognizer.backend.capabilities
    by = provenance(
        options, model=recognizer.model, backend=engine.name, precision=engine.precision, detect=detect
    )
    entries = read_manifests(paths, limit)
    with open_hypotheses(hypotheses, by) as kept:
        outcomes = [*listen(entries, lambda: recognizer, options, detect=detect, hypotheses=kept)]
    return summarise(
        (its for its in outcomes if isinstance(its, Score)),
        (its for its in outcomes if isinstance(its, Failure)),
    )


def listen(
    entries: Sequence[Entry],
    load: Callable[[], Recognizer],
    options: TranscribeOptions,
    *,
    detect: bool = False,
    hypotheses: Hypotheses,
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
    chosen = options.language and resolve(options.language)
    given = {entry.name: chosen or (None if detect else entry.language) for entry in entries}
    normalizer(chosen)  # fails before the work if the extra is missing

    @cache
    def recognizer() -> Recognizer:
        its = load()
        for language in sorted({language for language in given.values() if language}):
            its.checked(options, language=language)  # or fail before the work
        return its

    for entry in entries:
        if (heard := hypotheses.known.get(entry.name)) is None:
            try:
                heard = _transcribe(recognizer(), entry, options, given[entry.name])
            except AudioError as error:
                yield Failure(entry=entry, reason=str(error))
                continue
            hypotheses.keep(entry.name, heard)
        yield score(entry, heard, "en" if options.task == "translate" else entry.language or chosen)


def _transcribe(
    recognizer: Recognizer, entry: Entry, options: TranscribeOptions, language: str | None
) -> Heard:
    began_s = perf_counter()
    transcript = recognizer.transcribe(entry.path, options, language=language).result()
    return Heard(
        text=transcript.text,
        language=transcript.language,
        seconds=transcript.duration_s,
        wall_s=perf_counter() - began_s,
    )
