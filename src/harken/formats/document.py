"""The json form: everything that is known, written and read back."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from harken.errors import OptionError
from harken.results import Segment, Transcript, Word

# What readers of openai-whisper's json expect; every other key is the name of the field.
_KEYS: dict[type, dict[str, str]] = {
    Word: {"start_s": "start", "end_s": "end", "text": "word"},
    Segment: {"index": "id", "start_s": "start", "end_s": "end"},
    Transcript: {"duration_s": "duration"},
}


def as_json(value: Any) -> Any:
    """Turn results into what `json.dumps` takes, under the keys of the json form.

    The keys are the fields of `Transcript`, `Segment`, `Attempt`, `Dropped` and `Word`, except that a segment has
    ``id``, ``start`` and ``end``, a word has ``word``, ``start`` and ``end``, and the transcript has ``duration`` and,
    when written, ``text``, as in the json of openai-whisper. All times are seconds from the start. A number
    that json cannot hold (infinite or not a number) becomes None.
    """
    if is_dataclass(value):
        keys = _KEYS.get(type(value), {})
        return {keys.get(f.name, f.name): as_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def from_json(document: Any) -> Transcript:
    """Read a transcript out of what `json.loads` makes of the json form.

    Parameters
    ----------
    document : dict
        Keys that are not known are passed over; a number that was infinite comes back as nan.

    Returns
    -------
    Transcript

    Raises
    ------
    OptionError
        If something is missing or of another kind; the message names its place.
    """
    transcript: Transcript = _read(Transcript, document, "transcript")
    return transcript


class Document:
    """`harken.formats.form.Form` of json; what concerns the whole stands behind the segments."""

    def __init__(self) -> None:
        self._written = 0

    def header(self) -> str:
        """The begin of the list of segments."""
        return '{"segments": ['

    def segment(self, segment: Segment) -> str:
        """One segment on a line of its own."""
        self._written += 1
        return f"{',' if self._written > 1 else ''}\n{_dumps(as_json(segment))}"

    def footer(self, transcript: Transcript) -> str:
        """Everything else."""
        about = as_json(replace(transcript, segments=()))
        del about["segments"]
        return f"\n],\n{_dumps(about | {'text': transcript.text})[1:]}\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _read(kind: Any, value: Any, place: str) -> Any:
    """Read a value of the given type, which stands at `place`."""
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and NoneType in options:
        return None
    kind = options[0]
    if is_dataclass(kind) and isinstance(value, dict):
        return _read_fields(kind, value, place)
    if get_origin(kind) is tuple and isinstance(value, list):
        kinds = get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
        if len(kinds) == len(value):
            items = enumerate(zip(kinds, value, strict=True))
            return tuple(_read(item, part, f"{place}[{i}]") for i, (item, part) in items)
    if kind is float and (value is None or type(value) in (int, float)):
        return math.nan if value is None else float(value)
    if type(value) is kind:
        return value
    raise OptionError(place, value, getattr(kind, "__name__", str(kind)))


def _read_fields(kind: Any, value: dict[str, Any], place: str) -> Any:
    keys, hints = _KEYS.get(kind, {}), get_type_hints(kind)
    read = {}
    for field in fields(kind):
        key = keys.get(field.name, field.name)
        if key in value:
            read[field.name] = _read(hints[field.name], value[key], f"{place}.{key}")
        elif field.default is MISSING:
            raise OptionError(f"{place}.{key}", None, "what the json form holds there")
    return kind(**read)
