"""The json format: all fields of a transcript, written and read back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NoReturn, TypeVar

from harken.errors import OptionError
from harken.formats.base import TranscriptFormat
from harken.formats.characters import escape_json
from harken.results import (
    MAX_TIME_S,
    Attempt,
    DroppedSegment,
    Segment,
    Speaker,
    SpeakerTurn,
    Transcript,
    UnwrittenSpeech,
    Word,
)

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
    without diarization there are no such keys, nor ``speakers`` and ``turns`` of the transcript. A number that is
    infinite or nan, which json does not support, becomes None.
    """
    if is_dataclass(value):
        keys = _JSON_KEYS.get(type(value), {})
        entries = {keys.get(f.name, f.name): as_json(getattr(value, f.name)) for f in fields(value)}
        return _SPEAKER_SHAPES.get(type(value), dict)(entries)
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


def _shape_turns(entries: dict[str, Any]) -> dict[str, Any]:
    """Leave out the speakers and turns of a transcript without diarization."""
    unknown: dict[str, Any] = {"speakers": None, "turns": []}
    if entries["speakers"] is None:
        return {key: value for key, value in entries.items() if key not in unknown or value != unknown[key]}
    return entries


_SPEAKER_SHAPES: dict[type, Callable[[dict[str, Any]], dict[str, Any]]] = {
    Word: _shape_speakers,
    Segment: _shape_speakers,
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
    return _transcript(_parse(document) if isinstance(document, (str, bytes)) else document, "transcript")


def segment_from_json(value: Any) -> Segment:
    """Convert one segment of the json format, as `from_json` does."""
    return _segment(value, "segment")


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


@dataclass(frozen=True, slots=True)
class _JsonObject:
    """A JSON object and its path in the document."""

    entries: dict[str, Any]
    path: str

    def required(self, key: str, parse: Parser[T]) -> T:
        """Parse the value of a key."""
        if key not in self.entries:
            raise OptionError(f"{self.path}.{key}", None, "a value, which is required")
        return parse(self.entries[key], f"{self.path}.{key}")

    def optional(self, key: str, parse: Parser[T], default: T) -> T:
        """Parse the value of a key, or return the default if there is no such key."""
        return self.required(key, parse) if key in self.entries else default


def _transcript(value: Any, path: str) -> Transcript:
    entry = _object(value, path, "Transcript")
    return Transcript(
        segments=entry.required("segments", _tuple_of(_segment)),
        language=entry.required("language", _text),
        language_probability=entry.optional("language_probability", _or_none(_number), None),
        duration_s=entry.required("duration", _time),
        model=entry.required("model", _text),
        task=entry.optional("task", _text, "transcribe"),
        dropped=entry.optional("dropped", _tuple_of(_dropped_segment), ()),
        speech=entry.optional("speech", _or_none(_tuple_of(_time_span)), None),
        unwritten=entry.optional("unwritten", _tuple_of(_unwritten_speech), ()),
        speakers=entry.optional("speakers", _or_none(_tuple_of(_speaker)), None),
        turns=entry.optional("turns", _tuple_of(_turn), ()),
    )


def _segment(value: Any, path: str) -> Segment:
    entry = _object(value, path, "Segment")
    start_s = entry.required("start", _time)
    return Segment(
        index=entry.required("id", _integer),
        start_s=start_s,
        end_s=entry.required("end", _time_from(start_s)),
        text=entry.required("text", _text),
        tokens=entry.required("tokens", _tuple_of(_integer)),
        temperature=entry.required("temperature", _number),
        avg_logprob=entry.required("avg_logprob", _number),
        compression_ratio=entry.required("compression_ratio", _number),
        no_speech_prob=entry.required("no_speech_prob", _number),
        seek_s=entry.required("seek_s", _time),
        attempts=entry.optional("attempts", _tuple_of(_attempt), ()),
        words=entry.optional("words", _tuple_of(_word), ()),
        language=entry.optional("language", _or_none(_text), None),
        hallucination_score=entry.optional("hallucination_score", _number, 0.0),
        speakers=_speakers(entry),
    )


def _attempt(value: Any, path: str) -> Attempt:
    entry = _object(value, path, "Attempt")
    return Attempt(
        temperature=entry.required("temperature", _number),
        avg_logprob=entry.required("avg_logprob", _number),
        compression_ratio=entry.required("compression_ratio", _number),
        no_speech_prob=entry.required("no_speech_prob", _number),
        reason=entry.optional("reason", _or_none(_text), None),
    )


def _word(value: Any, path: str) -> Word:
    entry = _object(value, path, "Word")
    start_s = entry.required("start", _time)
    return Word(
        start_s=start_s,
        end_s=entry.required("end", _time_from(start_s)),
        text=entry.required("word", _text),
        probability=entry.required("probability", _number),
        speakers=_speakers(entry),
    )


def _dropped_segment(value: Any, path: str) -> DroppedSegment:
    entry = _object(value, path, "DroppedSegment")
    return DroppedSegment(
        segment=entry.required("segment", _segment),
        reason=entry.required("reason", _text),
    )


def _unwritten_speech(value: Any, path: str) -> UnwrittenSpeech:
    entry = _object(value, path, "UnwrittenSpeech")
    start_s = entry.required("start", _time)
    return UnwrittenSpeech(
        start_s=start_s,
        end_s=entry.required("end", _time_from(start_s)),
        reason=entry.required("reason", _text),
    )


def _speakers(entry: _JsonObject) -> tuple[str, ...]:
    """Return the names of who said a segment or word; the list has all of them."""
    main = entry.optional("speaker", _or_none(_text), None)
    return entry.optional("speakers", _tuple_of(_text), ()) or (() if main is None else (main,))


def _speaker(value: Any, path: str) -> Speaker:
    entry = _object(value, path, "Speaker")
    return Speaker(name=entry.required("name", _text), seconds=entry.required("seconds", _number))


def _turn(value: Any, path: str) -> SpeakerTurn:
    entry = _object(value, path, "SpeakerTurn")
    start_s = entry.required("start", _time)
    return SpeakerTurn(
        start_s=start_s,
        end_s=entry.required("end", _time_from(start_s)),
        speaker=entry.required("speaker", _text),
    )


def _object(value: Any, path: str, kind: str) -> _JsonObject:
    if not isinstance(value, dict):
        raise OptionError(path, value, kind)
    return _JsonObject(value, path)


def _tuple_of(parse: Parser[T]) -> Parser[tuple[T, ...]]:
    def parse_items(value: Any, path: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise OptionError(path, value, "tuple")
        return tuple(parse(item, f"{path}[{i}]") for i, item in enumerate(value))

    return parse_items


def _or_none(parse: Parser[T]) -> Parser[T | None]:
    return lambda value, path: None if value is None else parse(value, path)


def _time_span(value: Any, path: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise OptionError(path, value, "tuple")
    start_s = _time(value[0], f"{path}[0]")
    return start_s, _time_from(start_s)(value[1], f"{path}[1]")


def _time(value: Any, path: str) -> float:
    seconds = _number(value, path)
    if not 0 <= seconds <= MAX_TIME_S:
        raise OptionError(path, value, f"a time from 0 s to {MAX_TIME_S:g} s")
    return seconds


def _time_from(start_s: float) -> Parser[float]:
    def parse_end(value: Any, path: str) -> float:
        end_s = _time(value, path)
        if end_s < start_s:
            raise OptionError(path, end_s, f"a time from its start, {start_s!r} s, on")
        return end_s

    return parse_end


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
