"""How the events of a trace look: as a table, as the tokens of each window, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from unicodedata import combining, east_asian_width

from harken.cli.layout import spoken, time
from harken.cli.trace import AttemptBegun, Event, SentenceClosed, Token, WindowDecided, WindowOpened
from harken.formats import as_json

View = Callable[[Event], str]
"""Text of an event, with its line ends; empty if it does not appear."""

_HEAD = "   index     id  kind       text                  probability        ms\n"
_NAMES: dict[type, str] = {
    WindowOpened: "window",
    AttemptBegun: "attempt",
    Token: "token",
    SentenceClosed: "sentence",
    WindowDecided: "decided",
}


def table(event: Event) -> str:
    """Every token on a line of its own, in columns."""
    match event:
        case WindowOpened():
            return f"window {event.window} at {time(event.start_s)}, prepared in {event.ms:.0f} ms\n{_HEAD}"
        case AttemptBegun():
            return f"attempt {event.attempt}: {event.strategy}\n"
        case Token():
            return _columns(event)
        case SentenceClosed():
            return f"{'':17}{_sentence(event)}\n"
        case WindowDecided():
            return f"{_verdict(event)}\n\n"


def compact(event: Event) -> str:
    """The tokens of each window and what they say."""
    if not isinstance(event, WindowDecided):
        return ""
    tokens = " ".join(map(str, event.tokens))
    return f"window {event.window} at {time(event.start_s)}\n{_verdict(event)}\n{tokens}\n{event.text}\n\n"


def json_lines(event: Event) -> str:
    """One JSON object a line, of which ``event`` says what it is."""
    return json.dumps({"event": _NAMES[type(event)]} | as_json(event), ensure_ascii=False) + "\n"


def _columns(token: Token) -> str:
    index = str(token.index) if token.row is None else f"{token.row}:{token.index}"
    probability = "" if token.probability is None else f"{token.probability:.4f}"
    ms = "" if token.ms is None else f"{token.ms:.2f}"
    start = f"{index:>8} {token.token:>6}  {token.kind:<9}  {_padded(_legible(token), 20)}"
    return f"{start}  {probability:>11}  {ms:>8}".rstrip() + "\n"


def _legible(token: Token) -> str:
    """Text in quotes, so that spaces show; bytes that wait for more as such; special tokens by name."""
    if token.bytes:
        return f"<{token.bytes}>"
    return json.dumps(token.text, ensure_ascii=False) if token.kind == "text" else token.text


def _padded(text: str, width: int) -> str:
    cells = sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)
    return text + " " * (width - cells)


def _sentence(event: SentenceClosed) -> str:
    row = "" if event.row is None else f"{event.row}: "
    if event.end_s is None:
        return f"{row}[{time(event.start_s)} --> ...] {event.text}"
    return row + spoken(event.start_s, event.end_s, event.text)


def _verdict(event: WindowDecided) -> str:
    *rejected, kept = event.attempts
    lines = [f"rejected: temperature {attempt.temperature:g}, {attempt.reason}" for attempt in rejected]
    lines.append(
        f"{'silence' if event.silent else 'kept'}: temperature {kept.temperature:g}, "
        f"average log-probability {kept.avg_logprob:.2f}, compression ratio {kept.compression_ratio:.2f}, "
        f"no-speech probability {kept.no_speech_prob:.2f}"
    )
    return "\n".join(lines)
