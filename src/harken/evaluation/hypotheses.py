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
from harken.evaluation.manifest import parse_object, take
from harken.transcribe import TranscribeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
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
    chosen = {
        f.name: getattr(options, f.name) for f in fields(options) if getattr(options, f.name) != f.default
    }
    by: dict[str, Any] = json.loads(json.dumps(engine | chosen))  # as they are read back
    return by


@dataclass
class Hypotheses:
    """Hypotheses by the name of their recording, and the file that keeps each as soon as it is known.

    Parameters
    ----------
    by : mapping
        What makes those that are added (see `provenance`).
    known : dict of str to Heard
    """

    by: Mapping[str, Any] = field(default_factory=dict)
    known: dict[str, Heard] = field(default_factory=dict)
    _file: TextIO | None = None

    def keep(self, name: str, heard: Heard) -> None:
        """Add one, and write it.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        self.known[name] = heard
        if self._file:
            its = {f.name: getattr(heard, f.name) for f in fields(Heard)}
            line = json.dumps({"audio": name} | its | {"by": self.by}, ensure_ascii=False)
            with _naming(self._file.name):
                self._file.write(line + "\n")
                self._file.flush()


@contextmanager
def open_hypotheses(path: str | os.PathLike[str] | None, by: Mapping[str, Any]) -> Iterator[Hypotheses]:
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
        yield Hypotheses(by)
        return
    named = Path(path)
    with _naming(named):
        file = named.open("a+", encoding="utf-8", newline="\n")
    with file:
        yield Hypotheses(by, _read(file, named, by), file)


def _read(file: TextIO, path: Path, by: Mapping[str, Any]) -> dict[str, Heard]:
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
    return dict(_heard(line, f"{path}:{number}", by) for number, line in numbered if line.strip())


def _heard(line: str, where: str, by: Mapping[str, Any]) -> tuple[str, Heard]:
    its = parse_object(line, where)
    made_by = take(its, "by", where, dict, "what made it", by)
    for key in sorted(made_by.keys() | by.keys()):
        if made_by.get(key) != by.get(key):
            was, now = (json.dumps(them.get(key)) for them in (made_by, by))
            raise ManifestError(f"{where}: was made with {key} {was}, not {now}; name another file")
    heard = Heard(
        text=take(its, "text", where, str, "what was heard"),
        language=take(its, "language", where, str, "a code", None),
        seconds=take(its, "seconds", where, (int, float), "a length in seconds", None),
        wall_s=take(its, "wall_s", where, (int, float), "a time in seconds", None),
    )
    return take(its, "audio", where, str, "the name of a recording, such as german/a.flac"), heard


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Turn what the system says into an `OutputError` that names the file."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
