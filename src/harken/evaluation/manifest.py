"""Manifests of recordings and their reference texts, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

from harken.audio import audio_duration
from harken.errors import ManifestError, OptionError
from harken.text import to_language_code

MANIFEST = "manifest.jsonl"
NO_LANGUAGE = ("", "none")
ALLOWED_SAID = "a list of turns in order, each an object with speaker and text"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One recording and its reference text.

    Attributes
    ----------
    name : str
        Folder of the manifest and path in it, such as ``"german/a.flac"``; results name the recording by it.
    path : Path
    text : str
        Reference text; empty for a recording without speech.
    language : str or None
        Code of the language; None if it is unknown or there is no speech.
    seconds : float or None
        Length, if the manifest gives one.
    speaker : str or None
    rttm : Path or None
        File of the turns of several speakers.
    said : tuple of (str, str)
        Speaker and text of each turn, in order; empty if they are unknown.
    """

    name: str
    path: Path
    text: str
    language: str | None = None
    seconds: float | None = None
    speaker: str | None = None
    rttm: Path | None = None
    said: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecording:
    """A recording to measure with.

    Attributes
    ----------
    entry : Entry
    has_reference : bool
        True if the text of the entry is the reference; otherwise the text means nothing.
    """

    entry: Entry
    has_reference: bool


def read_manifests(
    paths: Iterable[str | os.PathLike[str]],
    limit: int | None = None,
    note: Callable[[str], None] = lambda text: None,
    *,
    needs_text: bool = True,
) -> tuple[Entry, ...]:
    """Read manifests, one after another.

    Parameters
    ----------
    paths : iterable of path
        Files of JSON lines, or folders that hold a ``manifest.jsonl``. A line is an object with ``audio`` (path
        relative to the manifest) and ``text``, and where known ``language``, ``seconds`` and ``speaker``.
    limit : int, optional
        Number of recordings of each manifest, spread evenly over it.
    note : callable, optional
        Called with a message about every duplicate line that is left out. Where duplicate lines differ, the one
        whose ``seconds`` is closest to the length of the recording is kept.
    needs_text : bool
        Whether every line must have ``text``; without, it is empty.

    Returns
    -------
    tuple of Entry

    Raises
    ------
    ManifestError
        If a manifest is missing or empty, a line is not such an object or names no file, or two lines of one
        recording differ and their lengths do not decide between them.
    """
    entries: dict[str, Entry] = {}
    for path in map(Path, paths):
        for entry in subsample_evenly(_read(manifest_path(path), note, needs_text), limit):
            if entry.name in entries:
                raise ManifestError(
                    f"{path}: there is another {entry.name}; allowed are names that differ in folder or file"
                )
            entries[entry.name] = entry
    return tuple(entries.values())


def manifest_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a manifest that is given by its own path or that of its folder."""
    return Path(path) / MANIFEST if os.path.isdir(path) else Path(path)


def subsample_evenly(items: Sequence[T], limit: int | None) -> Sequence[T]:
    """Return at most `limit` items, evenly spaced and always the same ones; all items if `limit` is None."""
    if limit is None or limit >= len(items):
        return items
    return [items[index * len(items) // limit] for index in range(limit)]


def _read(path: Path, note: Callable[[str], None], needs_text: bool) -> list[Entry]:
    try:
        if path.is_char_device():
            raise ManifestError(f"{path}: is a device; allowed is a manifest, or a folder with {MANIFEST}")
        # Not splitlines: a text may hold other line separators, which JSON allows unescaped.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise ManifestError(f"{path}: {reason}; allowed is a manifest, or a folder with {MANIFEST}") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not UTF-8 text, at byte {error.start}") from error
    lines_by_name: dict[str, dict[str, Entry]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            entry, where = _parse_entry(line, path, number, needs_text)
            lines_by_name.setdefault(entry.name, {})[where] = entry
    if not lines_by_name:
        raise ManifestError(f"{path}: holds no recordings")
    return [_resolve_duplicate_lines(duplicates, note) for duplicates in lines_by_name.values()]


def _resolve_duplicate_lines(lines: Mapping[str, Entry], note: Callable[[str], None]) -> Entry:
    """Choose one of the lines that name the same recording."""
    chosen, *others = lines
    why = f"{chosen} is the same"
    if any(lines[chosen] != lines[other] for other in others):
        length_s = audio_duration(lines[chosen].path)
        duration_errors_s = {
            where: abs((entry.seconds or inf) - (length_s or inf)) for where, entry in lines.items()
        }
        if not all(map(isfinite, duration_errors_s.values())):
            raise ManifestError(
                f"{others[0]}: {lines[chosen].path.name} is named in {chosen} too, with other values"
            )
        chosen = min(duration_errors_s, key=duration_errors_s.__getitem__)
        why = f"{lines[chosen].path.name} is {length_s:.3f} s long, as in {chosen}"
    for where in lines:
        if where != chosen:
            note(f"{where}: left out: {why}")
    return lines[chosen]


def _parse_entry(line: str, manifest: Path, number: int, needs_text: bool) -> tuple[Entry, str]:
    """Read a line and return its entry with the location of the line, as ``file:number``."""
    where = f"{manifest}:{number}"
    fields = parse_object(line, where)
    audio = get_field(fields, "audio", where, str, "the path of a recording, relative to the manifest")
    path = manifest.parent / audio
    if not os.path.isfile(path):  # unlike Path.is_file, not an error for a name that is too long
        raise ManifestError(f"{where}: audio={audio!r}: there is no file {path}")
    seconds = get_field(fields, "seconds", where, (int, float), "a length in seconds", None)
    if seconds is not None and not (isfinite(seconds) and seconds >= 0):
        raise ManifestError(f"{where}: seconds={seconds!r}: allowed is a length in seconds, from 0 on")
    speaker = get_field(fields, "speaker", where, (str, int), "a name or number", None)
    entry = Entry(
        name=f"{manifest.resolve().parent.name}/{Path(audio).as_posix()}",
        path=path,
        text=get_field(
            fields, "text", where, str, "the reference text, empty without speech", ... if needs_text else ""
        ),
        language=_parse_language(
            get_field(fields, "language", where, str, "a code or name, or none", None), where
        ),
        seconds=seconds,
        speaker=None if speaker is None else str(speaker),
        rttm=_parse_rttm(manifest, fields, where),
        said=_parse_said(fields, where),
    )
    return entry, where


def _parse_rttm(manifest: Path, fields: Mapping[str, Any], where: str) -> Path | None:
    given: str | None = get_field(
        fields, "rttm", where, str, "the path of a file of turns, relative to the manifest", None
    )
    if given is None:
        return None
    path = manifest.parent / given
    if not os.path.isfile(path):
        raise ManifestError(f"{where}: rttm={given!r}: there is no file {path}")
    return path


def _parse_said(fields: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    turns = get_field(fields, "said", where, list, ALLOWED_SAID, [])
    if not all(isinstance(turn, dict) for turn in turns):
        raise ManifestError(f"{where}: said: allowed is {ALLOWED_SAID}")
    return tuple(
        (
            get_field(turn, "speaker", f"{where}: said", str, "a name"),
            get_field(turn, "text", f"{where}: said", str, "the text of the turn"),
        )
        for turn in turns
    )


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Parse a line as a JSON object.

    Raises
    ------
    ManifestError
        If it is not one; the message names the line.
    """
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ManifestError(f"{where}: is not JSON: {error}") from error
    except RecursionError:
        raise ManifestError(f"{where}: is nested too deeply; allowed is one JSON object") from None
    if not isinstance(value, dict):
        raise ManifestError(f"{where}: is not a JSON object in braces")
    return value


def get_field(
    fields: Mapping[str, Any], name: str, where: str, kind: Any, allowed: str, default: Any = ...
) -> Any:
    """Return a field of a line, checked for its type; one without a default is required."""
    if (value := fields.get(name)) is None:
        if default is ...:
            raise ManifestError(f"{where}: {name} is missing: allowed is {allowed}")
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ManifestError(f"{where}: {name}={value!r}: allowed is {allowed}")
    return value


def _parse_language(given: str | None, where: str) -> str | None:
    if given is None or given.lower() in NO_LANGUAGE:
        return None
    try:
        return to_language_code(given)
    except OptionError as error:
        raise ManifestError(f"{where}: {error}, or none without speech") from error
