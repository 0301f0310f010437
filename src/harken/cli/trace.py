"""Decoding as a series of events, each told as it happens: the hooks of a transcription are the source."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from harken.decoding import Beam, Decoded, Greedy, Sample, Step, Strategy
from harken.results import Attempt
from harken.text import TextStream, Tokenizer, TokenKind
from harken.transcribe import TranscribeOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOpened:
    """A window has been encoded. `ms` is what reading, log-mel, encoder and language detection took."""

    window: int
    start_s: float
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
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
class AttemptBegun:
    """Decoding begins, or begins again at a higher temperature."""

    attempt: int
    strategy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceClosed:
    """A timestamp has ended a stretch of text; `end_s` is None if the window ended without one."""

    row: int | None
    start_s: float
    end_s: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowDecided:
    """What was kept of a window, and what was tried before; `silent` if it is passed over as silence."""

    window: int
    start_s: float
    tokens: tuple[int, ...]
    text: str
    silent: bool
    attempts: tuple[Attempt, ...]


Event = WindowOpened | Token | AttemptBegun | SentenceClosed | WindowDecided


@dataclass(slots=True)
class Trace:
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
    emit: Callable[[Event], None]
    _clock_s: float = field(default_factory=lambda: perf_counter())
    _window: int = 0
    _start_s: float = 0.0
    _prompt_tokens: int = 0
    _attempt: int = 0
    _rows: dict[int, _Row] = field(default_factory=dict)

    def hooks(self) -> dict[str, Callable[..., None]]:
        """Hooks by name, for `harken.Recognizer.transcribe`."""
        return {"window": self._open, "observe": self._step, "decided": self._decide}

    def _open(self, start_s: float, prompt: tuple[int, ...]) -> None:
        self._window += self._window == 0 or start_s > self._start_s  # a window may be encoded anew
        self._start_s, self._prompt_tokens, self._attempt = start_s, len(prompt), 0
        self.emit(WindowOpened(window=self._window, start_s=start_s, ms=self._lap_ms()))
        row = self._new_row()
        for index, token in enumerate(prompt):
            self.emit(row.push(token, index=index))
        self._clock_s = perf_counter()

    def _step(self, step: Step) -> None:
        ms = self._lap_ms()
        if step.row == step.index == 0:
            self._begin_attempt()
        strategy = self._strategy
        if isinstance(strategy, Beam):
            self._rows.clear()  # at every step another hypothesis may lead
        row = self._rows.setdefault(step.row, self._new_row())
        side_by_side = isinstance(strategy, Sample) and strategy.best_of > 1
        number = step.row if side_by_side else None
        index = self._prompt_tokens + step.index
        self.emit(row.push(step.token, index=index, row=number, probability=math.exp(step.logprob), ms=ms))
        if not isinstance(strategy, Beam):
            self._close(row, step.token, number)
        self._clock_s = perf_counter()

    def _decide(self, start_s: float, decoded: Decoded, attempts: tuple[Attempt, ...]) -> None:
        tokens = decoded.hypothesis.tokens
        if isinstance(self._strategy, Beam):
            row = self._new_row()
            for token in (*tokens, self.tokenizer.eot):
                row.push(token, index=0)
                self._close(row, token, None)
        self.emit(
            WindowDecided(
                window=self._window,
                start_s=self._start_s,
                tokens=tokens,
                text=self.tokenizer.decode_with_timestamps(tokens),
                silent=self.options.is_silence(decoded),
                attempts=attempts,
            )
        )
        self._clock_s = perf_counter()

    def _begin_attempt(self) -> None:
        self._attempt += 1
        self._rows.clear()
        self.emit(AttemptBegun(attempt=self._attempt, strategy=_in_words(self._strategy)))

    @property
    def _strategy(self) -> Strategy:
        return self.options.strategies()[self._attempt - 1]

    def _close(self, row: _Row, token: int, number: int | None) -> None:
        if sentence := row.closed(token):
            start_s, end_s, text = sentence
            self.emit(SentenceClosed(row=number, start_s=start_s, end_s=end_s, text=text))

    def _new_row(self) -> _Row:
        return _Row(self.tokenizer, self._start_s)

    def _lap_ms(self) -> float:
        return round((perf_counter() - self._clock_s) * 1000, 3)


class _Row:
    """One run of tokens and the text that it spells."""

    def __init__(self, tokenizer: Tokenizer, start_s: float) -> None:
        self._tokenizer, self._start_s = tokenizer, start_s
        self._stream = TextStream(tokenizer)
        self._since_s, self._text = start_s, ""

    def push(
        self,
        token: int,
        *,
        index: int,
        row: int | None = None,
        probability: float | None = None,
        ms: float | None = None,
    ) -> Token:
        """Add a token, and describe it."""
        kind = self._tokenizer.kind(token)
        text, unfinished = self._tokenizer.describe(token), b""
        if kind is TokenKind.TEXT:
            text = self._stream.push(token)
            self._text += text
            unfinished = b"" if text else self._tokenizer.decode_bytes((token,))
        return Token(
            index=index,
            row=row,
            token=token,
            kind=kind.value,
            text=text,
            bytes=unfinished.hex(" "),
            probability=probability,
            ms=ms,
        )

    def closed(self, token: int) -> tuple[float, float | None, str] | None:
        """What the token that was just added ends, if anything: start and end in seconds, and the text."""
        kind = self._tokenizer.kind(token)
        if kind not in (TokenKind.TIMESTAMP, TokenKind.EOT):
            return None
        end_s = self._start_s + self._tokenizer.timestamp_s(token) if kind is TokenKind.TIMESTAMP else None
        sentence = (self._since_s, end_s, self._text.strip())
        self._since_s, self._text = self._since_s if end_s is None else end_s, ""
        return sentence if sentence[-1] else None


def _in_words(strategy: Strategy) -> str:
    match strategy:
        case Greedy():
            return "greedy"
        case Sample(temperature=temperature, best_of=best_of):
            return f"sampling at temperature {temperature:g}, best of {best_of}"
        case Beam(width=width):
            return f"beam search of width {width}"
