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
_JSON_KEYS: dict[type, dict[str, str]] = {
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
        keys = _JSON_KEYS.get(type(value), {})
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
    transcript: Transcript = _parse(Transcript, document, "transcript")
    return transcript


class JsonFormat:
    """`harken.formats.base.Form` of json; what concerns the whole stands behind the segments."""

    def __init__(self) -> None:
        self._n_segments = 0

    def header(self) -> str:
        """The begin of the list of segments."""
        return '{"segments": ['

    def segment(self, segment: Segment) -> str:
        """One segment on a line of its own."""
        self._n_segments += 1
        return f"{',' if self._n_segments > 1 else ''}\n{_dumps(as_json(segment))}"

    def footer(self, transcript: Transcript) -> str:
        """Everything else."""
        metadata = as_json(replace(transcript, segments=()))
        del metadata["segments"]
        return f"\n],\n{_dumps(metadata | {'text': transcript.text})[1:]}\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _parse(expected: Any, value: Any, key_path: str) -> Any:
    """Read a value of the given type, which stands at `place`."""
    alternatives = get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)
    if value is None and NoneType in alternatives:
        return None
    expected = alternatives[0]
    if is_dataclass(expected) and isinstance(value, dict):
        return _parse_dataclass(expected, value, key_path)
    if get_origin(expected) is tuple and isinstance(value, list):
        kinds = get_args(expected)
        kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
        if len(kinds) == len(value):
            items = enumerate(zip(kinds, value, strict=True))
            return tuple(_parse(item, part, f"{key_path}[{i}]") for i, (item, part) in items)
    if expected is float and (value is None or type(value) in (int, float)):
        return math.nan if value is None else float(value)
    if type(value) is expected:
        return value
    raise OptionError(key_path, value, getattr(expected, "__name__", str(expected)))


def _parse_dataclass(cls: Any, value: dict[str, Any], key_path: str) -> Any:
    keys, hints = _JSON_KEYS.get(cls, {}), get_type_hints(cls)
    values = {}
    for field in fields(cls):
        key = keys.get(field.name, field.name)
        if key in value:
            values[field.name] = _parse(hints[field.name], value[key], f"{key_path}.{key}")
        elif field.default is MISSING:
            raise OptionError(f"{key_path}.{key}", None, "what the json form holds there")
    return cls(**values)
