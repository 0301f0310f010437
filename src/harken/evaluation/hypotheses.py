"""Hypotheses kept in a file, so that work that was interrupted goes on and other engines can be scored."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from harken.errors import ManifestError, OutputError
from harken.evaluation.manifest import get_field, parse_object
from harken.transcribe import TranscribeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalHypothesis:
    """What an engine heard in a recording.

    Attributes
    ----------
    text : str
    language : str or None
        Code of the language that it was given or detected, if known.
    seconds : float or None
        Length of the recording, if known.
    wall_s : float or None
        Time that it took, in seconds, if known.
    """

    text: str
    language: str | None = None
    seconds: float | None = None
    wall_s: float | None = None


def provenance(options: TranscribeOptions, **engine: Any) -> dict[str, Any]:
    """What a hypothesis depends on: the engine, and the options that are not at their defaults."""
    non_defaults = {
        f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) != f.default
    }
    made_by: dict[str, Any] = json.loads(json.dumps(engine | non_defaults))  # as they are read back
    return made_by


@dataclass
class HypothesisStore:
    """Hypotheses by the name of their recording, and the file that keeps each as soon as it is known.

    Parameters
    ----------
    by : mapping
        What makes those that are added (see `provenance`).
    known : dict of str to Heard
    """

    provenance: Mapping[str, Any] = field(default_factory=dict)
    by_name: dict[str, EvalHypothesis] = field(default_factory=dict)
    _file: TextIO | None = None

    def add(self, name: str, hypothesis: EvalHypothesis) -> None:
        """Add one, and write it.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        self.by_name[name] = hypothesis
        if self._file:
            record = {f.name: getattr(hypothesis, f.name) for f in fields(EvalHypothesis)}
            line = json.dumps({"audio": name} | record | {"by": self.provenance}, ensure_ascii=False)
            with _as_output_error(self._file.name):
                self._file.write(line + "\n")
                self._file.flush()


@contextmanager
def open_hypotheses(
    path: str | os.PathLike[str] | None, provenance: Mapping[str, Any]
) -> Iterator[HypothesisStore]:
    """Open a file of hypotheses, made where there is none.

    Its lines are JSON objects with ``audio`` (name of the recording, see `Entry`) and ``text``, and where known
    ``language``, ``seconds``, ``wall_s`` and ``by``, which says what made it. A last line that an interruption has
    cut short is taken away.

    Parameters
    ----------
    path : path or None
        None keeps nothing.
    by : mapping
        What makes those that will be added. Lines that say otherwise are refused; lines that say nothing are taken.

    Raises
    ------
    ManifestError
        If a line is not such an object, or was made by something else.
    OutputError
        If the file cannot be written.
    """
    if path is None:
        yield HypothesisStore(provenance)
        return
    file_path = Path(path)
    with _as_output_error(file_path):
        file = file_path.open("a+", encoding="utf-8", newline="\n")
    with file:
        yield HypothesisStore(provenance, _read(file, file_path, provenance), file)


def _read(file: TextIO, path: Path, provenance: Mapping[str, Any]) -> dict[str, EvalHypothesis]:
    file.seek(0)
    try:
        *lines, last = file.read().split("\n")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not UTF-8 text, at byte {error.start}") from error
    if last.rstrip().endswith("}"):
        lines.append(last)
        file.write("\n")
    elif last:
        file.truncate(sum(len(line.encode()) + 1 for line in lines))
    numbered = enumerate(lines, start=1)
    return dict(_parse_line(line, f"{path}:{number}", provenance) for number, line in numbered if line.strip())


def _parse_line(line: str, where: str, provenance: Mapping[str, Any]) -> tuple[str, EvalHypothesis]:
    record = parse_object(line, where)
    made_by = get_field(record, "by", where, dict, "what made it", provenance)
    for key in sorted(made_by.keys() | provenance.keys()):
        if made_by.get(key) != provenance.get(key):
            was, now = (json.dumps(them.get(key)) for them in (made_by, provenance))
            raise ManifestError(f"{where}: was made with {key} {was}, not {now}; name another file")
    hypothesis = EvalHypothesis(
        text=get_field(record, "text", where, str, "what was heard"),
        language=get_field(record, "language", where, str, "a code", None),
        seconds=get_field(record, "seconds", where, (int, float), "a length in seconds", None),
        wall_s=get_field(record, "wall_s", where, (int, float), "a time in seconds", None),
    )
    return get_field(record, "audio", where, str, "the name of a recording, such as german/a.flac"), hypothesis


@contextmanager
def _as_output_error(path: str | Path) -> Iterator[None]:
    """Turn what the system says into an `OutputError` that names the file."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
