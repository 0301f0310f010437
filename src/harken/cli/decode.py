"""``harken decode``: shows the steps of the decoder, window by window or token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any
from unicodedata import combining, east_asian_width

import click

from harken.cli.inputs import recording_duration_s
from harken.cli.model_options import load_model, model_options
from harken.cli.options import Command, FilePath, dataclass_options, single_option
from harken.cli.terminal import format_time, format_timed_text, no_speech, write_stderr, write_stdout
from harken.decoding import Beam, DecodingResult, Greedy, Sample, Step, Strategy
from harken.errors import OptionError
from harken.formats import as_json, dump_json
from harken.keywords import CallbackKeywords
from harken.option_types import options_from
from harken.results import Attempt
from harken.text import IncrementalDetokenizer, Tokenizer, TokenKind
from harken.transcribe import TranscribeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEncoded:
    """The end of encoding a window; `ms` is the time of reading, log-mel, encoder and language detection."""

    window: int
    start_s: float
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """A token of the prompt, or a decoded one."""

    index: int  # position; the first token of the prompt is at 0
    # Index among samples drawn in parallel; None for the prompt, and if there is only one.
    row: int | None = None
    token: int
    kind: str  # one of `harken.text.TokenKind`
    text: str  # characters that the token completes; for a special token, its name
    bytes: str  # in hex, if the token completes no character
    # Both are None for the prompt. The time of the first token includes that of the prompt.
    probability: float | None = None
    ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """The start of decoding a window, or of another attempt at a higher temperature."""

    attempt: int
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentClosed:
    """A segment that a timestamp has ended; `end_s` is None if the window ended without a timestamp."""

    row: int | None
    start_s: float
    end_s: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowDecoded:
    """The result of a window, with all attempts; `silent` if it is skipped as silence."""

    window: int
    start_s: float
    tokens: tuple[int, ...]
    text: str
    silent: bool
    attempts: tuple[Attempt, ...]


TraceEvent = WindowEncoded | TokenEvent | AttemptStarted | SegmentClosed | WindowDecoded


@dataclass(slots=True)
class DecodingTracer:
    """The callbacks of a transcription, which emit trace events.

    The time that `emit` takes with an event is not counted in that of the next token.
    """

    tokenizer: Tokenizer
    options: TranscribeOptions
    emit: Callable[[TraceEvent], None]
    _lap_started_s: float = field(default_factory=lambda: perf_counter())
    _window_number: int = 0
    _window_start_s: float = 0.0
    _prompt_tokens: int = 0
    _attempt_number: int = 0
    _strategy: Strategy = field(default_factory=Greedy)
    _hypotheses: dict[int, _HypothesisText] = field(default_factory=dict)

    def callbacks(self) -> CallbackKeywords:
        """Return the callbacks by their names in `harken.Recognizer.transcribe`."""
        return {
            "on_window_start": self._on_window_start,
            "on_token": self._on_token,
            "on_window_end": self._on_window_end,
        }

    def _on_window_start(self, start_s: float, prompt: tuple[int, ...]) -> None:
        # The same window may be encoded again.
        self._window_number += self._window_number == 0 or start_s > self._window_start_s
        self._window_start_s, self._prompt_tokens, self._attempt_number = start_s, len(prompt), 0
        self.emit(WindowEncoded(window=self._window_number, start_s=start_s, ms=self._lap_ms()))
        hypothesis = self._new_hypothesis()
        for index, token in enumerate(prompt):
            self.emit(hypothesis.push(token, index))
        self._lap_started_s = perf_counter()

    def _on_token(self, step: Step) -> None:
        ms = self._lap_ms()
        strategy = self._strategy = step.strategy
        if step.row == step.index == 0:
            self._attempt_number += 1
            self._hypotheses.clear()
            self.emit(AttemptStarted(attempt=self._attempt_number, strategy=_describe_strategy(strategy)))
        if isinstance(strategy, Beam):
            self._hypotheses.clear()  # another hypothesis may lead at every step
        hypothesis = self._hypotheses.setdefault(step.row, self._new_hypothesis())
        side_by_side = isinstance(strategy, Sample) and strategy.best_of > 1
        sample_index = step.row if side_by_side else None
        event = hypothesis.push(step.token, self._prompt_tokens + step.index)
        self.emit(replace(event, row=sample_index, probability=math.exp(step.logprob), ms=ms))
        if not isinstance(strategy, Beam):
            self._emit_closed_segment(hypothesis, step.token, sample_index)
        self._lap_started_s = perf_counter()

    def _on_window_end(self, start_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]) -> None:
        tokens = decoded.hypothesis.tokens
        if isinstance(self._strategy, Beam):
            hypothesis = self._new_hypothesis()
            for token in (*tokens, self.tokenizer.eot):
                hypothesis.push(token, 0)
                self._emit_closed_segment(hypothesis, token, None)
        self.emit(
            WindowDecoded(
                window=self._window_number,
                start_s=self._window_start_s,
                tokens=tokens,
                text=self.tokenizer.decode_with_timestamps(tokens),
                silent=self.options.is_silence(decoded),
                attempts=attempts,
            )
        )
        self._lap_started_s = perf_counter()

    def _emit_closed_segment(self, hypothesis: _HypothesisText, token: int, sample_index: int | None) -> None:
        if closed := hypothesis.closed_segment(token, sample_index):
            self.emit(closed)

    def _new_hypothesis(self) -> _HypothesisText:
        return _HypothesisText(self.tokenizer, self._window_start_s)

    def _lap_ms(self) -> float:
        return round((perf_counter() - self._lap_started_s) * 1000, 3)


class _HypothesisText:
    """The text of a sequence of tokens, and its segments."""

    def __init__(self, tokenizer: Tokenizer, window_start_s: float) -> None:
        self._tokenizer, self._window_start_s = tokenizer, window_start_s
        self._text_stream = IncrementalDetokenizer(tokenizer)
        self._segment_start_s, self._text = window_start_s, ""

    def push(self, token: int, index: int) -> TokenEvent:
        """Add a token and return its event, as that of one of the prompt."""
        kind = self._tokenizer.kind(token)
        text, incomplete = self._tokenizer.describe_token(token), b""
        if kind is TokenKind.TEXT:
            text = self._text_stream.feed(token)
            self._text += text
            incomplete = b"" if text else self._tokenizer.decode_bytes((token,))
        return TokenEvent(index=index, token=token, kind=kind.value, text=text, bytes=incomplete.hex(" "))

    def closed_segment(self, token: int, row: int | None) -> SegmentClosed | None:
        """Return the segment that the token just added ends, if any."""
        kind = self._tokenizer.kind(token)
        if kind not in (TokenKind.TIMESTAMP, TokenKind.EOT):
            return None
        end_s = (
            self._window_start_s + self._tokenizer.timestamp_s(token) if kind is TokenKind.TIMESTAMP else None
        )
        closed = SegmentClosed(row=row, start_s=self._segment_start_s, end_s=end_s, text=self._text.strip())
        self._segment_start_s, self._text = self._segment_start_s if end_s is None else end_s, ""
        return closed if closed.text else None


def _describe_strategy(strategy: Strategy) -> str:
    match strategy:
        case Greedy():
            return "greedy"
        case Sample(temperature=temperature, best_of=best_of):
            return f"sampling at temperature {temperature:g}, best of {best_of}"
        case Beam(width=width):
            return f"beam search of width {width}"


_TOKEN_HEADER = "   index     id  kind       text                  probability        ms\n"
_EVENT_NAMES: dict[type, str] = {
    WindowEncoded: "window",
    AttemptStarted: "attempt",
    TokenEvent: "token",
    SegmentClosed: "sentence",
    WindowDecoded: "decided",
}


def trace_table(event: TraceEvent) -> str:
    """Format an event for the table of --trace, in which every token is a row."""
    match event:
        case WindowEncoded():
            start = f"window {event.window} at {format_time(event.start_s)}"
            return f"{start}, prepared in {event.ms:.0f} ms\n{_TOKEN_HEADER}"
        case AttemptStarted():
            return f"attempt {event.attempt}: {event.strategy}\n"
        case TokenEvent():
            return _token_row(event)
        case SegmentClosed():
            return f"{'':17}{_segment_line(event)}\n"
        case WindowDecoded():
            return f"{_attempts_summary(event)}\n\n"


def trace_window_summary(event: TraceEvent) -> str:
    """Format the tokens and the text of a window; other events give an empty text."""
    if not isinstance(event, WindowDecoded):
        return ""
    tokens = " ".join(map(str, event.tokens))
    start = f"window {event.window} at {format_time(event.start_s)}"
    return f"{start}\n{_attempts_summary(event)}\n{tokens}\n{event.text}\n\n"


def trace_event_json(event: TraceEvent) -> str:
    """Return an event as a line of JSON, with its name as ``event``."""
    return dump_json({"event": _EVENT_NAMES[type(event)]} | as_json(event)) + "\n"


def _token_row(token: TokenEvent) -> str:
    index = str(token.index) if token.row is None else f"{token.row}:{token.index}"
    probability = "" if token.probability is None else f"{token.probability:.4f}"
    ms = "" if token.ms is None else f"{token.ms:.2f}"
    start = f"{index:>8} {token.token:>6}  {token.kind:<9}  {_pad_to_cells(_token_text(token), 20)}"
    return f"{start}  {probability:>11}  {ms:>8}".rstrip() + "\n"


def _token_text(token: TokenEvent) -> str:
    """Return text in quotes, which show spaces; incomplete characters as bytes; special tokens by name."""
    if token.bytes:
        return f"<{token.bytes}>"
    return dump_json(token.text) if token.kind == "text" else token.text


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


@click.command(cls=Command)
@click.argument("file", type=FilePath())
@single_option(
    "--trace", section="Output", is_flag=True, help="Show every token: id, kind, text, probability and time."
)
@single_option(
    "--json", "as_json", section="Output", is_flag=True, help="Show the same as JSON, one object per line."
)
@model_options
@dataclass_options(TranscribeOptions, exclude=("channels", "replace"))
def command(file: str, trace: bool, as_json: bool, **params: Any) -> None:
    """Show how a recording is decoded.

    FILE is a recording of any kind, or - for standard input. For each window of 30 s the output shows its tokens,
    their text, and the rejected attempts. With --trace it shows every step as it happens: the prompt, each token
    with its kind (sot, language, task, control, timestamp, text, eot), and the sentences as they end.

    Times within a window are counted from its start. A window of several regions of speech leaves out the silence
    between them, so its times do not count that silence; --no-vad leaves nothing out.
    """
    options = options_from(TranscribeOptions, params)
    if options.effective_batch_size > 1:
        raise OptionError("batch_size", options.batch_size, "1, as windows are shown one after another")
    recording_duration_s(file)
    recognizer = load_model(params)
    format_event = trace_event_json if as_json else trace_table if trace else trace_window_summary

    def show(event: TraceEvent) -> None:
        if trace or isinstance(event, WindowDecoded):
            write_stdout(format_event(event))

    transcription = recognizer.transcribe(
        file, replace(options, batch_size=1), **DecodingTracer(recognizer.tokenizer, options, show).callbacks()
    )
    transcript = transcription.result()
    if transcript.speech == () and transcription.peak:
        write_stderr(f"harken: {file}: {no_speech(transcript.duration_s, transcription.peak)}")
