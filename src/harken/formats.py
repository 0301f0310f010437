"""The forms of a transcript on disk: txt, srt, vtt, tsv, json and lrc.

A `Writer` only makes text, piece by piece, so that segments can be written as they arrive and every piece
can go to a file, a screen or a socket::

    writer = Writer("srt")
    out(writer.header())
    for segment in segments:
        out(writer.segment(segment))
    out(writer.footer(transcript))

Whoever stops early still writes the footer, with the transcript of what is done: the result is complete.
A segment without text writes nothing, except in json.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from harken.errors import OptionError
from harken.results import Segment, Transcript, Word


@dataclass(frozen=True, slots=True)
class Format:
    """One form: what comes first, what each segment becomes (given its number from 1), what comes last."""

    header: str
    segment: Callable[[int, Segment], str]
    footer: Callable[[Transcript], str] = lambda _: ""
    writes_silence: bool = False


class Writer:
    """Makes the text of one transcript in one form.

    Parameters
    ----------
    name : str
        A key of `FORMATS`.

    Raises
    ------
    OptionError
        If there is no such form.
    """

    def __init__(self, name: str) -> None:
        if name not in FORMATS:
            raise OptionError("format", name, ", ".join(FORMATS))
        self._format = FORMATS[name]
        self._written = 0

    def header(self) -> str:
        """What comes before the first segment."""
        return self._format.header

    def segment(self, segment: Segment) -> str:
        """The next segment; empty if the form has nothing to say about it."""
        if not (segment.text.strip() or self._format.writes_silence):
            return ""
        self._written += 1
        return self._format.segment(self._written, segment)

    def footer(self, transcript: Transcript) -> str:
        """What comes after the last segment; json puts everything there that concerns the whole."""
        return self._format.footer(transcript)


def render(transcript: Transcript, name: str) -> Iterator[str]:
    """Give the text of a finished transcript in one form, piece by piece.

    Parameters
    ----------
    transcript : Transcript
        What to write.
    name : str
        A key of `FORMATS`.

    Raises
    ------
    OptionError
        If there is no such form.
    """
    writer = Writer(name)
    yield writer.header()
    yield from map(writer.segment, transcript.segments)
    yield writer.footer(transcript)


def clock(milliseconds: int, mark: str = ".") -> str:
    """Time as ``hh:mm:ss.mmm``; the hours take more than two digits where they need them."""
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{mark}{milliseconds:03}"


def _span_ms(segment: Segment) -> tuple[int, int]:
    return round(segment.start_s * 1000), round(segment.end_s * 1000)


def _cue_times(segment: Segment, mark: str) -> str:
    start, end = _span_ms(segment)
    return f"{clock(start, mark)} --> {clock(max(end, start + 1), mark)}"  # players drop a cue of no length


def _lines(text: str) -> str:
    """Text without the blank lines that would end a cue."""
    return "\n".join(line for line in map(str.strip, text.splitlines()) if line)


def _line(text: str) -> str:
    """Text on one line, without tabs."""
    return _lines(text).replace("\n", " ").replace("\t", " ")


def _txt(number: int, segment: Segment) -> str:
    return f"{_line(segment.text)}\n"


def _tsv(number: int, segment: Segment) -> str:
    start, end = _span_ms(segment)
    return f"{start}\t{end}\t{_line(segment.text)}\n"


def _srt(number: int, segment: Segment) -> str:
    # SubRip knows no escapes, so an arrow in the text is shortened (as openai-whisper utils.py does it)
    text = re.sub("--+>", "->", _lines(segment.text))
    return f"{number}\n{_cue_times(segment, ',')}\n{text}\n\n"


def _vtt(number: int, segment: Segment) -> str:
    text = _lines(segment.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"{_cue_times(segment, '.')}\n{text}\n\n"


def _lrc(number: int, segment: Segment) -> str:
    minutes, centiseconds = divmod(round(segment.start_s * 100), 6000)
    text = _line(segment.text)
    apart = " " if text.startswith("[") else ""  # or a player would take the text for another tag
    return f"[{minutes:02}:{centiseconds // 100:02}.{centiseconds % 100:02}]{apart}{text}\n"


# What readers of openai-whisper's json expect; every other key is the name of the field.
_KEYS: dict[type, dict[str, str]] = {
    Word: {"start_s": "start", "end_s": "end", "text": "word"},
    Segment: {"index": "id", "start_s": "start", "end_s": "end"},
    Transcript: {"duration_s": "duration"},
}


def as_json(value: Any) -> Any:
    """Turn results into what `json.dumps` takes, under the keys of the json form.

    The keys are the fields of `Transcript`, `Segment`, `Attempt` and `Word`, except that a segment has ``id``,
    ``start`` and ``end``, a word has ``word``, ``start`` and ``end``, and the transcript has ``duration`` and,
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


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _json_segment(number: int, segment: Segment) -> str:
    return f"{',' if number > 1 else ''}\n{_dumps(as_json(segment))}"


def _json_footer(transcript: Transcript) -> str:
    about = as_json(replace(transcript, segments=()))
    del about["segments"]
    return f"\n],\n{_dumps(about | {'text': transcript.text})[1:]}\n"


#: Every form by name, which is also the suffix of its files.
FORMATS = {
    "txt": Format("", _txt),
    "srt": Format("", _srt),
    "vtt": Format("WEBVTT\n\n", _vtt),
    "tsv": Format("start\tend\ttext\n", _tsv),
    "json": Format('{"segments": [', _json_segment, _json_footer, writes_silence=True),
    "lrc": Format("", _lrc),
}
