"""Manifests: JSON lines or CSV with a recording a line, whose values are checked before anything is planned."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from harken.batch.locations import is_url, join, parent_of, read_bytes
from harken.batch.recordings import DURATION_KEYS, BatchRecording, Json
from harken.errors import PlanError
from harken.results import MAX_TIME_S

PATH_KEYS = ("audio_filepath", "audio", "file_name")
"""Keys for the path of a recording: of NeMo, of harken's own manifests, of Hugging Face's audiofolder."""

Found = tuple[str, BatchRecording]
"""The place of a recording in the input, for messages, and the recording."""


def read_manifest(manifest: str, folder_name: str = "") -> Iterator[Found]:
    """Yield the recordings of a manifest, by path or URL.

    Parameters
    ----------
    manifest : str
    folder_name : str
        Its folder in the input, if there are several manifests: its recordings are named by it.

    Raises
    ------
    PlanError
        If a line is no object, names no recording, or has a value that is not allowed.
    OSError
        If it cannot be read.
    """
    try:
        text = read_bytes(manifest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError(f"{manifest}: is not UTF-8 text, at byte {error.start}") from error
    rows = _csv_rows(text, manifest) if manifest.lower().endswith(".csv") else _json_rows(text, manifest)
    folder = parent_of(manifest)
    for number, keys in rows:
        where = f"{manifest}, line {number}"
        path = next((keys[key] for key in PATH_KEYS if keys.get(key) and isinstance(keys[key], str)), None)
        if path is None:
            raise PlanError(f"{where}: names no recording; allowed is an object with audio_filepath")
        if "\0" in path:
            raise PlanError(f"{where}: {path!r}: allowed is a path without null characters")
        name = path.replace(os.sep, "/")
        if folder_name and not (is_url(name) or os.path.isabs(name)):
            name = f"{folder_name}/{name}"
        yield where, checked_recording(keys, join(folder, path), name, where)


def parse_object(text: str | bytes) -> Json:
    """Return an object of JSON that every reader of JSON can read again.

    Raises
    ------
    ValueError
        If it is none; the message is the reason.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("is not an object with audio_filepath")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("has a number beyond the range of 64-bit floats") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    return value


def checked_recording(
    keys: Mapping[str, Any], location: str, name: str, where: str, **place: Any
) -> BatchRecording:
    """Make the recording of a line.

    Raises
    ------
    PlanError
        If a value of the line is not allowed.
    """
    recording_id, language = keys.get("id"), keys.get("language")
    is_id = isinstance(recording_id, str | int) and not isinstance(recording_id, bool)
    if recording_id is not None and not is_id:
        raise PlanError(f"{where}: id {_shown(recording_id)}: allowed is a text or an integer")
    if language is not None and not isinstance(language, str):
        raise PlanError(f"{where}: language {_shown(language)}: allowed is a text")
    duration = next((key for key in DURATION_KEYS if keys.get(key) is not None), DURATION_KEYS[0])
    return BatchRecording(
        location=location,
        name=name,
        keys=keys,
        id="" if recording_id is None else str(recording_id),
        offset_s=_checked_seconds("offset", keys.get("offset"), where),
        duration_s=_checked_seconds(duration, keys.get(duration), where),
        language=language or None,
        **place,
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"has {name}, which is not JSON; allowed are finite numbers, and null")


def _json_rows(text: str, manifest: str) -> Iterator[tuple[int, Json]]:
    # Not splitlines: a text may hold other line separators, which JSON allows unescaped.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, parse_object(line)
        except ValueError as error:
            raise PlanError(f"{manifest}, line {number}: {error}") from error


def _csv_rows(text: str, manifest: str) -> Iterator[tuple[int, Json]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            values: Json = {key: value for key, value in row.items() if key is not None and value}
            for key in ("offset", *DURATION_KEYS):
                if key in values:
                    values[key] = _number_or_text(values[key])
            yield reader.line_num, values
    except csv.Error as error:
        raise PlanError(f"{manifest}, line {reader.line_num}: is not CSV: {error}") from error


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _checked_seconds(key: str, value: Any, where: str) -> float | None:
    if value is None:
        return None
    seconds = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an integer of over 308 digits
            seconds = float(value)
    if not 0 <= seconds <= MAX_TIME_S:
        raise PlanError(
            f"{where}: {key} {_shown(value)}: allowed is a number of seconds from 0 to {MAX_TIME_S:g}"
        )
    return seconds


def _shown(value: Any) -> str:
    """Return a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
