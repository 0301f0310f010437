"""Manifests: recordings and what is known of each, in lines of JSON or CSV, for evaluation, training and batches.

Every error names the file, the line, the key, and what is allowed.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

from harken.audio import audio_duration
from harken.errors import ManifestError, OptionError
from harken.files import decode, read_file
from harken.results import MAX_TIME_S
from harken.text import script_of, to_language_code

MANIFEST = "manifest.jsonl"
"""The manifest of a folder."""
SECONDS_KEYS = ("offset", "duration", "seconds")
"""Keys whose values are numbers, which CSV does not tell."""
RECORDING_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        "3gp aac ac3 aif aiff amr ape au avi caf flac flv gsm m4a m4b mka mkv mov mp2 mp3 mp4 mpeg mpg mxf",
        "oga ogg ogv opus ra rm spx tta ts voc w64 wav webm wma wmv wv",
    )
    for name in names.split()
)
"""Suffixes by which recordings are found in folders and archives."""
NO_LANGUAGE = ("", "none")
ALLOWED = f"allowed is a manifest, or a folder with {MANIFEST}"
ALLOWED_SAID = "a list of turns in order, each an object with speaker and text"

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One recording and its reference text.

    Results name it by the folder of the manifest and the path in it, such as ``"german/a.flac"``, or by the whole path
    of a file elsewhere.
    """

    name: str
    path: Path
    text: str  # empty for a recording without speech
    language: str | None = None  # code; None if it is unknown or there is no speech
    script: str | None = None  # that the manifest asks for, such as Hant of zh-Hant
    seconds: float | None = None  # length, if the manifest gives one
    speaker: str | None = None
    rttm: Path | None = None  # file of the turns of several speakers
    said: tuple[tuple[str, str], ...] = ()  # speaker and text of each turn, in order; empty if they are unknown
    has_reference: bool = field(default=True, compare=False)  # else the text is unknown

    @property
    def set(self) -> str:
        """Name of the folder of the manifest."""
        return self.name.partition("/")[0]

    @property
    def language_tag(self) -> str | None:
        """The language to transcribe in, with the script if one is asked for, such as ``zh-Hant``."""
        return f"{self.language}-{self.script}" if self.script else self.language


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
        Files of JSON lines or of CSV (``.csv``), or folders that hold a ``manifest.jsonl``. A line has ``audio`` (path
        relative to the manifest) and ``text``, and where known ``language``, ``seconds`` and ``speaker``.
    limit : int, optional
        Number of recordings of each manifest, spread evenly over it.
    note : callable, optional
        Called with a message about every duplicate line that is left out. Where duplicate lines differ, the one
        whose ``seconds`` is closest to the length of the recording is kept.
    needs_text : bool
        Whether every line must have ``text``; without, it is empty.

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


def read_entries(
    paths: Iterable[str | os.PathLike[str]], note: Callable[[str], None], *, needs_text: bool
) -> list[Entry]:
    """Read manifests, as `read_manifests` does, folders that hold one, and folders of recordings without texts.

    Raises
    ------
    ManifestError
        If a folder holds no recordings, or no manifest where texts are needed, or as in `read_manifests`.
    """
    entries: list[Entry] = []
    for path in map(Path, paths):
        if needs_text or not os.path.isdir(path) or os.path.isfile(path / MANIFEST):
            entries += read_manifests([path], note=note, needs_text=needs_text)
            continue
        found = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        files = sorted(
            file for file in found if file.suffix.lower() in RECORDING_SUFFIXES and os.path.isfile(file)
        )
        if not files:
            raise ManifestError(f"{path}: holds neither {MANIFEST} nor audio")
        name = path.resolve().name
        entries += (
            Entry(name=f"{name}/{file.relative_to(path).as_posix()}", path=file, text="", has_reference=False)
            for file in files
        )
    return entries


def named_files(paths: Iterable[str | os.PathLike[str]], *, needs_text: bool = True) -> Iterator[Path]:
    """Yield manifests and the recordings that they name, to protect them from being overwritten."""
    for path in paths:
        yield manifest_path(path)
        yield from (entry.path for entry in read_manifests([path], needs_text=needs_text))


def manifest_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a manifest that is given by its own path or that of its folder."""
    return Path(path) / MANIFEST if os.path.isdir(path) else Path(path)


def subsample_evenly(items: Sequence[T], limit: int | None) -> Sequence[T]:
    """Return at most `limit` items, evenly spaced and always the same ones; all items if `limit` is None."""
    if limit is None or limit >= len(items):
        return items
    return [items[index * len(items) // limit] for index in range(limit)]


def read_rows(content: bytes, name: str, *, finite: bool = False) -> Iterator[tuple[str, Json]]:
    """Yield the place of each line of a manifest, as ``file:number``, and its keys and values.

    It is UTF-8, with or without a byte order mark. If its path or URL ends in ``.csv``, it is CSV with a heading, where
    an empty value is none, but for an empty text.

    Raises
    ------
    ManifestError
        If it is not UTF-8, or a line is no object of JSON.
    """
    text = decode(content, name)
    if not name.lower().endswith(".csv"):
        # Not splitlines: a text may hold other line separators, which JSON allows unescaped.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{name}:{number}", parse_object(line, f"{name}:{number}", finite=finite)
        return
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if None in row:
                raise ManifestError(
                    f"{name}:{reader.line_num}: has {len(row) - 1 + len(row[None])} fields, and the heading "
                    f"{len(row) - 1}; a text with commas is quoted"
                )
            values = {key: value for key, value in row.items() if value or (key == "text" and value == "")}
            numbers = {key: _number_or_text(values[key]) for key in SECONDS_KEYS if key in values}
            yield f"{name}:{reader.line_num}", values | numbers
    except csv.Error as error:
        raise ManifestError(f"{name}:{reader.line_num}: is not CSV: {error}") from error


def parse_object(text: str, where: str, *, finite: bool = False) -> Json:
    """Parse an object of JSON; if its numbers must be `finite`, every reader of JSON can read it again."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ManifestError(f"{where}: is not JSON: {error}") from error
    except RecursionError:
        raise ManifestError(f"{where}: is nested too deeply; allowed is one JSON object") from None
    if not isinstance(value, dict):
        raise ManifestError(f"{where}: is not a JSON object in braces")
    if finite:
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise ManifestError(
                f"{where}: has a number that is not finite, or beyond the range of 64-bit floats; allowed are finite "
                "numbers, and null"
            ) from None
        except RecursionError:
            raise ManifestError(f"{where}: is nested too deeply; allowed is one JSON object") from None
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
        raise ManifestError(f"{where}: {OptionError(name, value, allowed)}")
    return value


def get_seconds(fields: Mapping[str, Any], name: str, where: str) -> float | None:
    """Return a field that is a time in seconds, from 0 on; None without it."""
    allowed = f"a length in seconds, from 0 to {MAX_TIME_S:g}"
    seconds: float | None = get_field(fields, name, where, (int, float), allowed, None)
    if seconds is not None and not 0 <= seconds <= MAX_TIME_S:
        raise ManifestError(f"{where}: {OptionError(name, seconds, allowed)}")
    return seconds


def _read(path: Path, note: Callable[[str], None], needs_text: bool) -> list[Entry]:
    if path.suffix.lower() in RECORDING_SUFFIXES:
        raise ManifestError(f"{path}: is a recording; {ALLOWED}")
    lines_by_name: dict[str, dict[str, Entry]] = {}
    for where, fields in read_rows(read_file(path, ALLOWED), str(path)):
        entry = _parse_entry(fields, path, where, needs_text)
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


def _parse_entry(fields: Json, manifest: Path, where: str, needs_text: bool) -> Entry:
    audio, path = _named_file(
        manifest, fields, "audio", where, "the path of a recording, relative to the manifest"
    )
    speaker = get_field(fields, "speaker", where, (str, int), "a name or number", None)
    language, script = _parse_language(fields, where)
    rttm = None
    if fields.get("rttm") is not None:
        allowed = "the path of a file of turns, relative to the manifest"
        _, rttm = _named_file(manifest, fields, "rttm", where, allowed)
    text = "the reference text, empty without speech"
    return Entry(
        name=_name(Path(audio), manifest.resolve().parent),
        path=path,
        text=get_field(fields, "text", where, str, text, ... if needs_text else ""),
        language=language,
        script=script,
        seconds=get_seconds(fields, "seconds", where),
        speaker=None if speaker is None else str(speaker),
        rttm=rttm,
        said=_parse_said(fields, where),
        has_reference=fields.get("text") is not None,
    )


def _name(audio: Path, folder: Path) -> str:
    """Return the name of a recording, given by its path, in the folder of its manifest."""
    if audio.is_absolute():
        audio = audio.relative_to(folder if audio.is_relative_to(folder) else audio.anchor)
    return f"{folder.name}/{audio.as_posix()}"


def _named_file(manifest: Path, fields: Json, name: str, where: str, allowed: str) -> tuple[str, Path]:
    """Return the value of a field that names a file, and the path of the file."""
    given: str = get_field(fields, name, where, str, allowed)
    path = manifest.parent / given
    if not os.path.isfile(path):  # unlike Path.is_file, not an error for a name that is too long
        raise ManifestError(f"{where}: {name}={given!r}: there is no file {path}")
    return given, path


def _parse_language(fields: Json, where: str) -> tuple[str | None, str | None]:
    """Return the code of the language of a line, and its script, if one is asked for."""
    given = get_field(fields, "language", where, str, "a code or name, or none", None)
    if given is None or given.lower() in NO_LANGUAGE:
        return None, None
    try:
        return to_language_code(given), script_of(given)
    except OptionError as error:
        raise ManifestError(f"{where}: {error}, or none without speech") from error


def _parse_said(fields: Json, where: str) -> tuple[tuple[str, str], ...]:
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


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
