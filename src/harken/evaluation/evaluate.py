"""Evaluation of a recognizer: transcribe the recordings of manifests and score the texts.

Files of hypotheses let an interrupted evaluation go on, and score the texts of other engines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

from harken.api import Recognizer
from harken.errors import AudioError, ManifestError, OptionError
from harken.evaluation.error_rate import normalizer
from harken.evaluation.scoring import EvalHypothesis, Evaluation, Failure, Score, score, summarise
from harken.files import decode, read_file, wrap_os_errors
from harken.formats import dump_json
from harken.manifests import ALLOWED, Entry, get_field, parse_object, read_manifests, read_rows
from harken.results import Segment, UnwrittenSpeech
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
        `open_hypotheses`).

    Returns
    -------
    Evaluation

    Raises
    ------
    ManifestError
        If there are no recordings, a manifest or the file of hypotheses cannot be read, or the model does not know a
        language of a manifest.
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
    if not entries:
        raise ManifestError(f"no recordings are given: {ALLOWED}")
    with open_hypotheses(hypotheses, made_by) as store:
        engine = Engine(lambda: recognizer, options, store, detect_language=detect_language)
        outcomes = [*evaluate_entries(entries, [engine])]
    return summarise(
        (scores[0] for scores in outcomes if not isinstance(scores, Failure)),
        (outcome for outcome in outcomes if isinstance(outcome, Failure)),
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """A maker of hypotheses: a model with its options, or a file of another engine's texts."""

    load: Callable[[], Recognizer]  # called at most once, and not at all if all hypotheses are stored
    options: TranscribeOptions
    hypotheses: HypothesisStore  # those that are known; new ones are added
    detect_language: bool = False  # see `evaluate`


def evaluate_entries(
    entries: Sequence[Entry], engines: Sequence[Engine]
) -> Iterator[tuple[Score, ...] | Failure]:
    """Score recordings one after another, each by all engines; transcribe those without a stored hypothesis.

    The options of the first engine tell the language of a reference where the manifest does not. For each recording, in
    order, there is a score for each engine, or a failure if it cannot be read.
    """
    normalizer(None)  # fails before transcribing if the extra is missing
    transcribers = [_transcriber(entries, engine) for engine in engines]
    for entry in entries:
        try:
            hypotheses = [transcribe(entry) for transcribe in transcribers]
        except AudioError as error:
            yield Failure(entry=entry, reason=str(error))
            continue
        language = reference_language(entry, engines[0].options)
        yield tuple(score(entry, hypothesis, language) for hypothesis in hypotheses)


def reference_language(entry: Entry, options: TranscribeOptions) -> str | None:
    """Return the code of the language of a reference text; None if it is unknown."""
    return "en" if options.task == "translate" else entry.language or options.language_code


def _transcriber(entries: Sequence[Entry], engine: Engine) -> Callable[[Entry], EvalHypothesis]:
    """Return a function that returns the hypothesis of a recording, stored or new."""
    options, store = engine.options, engine.hypotheses
    language_by_name = {
        entry.name: options.language or (None if engine.detect_language else entry.language_tag)
        for entry in entries
    }

    @cache
    def recognizer() -> Recognizer:
        loaded = engine.load()
        name_by_language = {language: name for name, language in language_by_name.items()}
        for language, name in name_by_language.items():
            resolve_entry_options(loaded, options, name, language)  # fails before transcribing
        return loaded

    def transcribe(entry: Entry) -> EvalHypothesis:
        if entry.name not in store.by_name:
            hypothesis = _transcribe(recognizer(), entry, options, language_by_name[entry.name])
            store.add(entry.name, hypothesis)
        return store.by_name[entry.name]

    return transcribe


def resolve_entry_options(
    recognizer: Recognizer, options: TranscribeOptions, name: str, language: str | None
) -> TranscribeOptions:
    """Return the options of a recording, given its name and language, checked against the model.

    A language of the options holds for all recordings, else that of the manifest; None is to be detected. If the model
    does not know the language or task of the options, there is an `OptionError`, or a `ManifestError` for that of the
    recording.
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
        dropped_s=_speech_s((dropped.segment for dropped in transcript.dropped), transcript.speech),
        unwritten_s=_speech_s(transcript.unwritten, transcript.speech),
    )


def _speech_s(
    spans: Iterable[Segment | UnwrittenSpeech], speech: Sequence[tuple[float, float]] | None
) -> float | None:
    """Return the seconds of detected speech in spans of time; None without voice activity detection."""
    if speech is None:
        return None
    covered_s = (
        min(span.end_s, end_s) - max(span.start_s, start_s) for span in spans for start_s, end_s in speech
    )
    return round(sum(max(0.0, seconds) for seconds in covered_s), 3)


_LINE_START = b'{"audio": "'
"""The beginning of every line that `HypothesisStore.add` writes."""


def provenance(options: TranscribeOptions, **engine: Any) -> dict[str, Any]:
    """Return the settings that a hypothesis depends on: the engine and the options that differ from their defaults."""
    non_defaults = {
        f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) != f.default
    }
    made_by: dict[str, Any] = json.loads(json.dumps(engine | non_defaults))  # equal to what a file gives back
    return made_by


@dataclass
class HypothesisStore:
    """Hypotheses by the name of their recording; each is written to the file as soon as it is added."""

    provenance: Mapping[str, Any] = field(default_factory=dict)  # of those that are added (see `provenance`)
    by_name: dict[str, EvalHypothesis] = field(default_factory=dict)
    _file: TextIO | None = None

    def add(self, name: str, hypothesis: EvalHypothesis) -> None:
        """Add a hypothesis and write it to the file; an `OutputError` says why it cannot be written."""
        self.by_name[name] = hypothesis
        if self._file:
            line = dump_json({"audio": name} | asdict(hypothesis) | {"by": self.provenance})
            with wrap_os_errors(self._file.name):
                self._file.write(line + "\n")
                self._file.flush()

    def describe_lacking(self, entries: Collection[Entry]) -> str:
        """Describe which recordings have no hypothesis, and which hypotheses no recording; empty if none is lacking."""
        names = dict.fromkeys(entry.name for entry in entries)
        lacking = [name for name in names if name not in self.by_name]
        if not lacking:
            return ""
        others = [name for name in self.by_name if name not in names]
        text = f"lacks {len(lacking)} of {len(names)} recordings, the first is {lacking[0]}"
        return text + (f"; it names {len(others)} not among them, the first is {others[0]}" if others else "")


@contextmanager
def open_hypotheses(
    path: str | os.PathLike[str] | None, provenance: Mapping[str, Any]
) -> Iterator[HypothesisStore]:
    """Open a file of hypotheses; create it if it does not exist.

    Each line is a JSON object with ``audio`` (name of the recording, see `Entry`) and ``text``, where known the other
    attributes of `EvalHypothesis`, and ``by``, the settings that produced it: of other settings than those of the
    hypotheses that will be added, it is refused. An incomplete last line, left by an interruption, is removed; a file
    that holds anything else is refused, and left as it is. Without a path nothing is stored.
    """
    if path is None:
        yield HypothesisStore(provenance)
        return
    file_path = Path(path)
    with wrap_os_errors(file_path):
        if file_path.is_char_device():
            raise ManifestError(f"{path}: is a device; allowed is a file of hypotheses")
        file = file_path.open("a+", encoding="utf-8", newline="\n")
    try:
        with wrap_os_errors(file_path):
            known = _read_hypotheses(file, file_path, provenance)
        yield HypothesisStore(provenance, known, file)
    finally:
        # Closing writes again what a full disk refused, and fails again.
        with wrap_os_errors(file_path):
            file.close()


def read_hypotheses(path: str | os.PathLike[str], entries: Collection[Entry]) -> HypothesisStore:
    """Read the hypotheses of recordings from a file that any settings or engine may have made.

    It is refused if a line is not as in `open_hypotheses`, or if it lacks a recording.
    """
    allowed = "allowed is a file of hypotheses, as --hypotheses writes it"
    rows = read_rows(read_file(Path(path), allowed), str(path))
    store = HypothesisStore(
        {"hypotheses": str(path)}, dict(_parse_hypothesis(record, where) for where, record in rows)
    )
    if lacking := store.describe_lacking(entries):
        raise ManifestError(f"{path}: {lacking}")
    return store


def _read_hypotheses(file: TextIO, path: Path, provenance: Mapping[str, Any]) -> dict[str, EvalHypothesis]:
    """Return the hypotheses of a file, and make it end with a line break; a file of another kind is not changed."""
    content = path.read_bytes()
    *lines, last = content.split(b"\n")
    incomplete = _is_incomplete(last)
    by_name = dict(
        _parse_own(decode(line, f"{path}:{number}"), f"{path}:{number}", provenance)
        for number, line in enumerate(lines if incomplete else [*lines, last], start=1)
        if line.strip()
    )
    if incomplete:
        file.truncate(len(content) - len(last))
    else:
        file.write("\n")
        file.flush()
    return by_name


def _is_incomplete(line: bytes) -> bool:
    """Return whether a line is the beginning of one that `HypothesisStore.add` writes."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(_LINE_START[: len(line)])
    return False


def _parse_own(line: str, where: str, provenance: Mapping[str, Any]) -> tuple[str, EvalHypothesis]:
    """Return the name and the hypothesis of a line, which no other settings may have made."""
    record = parse_object(line, where)
    made_by = get_field(record, "by", where, dict, "what made it", provenance)
    for key in sorted((made_by.keys() | provenance.keys()) - {"batch_size"}):  # with any, the text is the same
        if made_by.get(key) != provenance.get(key):
            was, now = (json.dumps(settings.get(key)) for settings in (made_by, provenance))
            raise ManifestError(f"{where}: was made with {key} {was}, not {now}; name another file")
    return _parse_hypothesis(record, where)


def _parse_hypothesis(record: Mapping[str, Any], where: str) -> tuple[str, EvalHypothesis]:
    def seconds(name: str, allowed: str) -> float | None:
        found: float | None = get_field(record, name, where, (int, float), allowed, None)
        return found

    hypothesis = EvalHypothesis(
        text=get_field(record, "text", where, str, "the text of the hypothesis"),
        language=get_field(record, "language", where, str, "a code", None),
        seconds=seconds("seconds", "a length in seconds"),
        wall_s=seconds("wall_s", "a time in seconds"),
        dropped_s=seconds("dropped_s", "a length in seconds"),
        unwritten_s=seconds("unwritten_s", "a length in seconds"),
    )
    return get_field(record, "audio", where, str, "the name of a recording, such as german/a.flac"), hypothesis
