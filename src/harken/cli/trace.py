"""Decoding as a series of events, each told as it happens: the hooks of a transcription are the source."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from harken.decoding import Beam, DecodingResult, Greedy, Sample, Step, Strategy
from harken.results import Attempt
from harken.text import IncrementalDetokenizer, Tokenizer, TokenKind
from harken.transcribe import TranscribeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEncoded:
    """A window has been encoded. `ms` is what reading, log-mel, encoder and language detection took."""

    window: int
    start_s: float
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """A token of the prompt, or one that was chosen.

    Parameters
    ----------
    index : int
        Position, the prompt's first token counted as 0.
    row : int or None
        Which of several samples drawn side by side; None for the prompt and where there is one.
    token : int
    kind : str
        One of `harken.text.TokenKind`.
    text : str
        The characters that it completes; of a special token, its name.
    bytes : str
        In hex, where it completes no character.
    probability, ms : float or None
        None for the prompt. The first token's time is also that of reading the prompt.
    """

    index: int
    row: int | None
    token: int
    kind: str
    text: str
    bytes: str
    probability: float | None
    ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """Decoding begins, or begins again at a higher temperature."""

    attempt: int
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentClosed:
    """A timestamp has ended a stretch of text; `end_s` is None if the window ended without one."""

    row: int | None
    start_s: float
    end_s: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowDecoded:
    """What was kept of a window, and what was tried before; `silent` if it is passed over as silence."""

    window: int
    start_s: float
    tokens: tuple[int, ...]
    text: str
    silent: bool
    attempts: tuple[Attempt, ...]


TraceEvent = WindowEncoded | TokenEvent | AttemptStarted | SegmentClosed | WindowDecoded


@dataclass(slots=True)
class DecodingTracer:
    """Turns hooks into events.

    Parameters
    ----------
    tokenizer : Tokenizer
    options : TranscribeOptions
    emit : callable
        Called with every event; what it takes is not counted as the next token's time.
    """

    tokenizer: Tokenizer
    options: TranscribeOptions
    emit: Callable[[TraceEvent], None]
    _lap_started_s: float = field(default_factory=lambda: perf_counter())
    _window_number: int = 0
    _window_start_s: float = 0.0
    _prompt_tokens: int = 0
    _attempt_number: int = 0
    _hypotheses: dict[int, _HypothesisText] = field(default_factory=dict)

    def callbacks(self) -> dict[str, Callable[..., None]]:
        """Hooks by name, for `harken.Recognizer.transcribe`."""
        return {
            "on_window_start": self._on_window_start,
            "on_token": self._on_token,
            "on_window_end": self._on_window_end,
        }

    def _on_window_start(self, start_s: float, prompt: tuple[int, ...]) -> None:
        self._window_number += (
            self._window_number == 0 or start_s > self._window_start_s
        )  # a window may be encoded anew
        self._window_start_s, self._prompt_tokens, self._attempt_number = start_s, len(prompt), 0
        self.emit(WindowEncoded(window=self._window_number, start_s=start_s, ms=self._lap_ms()))
        hypothesis = self._new_hypothesis()
        for index, token in enumerate(prompt):
            self.emit(hypothesis.push(token, index=index))
        self._lap_started_s = perf_counter()

    def _on_token(self, step: Step) -> None:
        ms = self._lap_ms()
        if step.row == step.index == 0:
            self._start_attempt()
        strategy = self._strategy
        if isinstance(strategy, Beam):
            self._hypotheses.clear()  # at every step another hypothesis may lead
        hypothesis = self._hypotheses.setdefault(step.row, self._new_hypothesis())
        side_by_side = isinstance(strategy, Sample) and strategy.best_of > 1
        sample_index = step.row if side_by_side else None
        index = self._prompt_tokens + step.index
        self.emit(
            hypothesis.push(
                step.token, index=index, row=sample_index, probability=math.exp(step.logprob), ms=ms
            )
        )
        if not isinstance(strategy, Beam):
            self._emit_closed_segment(hypothesis, step.token, sample_index)
        self._lap_started_s = perf_counter()

    def _on_window_end(self, start_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]) -> None:
        tokens = decoded.hypothesis.tokens
        if isinstance(self._strategy, Beam):
            hypothesis = self._new_hypothesis()
            for token in (*tokens, self.tokenizer.eot):
                hypothesis.push(token, index=0)
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

    def _start_attempt(self) -> None:
        self._attempt_number += 1
        self._hypotheses.clear()
        self.emit(AttemptStarted(attempt=self._attempt_number, strategy=_describe_strategy(self._strategy)))

    @property
    def _strategy(self) -> Strategy:
        return self.options.strategies()[self._attempt_number - 1]

    def _emit_closed_segment(self, hypothesis: _HypothesisText, token: int, sample_index: int | None) -> None:
        if segment := hypothesis.closed_segment(token):
            start_s, end_s, text = segment
            self.emit(SegmentClosed(row=sample_index, start_s=start_s, end_s=end_s, text=text))

    def _new_hypothesis(self) -> _HypothesisText:
        return _HypothesisText(self.tokenizer, self._window_start_s)

    def _lap_ms(self) -> float:
        return round((perf_counter() - self._lap_started_s) * 1000, 3)


class _HypothesisText:
    """One run of tokens and the text that it spells."""

    def __init__(self, tokenizer: Tokenizer, window_start_s: float) -> None:
        self._tokenizer, self._window_start_s = tokenizer, window_start_s
        self._text_stream = IncrementalDetokenizer(tokenizer)
        self._segment_start_s, self._text = window_start_s, ""

    def push(
        self,
        token: int,
        *,
        index: int,
        row: int | None = None,
        probability: float | None = None,
        ms: float | None = None,
    ) -> TokenEvent:
        """Add a token, and describe it."""
        kind = self._tokenizer.kind(token)
        text, incomplete = self._tokenizer.describe_token(token), b""
        if kind is TokenKind.TEXT:
            text = self._text_stream.feed(token)
            self._text += text
            incomplete = b"" if text else self._tokenizer.decode_bytes((token,))
        return TokenEvent(
            index=index,
            row=row,
            token=token,
            kind=kind.value,
            text=text,
            bytes=incomplete.hex(" "),
            probability=probability,
            ms=ms,
        )

    def closed_segment(self, token: int) -> tuple[float, float | None, str] | None:
        """What the token that was just added ends, if anything: start and end in seconds, and the text."""
        kind = self._tokenizer.kind(token)
        if kind not in (TokenKind.TIMESTAMP, TokenKind.EOT):
            return None
        end_s = (
            self._window_start_s + self._tokenizer.timestamp_s(token) if kind is TokenKind.TIMESTAMP else None
        )
        segment = (self._segment_start_s, end_s, self._text.strip())
        self._segment_start_s, self._text = self._segment_start_s if end_s is None else end_s, ""
        return segment if segment[-1] else None


def _describe_strategy(strategy: Strategy) -> str:
    match strategy:
        case Greedy():
            return "greedy"
        case Sample(temperature=temperature, best_of=best_of):
            return f"sampling at temperature {temperature:g}, best of {best_of}"
        case Beam(width=width):
            return f"beam search of width {width}"
