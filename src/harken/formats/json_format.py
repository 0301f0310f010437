"""The json format: all fields of a transcript, written and read back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache, partial
from types import NoneType
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from harken.errors import OptionError
from harken.formats.base import TranscriptFormat, escape_json
from harken.results import MAX_TIME_S, Segment, SpeakerTurn, Transcript, UnwrittenSpeech, Word

T = TypeVar("T")
Parser = Callable[[Any, str], T]
"""Converts a JSON value, given with its path in the document, and raises an `OptionError` if it cannot."""

_INTEGER_BITS = 64

# Keys that readers of openai-whisper's json expect; every other key is the name of the field.
_JSON_KEYS: dict[type, dict[str, str]] = {
    Word: {"start_s": "start", "end_s": "end", "text": "word"},
    Segment: {"index": "id", "start_s": "start", "end_s": "end"},
    UnwrittenSpeech: {"start_s": "start", "end_s": "end"},
    SpeakerTurn: {"start_s": "start", "end_s": "end"},
    Transcript: {"duration_s": "duration"},
}


def as_json(value: Any) -> Any:
    """Convert results, or collections of them, to values for `json.dumps`, under the keys of the json format.

    The keys are the fields of the results (`harken.results`), except that a segment has ``id``, ``start`` and ``end``,
    a word has ``word``, ``start`` and ``end``, speech without words has ``start`` and ``end``, and the transcript has
    ``duration`` and, when written, ``text``, as in the json of openai-whisper. All times are seconds from the start.
    The main speaker of a segment or word is its ``speaker``, with ``speakers`` beside it where several speak at once;
    without diarization there are no such keys, nor ``speakers`` and ``turns`` of the transcript, and without word times
    no ``words``. A number that is infinite or nan, which json does not support, becomes None.
    """
    if is_dataclass(value):
        keys = _JSON_KEYS.get(type(value), {})
        entries = {keys.get(f.name, f.name): as_json(getattr(value, f.name)) for f in fields(value)}
        return _SHAPES.get(type(value), dict)(entries)
    if isinstance(value, (tuple, list)):
        return [as_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def _shape_speakers(entries: dict[str, Any]) -> dict[str, Any]:
    """Put the main speaker before the list of speakers, and leave out what says no more."""
    speakers = entries.pop("speakers")
    main = {"speaker": speakers[0]} if speakers else {}
    return entries | main | ({"speakers": speakers} if len(speakers) > 1 else {})


def _shape_segment(entries: dict[str, Any]) -> dict[str, Any]:
    """Leave out the words of a segment without word times: openai-whisper's writers show what words it has."""
    if not entries["words"]:
        del entries["words"]
    return _shape_speakers(entries)


def _shape_turns(entries: dict[str, Any]) -> dict[str, Any]:
    """Leave out the speakers and turns of a transcript without diarization."""
    unknown: dict[str, Any] = {"speakers": None, "turns": []}
    if entries["speakers"] is None:
        return {key: value for key, value in entries.items() if key not in unknown or value != unknown[key]}
    return entries


_SHAPES: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Word: _shape_speakers,
    Segment: _shape_segment,
    Transcript: _shape_turns,
}


def dump_json(value: Any, indent: int | None = None) -> str:
    """Return results as JSON (see `as_json`), in which all control characters are escaped."""
    return escape_json(json.dumps(as_json(value), ensure_ascii=False, allow_nan=False, indent=indent))


def from_json(document: Any) -> Transcript:
    """Convert the json format to a transcript.

    Parameters
    ----------
    document : dict, str or bytes
        The text, or what `json.loads` makes of it. Unknown keys are ignored; a number that was infinite becomes nan.

    Returns
    -------
    Transcript

    Raises
    ------
    OptionError
        If the text is not JSON or has a key twice, or if a key is missing or its value is not allowed; the message
        names its path.
    """
    document = _parse(document) if isinstance(document, (str, bytes)) else document
    transcript: Transcript = _parse_object(Transcript, document, "transcript")
    return transcript


def segment_from_json(value: Any) -> Segment:
    """Convert one segment of the json format, as `from_json` does."""
    segment: Segment = _parse_object(Segment, value, "segment")
    return segment


class JsonFormat(TranscriptFormat):
    """The format json; the fields of the transcript itself follow the segments."""

    def __init__(self) -> None:
        self._n_segments = 0

    def header(self) -> str:
        """Return the beginning of the list of segments."""
        return '{"segments": ['

    def segment(self, segment: Segment) -> str:
        """Return one segment on a line of its own."""
        self._n_segments += 1
        return f"{',' if self._n_segments > 1 else ''}\n{dump_json(segment)}"

    def footer(self, transcript: Transcript) -> str:
        """Return all fields but the segments."""
        metadata = as_json(replace(transcript, segments=()))
        del metadata["segments"]
        return f"\n],\n{dump_json(metadata | {'text': transcript.text})[1:]}\n"


def _parse(text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except RecursionError:
        raise OptionError("transcript", text[:100], "JSON that is not nested as deeply") from None
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError("transcript", text[:100], f"JSON; this is none: {error}") from error


def _without_duplicates(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(entries)
    if len(unique) < len(entries):
        keys = [key for key, _ in entries]
        duplicate = next(key for key in unique if keys.count(key) > 1)
        raise OptionError("transcript", duplicate, "an object with every key once")
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise OptionError("transcript", name, "JSON, which has no such number")


def _parse_object(kind: Any, value: Any, path: str) -> Any:
    """Convert an object to a dataclass of `harken.results`: each key by the type of its field."""
    if not isinstance(value, dict):
        raise OptionError(path, value, kind.__name__)
    values: dict[str, Any] = {}
    for name, key, parse, required in _keys_of(kind):
        if key in value:
            values[name] = parse(value[key], f"{path}.{key}")
        elif required:
            raise OptionError(f"{path}.{key}", None, "a value, which is required")
    if "end_s" in values:
        _check_order(values["start_s"], values["end_s"], f"{path}.end")
    if kind in (Word, Segment) and not values.get("speakers") and "speaker" in value:
        main = _or_none(_text)(value["speaker"], f"{path}.speaker")
        values["speakers"] = () if main is None else (main,)
    return kind(**values)


@cache
def _keys_of(kind: Any) -> list[tuple[str, str, Parser[Any], bool]]:
    """Return of each field its name, its key, the parser of its value, and whether it has no default."""
    hints, keys = get_type_hints(kind), _JSON_KEYS.get(kind, {})
    return [
        (
            field.name,
            keys.get(field.name, field.name),
            _time if field.name.endswith("_s") else _parser_of(hints[field.name]),
            field.default is MISSING,
        )
        for field in fields(kind)
    ]


def _parser_of(hint: Any) -> Parser[Any]:
    """Return the parser of values of a type: a dataclass, a tuple, one of them or None, or a scalar."""
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(_parse_object, hint)
    arguments = get_args(hint)
    if NoneType in arguments:
        return _or_none(_parser_of(arguments[0]))
    if Ellipsis in arguments:
        return _tuple_of(_parser_of(arguments[0]))
    return _time_span if arguments else _SCALARS[hint]


def _tuple_of(parse: Parser[T]) -> Parser[tuple[T, ...]]:
    def parse_items(value: Any, path: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise OptionError(path, value, "a list")
        return tuple(parse(item, f"{path}[{i}]") for i, item in enumerate(value))

    return parse_items


def _or_none(parse: Parser[T]) -> Parser[T | None]:
    return lambda value, path: None if value is None else parse(value, path)


def _time_span(value: Any, path: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise OptionError(path, value, "a list of two times")
    start_s, end_s = _time(value[0], f"{path}[0]"), _time(value[1], f"{path}[1]")
    _check_order(start_s, end_s, f"{path}[1]")
    return start_s, end_s


def _time(value: Any, path: str) -> float:
    seconds = _number(value, path)
    if not 0 <= seconds <= MAX_TIME_S:
        raise OptionError(path, value, f"a time from 0 s to {MAX_TIME_S:g} s")
    return seconds


def _check_order(start_s: float, end_s: float, path: str) -> None:
    if end_s < start_s:
        raise OptionError(path, end_s, f"a time from its start, {start_s!r} s, on")


def _number(value: Any, path: str) -> float:
    if value is None:
        return math.nan
    if type(value) not in (int, float):
        raise OptionError(path, value, "float")
    try:
        return float(value)
    except OverflowError:
        raise OptionError(path, value, "float") from None


def _integer(value: Any, path: str) -> int:
    if type(value) is not int or value.bit_length() >= _INTEGER_BITS:
        raise OptionError(path, value, f"int of {_INTEGER_BITS} bits")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise OptionError(path, value, "str")
    return value


_SCALARS: dict[Any, Parser[Any]] = {float: _number, int: _integer, str: _text}
