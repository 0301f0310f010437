"""Files of hypotheses: an interrupted evaluation resumes from them, and other engines can be scored by them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from harken.errors import ManifestError, OutputError
from harken.formats import dump_json
from harken.manifests import decode, get_field, parse_object
from harken.transcribe import TranscribeOptions


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
    """Hypotheses by the name of their recording; each is written to the file as soon as it is added.

    Parameters
    ----------
    provenance : mapping
        Settings that produce the added hypotheses (see `provenance`).
    by_name : dict of str to EvalHypothesis
    """

    provenance: Mapping[str, Any] = field(default_factory=dict)
    by_name: dict[str, EvalHypothesis] = field(default_factory=dict)
    _file: TextIO | None = None

    def add(self, name: str, hypothesis: EvalHypothesis) -> None:
        """Add a hypothesis and write it to the file.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        self.by_name[name] = hypothesis
        if self._file:
            record = {f.name: getattr(hypothesis, f.name) for f in fields(EvalHypothesis)}
            line = dump_json({"audio": name} | record | {"by": self.provenance})
            with _as_output_error(self._file.name):
                self._file.write(line + "\n")
                self._file.flush()


@contextmanager
def open_hypotheses(
    path: str | os.PathLike[str] | None, provenance: Mapping[str, Any]
) -> Iterator[HypothesisStore]:
    """Open a file of hypotheses; create it if it does not exist.

    Each line is a JSON object with ``audio`` (name of the recording, see `Entry`) and ``text``, and where known
    ``language``, ``seconds``, ``wall_s`` and ``by``, the settings that produced it. An incomplete last line, left by
    an interruption, is removed; a file that holds anything else is left as it is.

    Parameters
    ----------
    path : path or None
        None stores nothing.
    provenance : mapping
        Settings of the hypotheses that will be added. A line with other settings is refused; a line without
        settings is accepted.

    Raises
    ------
    ManifestError
        If a line is not such an object, or was produced with other settings.
    OutputError
        If the file cannot be written.
    """
    if path is None:
        yield HypothesisStore(provenance)
        return
    file_path = Path(path)
    with _as_output_error(file_path):
        if file_path.is_char_device():
            raise ManifestError(f"{path}: is a device; allowed is a file of hypotheses")
        file = file_path.open("a+", encoding="utf-8", newline="\n")
    with file:
        yield HypothesisStore(provenance, _read(file, file_path, provenance), file)


def _read(file: TextIO, path: Path, provenance: Mapping[str, Any]) -> dict[str, EvalHypothesis]:
    """Return the hypotheses of a file, and make it end with a line break; a file of another kind is not changed."""
    with _as_output_error(path):
        *whole, last = path.read_bytes().split(b"\n")
    by_name = dict(
        _parse_line(decode(line, f"{path}:{number}"), f"{path}:{number}", provenance)
        for number, line in enumerate(whole, start=1)
        if line.strip()
    )
    if not last:
        return by_name
    with _as_output_error(path):
        if _is_incomplete(last):
            file.truncate(sum(len(line) + 1 for line in whole))
            return by_name
    where = f"{path}:{len(whole) + 1}"
    name, hypothesis = _parse_line(decode(last, where), where, provenance)
    with _as_output_error(path):
        file.write("\n")
        file.flush()
    return by_name | {name: hypothesis}


def _is_incomplete(line: bytes) -> bool:
    """Return whether a line is the beginning of one that `HypothesisStore.add` writes."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(_LINE_START[: len(line)])
    return False


def _parse_line(line: str, where: str, provenance: Mapping[str, Any]) -> tuple[str, EvalHypothesis]:
    record = parse_object(line, where)
    made_by = get_field(record, "by", where, dict, "what made it", provenance)
    for key in sorted(made_by.keys() | provenance.keys()):
        if made_by.get(key) != provenance.get(key):
            was, now = (json.dumps(settings.get(key)) for settings in (made_by, provenance))
            raise ManifestError(f"{where}: was made with {key} {was}, not {now}; name another file")
    hypothesis = EvalHypothesis(
        text=get_field(record, "text", where, str, "the text of the hypothesis"),
        language=get_field(record, "language", where, str, "a code", None),
        seconds=get_field(record, "seconds", where, (int, float), "a length in seconds", None),
        wall_s=get_field(record, "wall_s", where, (int, float), "a time in seconds", None),
    )
    return get_field(record, "audio", where, str, "the name of a recording, such as german/a.flac"), hypothesis


@contextmanager
def _as_output_error(path: str | Path) -> Iterator[None]:
    """Turn an `OSError` into an `OutputError` that names the file."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
