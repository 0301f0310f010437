"""How the events of a trace look: as a table, as the tokens of each window, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from unicodedata import combining, east_asian_width

from harken.cli.layout import format_time, format_timed_text
from harken.cli.trace import AttemptStarted, SegmentClosed, TokenEvent, TraceEvent, WindowDecoded, WindowEncoded
from harken.formats import as_json

EventFormatter = Callable[[TraceEvent], str]
"""Text of an event, with its line ends; empty if it does not appear."""

_TOKEN_HEADER = "   index     id  kind       text                  probability        ms\n"
_EVENT_NAMES: dict[type, str] = {
    WindowEncoded: "window",
    AttemptStarted: "attempt",
    TokenEvent: "token",
    SegmentClosed: "sentence",
    WindowDecoded: "decided",
}


def trace_table(event: TraceEvent) -> str:
    """Every token on a line of its own, in columns."""
    match event:
        case WindowEncoded():
            return f"window {event.window} at {format_time(event.start_s)}, prepared in {event.ms:.0f} ms\n{_TOKEN_HEADER}"
        case AttemptStarted():
            return f"attempt {event.attempt}: {event.strategy}\n"
        case TokenEvent():
            return _token_row(event)
        case SegmentClosed():
            return f"{'':17}{_segment_line(event)}\n"
        case WindowDecoded():
            return f"{_attempts_summary(event)}\n\n"


def trace_window_summary(event: TraceEvent) -> str:
    """The tokens of each window and what they say."""
    if not isinstance(event, WindowDecoded):
        return ""
    tokens = " ".join(map(str, event.tokens))
    return f"window {event.window} at {format_time(event.start_s)}\n{_attempts_summary(event)}\n{tokens}\n{event.text}\n\n"


def trace_event_json(event: TraceEvent) -> str:
    """One JSON object a line, of which ``event`` says what it is."""
    return json.dumps({"event": _EVENT_NAMES[type(event)]} | as_json(event), ensure_ascii=False) + "\n"


def _token_row(token: TokenEvent) -> str:
    index = str(token.index) if token.row is None else f"{token.row}:{token.index}"
    probability = "" if token.probability is None else f"{token.probability:.4f}"
    ms = "" if token.ms is None else f"{token.ms:.2f}"
    start = f"{index:>8} {token.token:>6}  {token.kind:<9}  {_pad_to_cells(_token_text(token), 20)}"
    return f"{start}  {probability:>11}  {ms:>8}".rstrip() + "\n"


def _token_text(token: TokenEvent) -> str:
    """Text in quotes, so that spaces show; bytes that wait for more as such; special tokens by name."""
    if token.bytes:
        return f"<{token.bytes}>"
    return json.dumps(token.text, ensure_ascii=False) if token.kind == "text" else token.text


def _pad_to_cells(text: str, width: int) -> str:
    cells = sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)
    return text + " " * (width - cells)


def _segment_line(event: SegmentClosed) -> str:
    row = "" if event.row is None else f"{event.row}: "
    if event.end_s is None:
        return f"{row}[{format_time(event.start_s)} --> ...] {event.text}"
    return row + format_timed_text(event.start_s, event.end_s, event.text)


def _attempts_summary(event: WindowDecoded) -> str:
    *rejected, accepted = event.attempts
    lines = [f"rejected: temperature {attempt.temperature:g}, {attempt.reason}" for attempt in rejected]
    lines.append(
        f"{'silence' if event.silent else 'kept'}: temperature {accepted.temperature:g}, "
        f"average log-probability {accepted.avg_logprob:.2f}, compression ratio {accepted.compression_ratio:.2f}, "
        f"no-speech probability {accepted.no_speech_prob:.2f}"
    )
    return "\n".join(lines)
