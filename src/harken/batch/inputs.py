"""The inputs of a batch: a manifest, a folder, a pattern, an audiofolder, or tar shards, local or by URL.

Only what is needed to plan is read: lines, listings and the headers of archives, never a recording.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from glob import glob, has_magic
from itertools import product
from math import isfinite
from pathlib import PurePosixPath
from typing import Any

from harken.batch.archives import read_archive
from harken.batch.locations import file_system, find_files, is_url, join, parent_of, read_bytes
from harken.batch.recordings import BatchRecording
from harken.errors import PlanError

ALLOWED = "allowed is a manifest of JSON lines, a folder, a pattern, a recording, or .tar archives"
PATH_KEYS = ("audio_filepath", "audio", "file_name")
"""Keys for the path of a recording: of NeMo, of harken's own manifests, of Hugging Face's audiofolder."""
DURATION_KEYS = ("duration", "seconds")
METADATA = ("metadata.jsonl", "metadata.csv")
MANIFEST = "manifest.jsonl"
RECORDING_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        "3gp aac ac3 aif aiff amr ape au avi caf flac flv gsm m4a m4b mka mkv mov mp2 mp3 mp4 mpeg mpg mxf",
        "oga ogg ogv opus ra rm spx tta ts voc w64 wav webm wma wmv wv",
    )
    for name in names.split()
)
"""Suffixes by which recordings are found in folders and archives."""

_BRACES = re.compile(r"\{([^{}]*)\}")
Note = Callable[[str], None]


def read_recordings(source: str, note: Note = lambda text: None) -> list[BatchRecording]:
    """Return the recordings of an input, each once.

    Parameters
    ----------
    source : str
        Path or URL of a manifest (JSON lines with ``audio_filepath``, or ``audio``, and where known ``id``, ``offset``,
        ``duration`` and ``language``), of a folder, of a recording or of a ``.tar`` archive; or a pattern of such files
        (``talks/**/*.mp3``, ``shards/{000..119}.tar``).
    note : callable, optional
        Called with a line about repeated lines.

    Returns
    -------
    list of BatchRecording

    Raises
    ------
    PlanError
        If it cannot be read, a line is no object or names no recording, a value is not allowed, two lines share an
        ``id`` and differ, or there is no recording. The message names file and line.
    """
    try:
        recordings = [*_read(source)]
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise PlanError(f"{source}: {reason}; {ALLOWED}") from error
    unique = {recording.digest: recording for recording in recordings}
    if len(unique) < len(recordings):
        note(f"{source}: {len(recordings) - len(unique)} repeated lines are done once")
    for recording_id, count in Counter(each.id for each in unique.values()).most_common(1):
        if count > 1:
            raise PlanError(f"{source}: id {recording_id!r} is that of {count} lines that differ")
    if not unique:
        raise PlanError(f"{source}: holds no recordings; {ALLOWED}")
    return [*unique.values()]


def _read(source: str) -> Iterator[BatchRecording]:
    paths = _expand(source)
    if paths is None:
        yield from _read_one(source)
        return
    if not paths:
        raise PlanError(f"{source}: no file is of this pattern")
    root = _root_of(source)
    for path in paths:
        if path.lower().endswith((".tar", ".jsonl", ".ndjson")):
            yield from _read_one(path)
        else:
            name = path.removeprefix(root).lstrip("/").replace(os.sep, "/")
            yield BatchRecording(location=path, name=name, keys={"audio_filepath": name})


def _read_one(source: str) -> Iterator[BatchRecording]:
    """Yield the recordings of an input that is no pattern."""
    suffix = PurePosixPath(source).suffix.lower()
    if suffix in (".jsonl", ".ndjson", ".json"):
        yield from _read_manifest(source)
    elif suffix == ".tar":
        yield from _read_tar(source)
    elif suffix in (".gz", ".tgz", ".zst", ".xz", ".zip"):
        raise PlanError(
            f"{source}: allowed are archives without compression, so that a file in them can be found"
        )
    elif suffix in RECORDING_SUFFIXES and not (os.path.isdir(source)):
        name = PurePosixPath(source.replace(os.sep, "/")).name
        yield BatchRecording(location=source, name=name, keys={"audio_filepath": name})
    elif is_url(source) or os.path.isdir(source):
        yield from _read_folder(source)
    elif not os.path.exists(source):
        raise PlanError(f"{source}: no such file; {ALLOWED}")
    else:
        raise PlanError(f"{source}: is neither a manifest nor a recording by its suffix; {ALLOWED}")


def _read_folder(folder: str) -> Iterator[BatchRecording]:
    files = dict(find_files(folder))
    for name in METADATA:
        if name in files:
            yield from _read_manifest(join(folder, name))
            return
    if MANIFEST in files:
        yield from _read_manifest(join(folder, MANIFEST))
        return
    recordings = [name for name in files if PurePosixPath(name).suffix.lower() in RECORDING_SUFFIXES]
    if not recordings:
        for name in files:
            if name.endswith(".tar"):
                yield from _read_tar(join(folder, name))
    for name in recordings:
        yield BatchRecording(
            location=join(folder, name), name=name, keys={"audio_filepath": name}, size=files[name]
        )


def _read_tar(location: str) -> Iterator[BatchRecording]:
    archive = PurePosixPath(location.replace(os.sep, "/")).name
    for sample in read_archive(location, RECORDING_SUFFIXES):
        name = f"{archive}/{sample.name}"
        keys = {"audio_filepath": name, **sample.keys}
        yield _recording(
            keys, location, name, f"{location}: {sample.name}", bytes=sample.bytes, size=sample.bytes.size
        )


def _read_manifest(manifest: str) -> Iterator[BatchRecording]:
    try:
        text = read_bytes(manifest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError(f"{manifest}: is not UTF-8 text, at byte {error.start}") from error
    rows = _csv_rows(text) if manifest.endswith(".csv") else _json_rows(text, manifest)
    folder = parent_of(manifest)
    for number, keys in rows:
        where = f"{manifest}, line {number}"
        name = next((keys[key] for key in PATH_KEYS if keys.get(key)), None)
        if not isinstance(name, str):
            raise PlanError(f"{where}: names no recording; allowed is an object with audio_filepath")
        yield _recording(keys, join(folder, name), name.replace(os.sep, "/"), where)


def _json_rows(text: str, manifest: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    # Not splitlines: a text may hold other line separators, which JSON allows unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            keys = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"{manifest}, line {number}: is not JSON: {error}") from None
        if not isinstance(keys, dict):
            raise PlanError(f"{manifest}, line {number}: is not an object with audio_filepath")
        yield number, keys


def _csv_rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    for row in reader:
        values: dict[str, Any] = {key: value for key, value in row.items() if key is not None and value}
        for key in ("offset", *DURATION_KEYS):
            if key in values:
                values[key] = _number_or_text(values[key])
        yield reader.line_num, values


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _recording(keys: Mapping[str, Any], location: str, name: str, where: str, **place: Any) -> BatchRecording:
    """Make the recording of a line, with its values checked."""
    recording_id, language = keys.get("id"), keys.get("language")
    if recording_id is not None and not isinstance(recording_id, str | int):
        raise PlanError(f"{where}: id {recording_id!r}: allowed is a text or an integer")
    if language is not None and not isinstance(language, str):
        raise PlanError(f"{where}: language {language!r}: allowed is a text")
    duration_s = next((keys[key] for key in DURATION_KEYS if keys.get(key) is not None), None)
    return BatchRecording(
        location=location,
        name=name,
        keys=keys,
        id="" if recording_id is None else str(recording_id),
        offset_s=_checked_seconds("offset", keys.get("offset"), where),
        duration_s=_checked_seconds("duration", duration_s, where),
        language=language or None,
        **place,
    )


def _checked_seconds(key: str, value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value >= 0):
        raise PlanError(f"{where}: {key} {value!r}: allowed is a number of seconds from 0")
    return float(value)


def _expand(source: str) -> list[str] | None:
    """Return the files of a pattern in order; None if it is none."""
    if not is_url(source) and os.path.lexists(source):
        return None
    alternatives = [*_expand_braces(source)]
    if len(alternatives) == 1 and not has_magic(source):
        return None
    return [path for alternative in alternatives for path in _matches(alternative)]


def _matches(pattern: str) -> Iterable[str]:
    if not has_magic(pattern):
        return [pattern]
    if not is_url(pattern):
        return sorted(path for path in glob(pattern, recursive=True) if os.path.isfile(path))
    system, path = file_system(pattern)
    return sorted(system.unstrip_protocol(match) for match in system.glob(path))


def _expand_braces(pattern: str) -> Iterator[str]:
    """Yield the alternatives of ``{a,b}`` and of ``{000..119}``, as in a shell and in webdataset."""
    parts = _BRACES.split(pattern)
    choices = [[part] if index % 2 == 0 else [*_choices(part)] for index, part in enumerate(parts)]
    yield from map("".join, product(*choices))


def _choices(part: str) -> Iterator[str]:
    first, dots, last = part.partition("..")
    if dots and first.isdecimal() and last.isdecimal():
        width = len(first) if first.startswith("0") else 0
        yield from (f"{number:0{width}}" for number in range(int(first), int(last) + 1))
    else:
        yield from part.split(",") if "," in part else [f"{{{part}}}"]


def _root_of(pattern: str) -> str:
    """Return the folder that all files of a pattern share, by which they are named."""
    head = re.split(r"[*?\[{]", pattern, maxsplit=1)[0].replace(os.sep, "/")
    return head.rpartition("/")[0] if "/" in head else ""
