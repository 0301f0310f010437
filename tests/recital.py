"""A model that recites: for tests of the long form that need to know what is said of each window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harken.backends.host_logits import HostLogits
from harken.contract import Capabilities, Floats
from harken.types import Dims
from models import DIMS, TOKENIZER

WINDOW_STEPS = DIMS.n_audio_ctx
WINDOW_S = WINDOW_STEPS * 0.02


def at(step: int) -> int:
    """Id of a timestamp."""
    return TOKENIZER.timestamp_begin + step


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What is said of a window, however it is decoded.

    Parameters
    ----------
    tokens : tuple of int
        The end of text comes by itself.
    gap : float
        How far the logit of the next token stands above all text; other specials are far below that.
    no_speech : float
        Probability of <|nospeech|>.
    """

    tokens: tuple[int, ...]
    gap: float = 40.0
    no_speech: float = 0.0


def line(*parts: int | str, gap: float = 40.0, no_speech: float = 0.0) -> Line:
    """Make a line of steps of timestamps and of text."""
    spelled = [TOKENIZER.encode(part) if isinstance(part, str) else [at(part)] for part in parts]
    return Line(tokens=tuple(token for part in spelled for token in part), gap=gap, no_speech=no_speech)


@dataclass(frozen=True, slots=True)
class Window:
    """`harken.contract.Features`: which of the windows."""

    index: int
    n_windows: int = 1


class Recital:
    """`harken.contract.Backend` that knows its lines, one or more a window: one for each attempt at it.

    Parameters
    ----------
    windows : sequence of Line, or a Line
        Later attempts, and later windows, get the last one.
    n_text_ctx : int
        Context of the decoder.

    Attributes
    ----------
    prompts : list of tuple of int
        What each session read first.
    mels : list of ndarray
        What each window was.
    steps : int
        Forward passes of the decoder.
    """

    def __init__(self, *windows: Line | Sequence[Line], n_text_ctx: int = DIMS.n_text_ctx) -> None:
        self.dims: Dims = replace(DIMS, n_text_ctx=n_text_ctx)
        self.capabilities = Capabilities(name="recital", precision="exact", device="none", detail="by heart")
        self.prompts: list[tuple[int, ...]] = []
        self.mels: list[Floats] = []
        self.steps = 0
        self._windows = [[lines] if isinstance(lines, Line) else list(lines) for lines in windows]
        self._attempts: list[int] = []

    def encode(self, mel: Floats) -> Window:
        self.mels.append(mel)
        self._attempts.append(0)
        return Window(len(self.mels) - 1)

    def open_session(
        self, features: Window, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> RecitalSession:
        lines = self._windows[min(features.index, len(self._windows) - 1)]
        attempt = self._attempts[features.index]
        self._attempts[features.index] += 1
        return RecitalSession(self, lines[min(attempt, len(lines) - 1)], len(row_windows))


class RecitalSession:
    """`harken.contract.Session` in which every row is at its own place of the same line."""

    def __init__(self, backend: Recital, its: Line, rows: int) -> None:
        self._backend, self._line = backend, its
        self._prompt: tuple[int, ...] = ()
        self._said = [0] * rows

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(self._prompt) + said for said in self._said)

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        self._backend.steps += 1
        if not self._prompt:
            self._prompt = tuple(tokens[0])
            self._backend.prompts.append(self._prompt)
            return HostLogits(np.concatenate([self._heard(last_n), self._next(0)]))
        self._said = [said + len(new) for said, new in zip(self._said, tokens, strict=True)]
        return HostLogits(np.concatenate([self._next(said) for said in self._said]))

    def attention(self, row: int) -> Floats:
        """It listens to everything alike."""
        tokens = len(self._prompt) + self._said[row]
        return np.full((1, tokens, WINDOW_STEPS), 1 / WINDOW_STEPS, np.float32)

    def reorder(self, rows: Sequence[int]) -> None:
        self._said = [self._said[row] for row in rows]

    def rewind(self, lengths: Sequence[int]) -> None:
        raise AssertionError("the long form has no use for rewinding")

    def _heard(self, tail: int) -> Floats:
        """Logits of the prompt but for its last token: <|nospeech|> has its probability."""
        logits = np.zeros((tail - 1, DIMS.n_vocab), np.float32)
        odds = self._line.no_speech / (1 - self._line.no_speech) * (DIMS.n_vocab - 1)
        logits[:, TOKENIZER.no_speech] = math.log(odds) if odds else -np.inf
        return logits

    def _next(self, said: int) -> Floats:
        """Logits of what comes after as many tokens of the line."""
        tokens = self._line.tokens
        logits = np.zeros((1, DIMS.n_vocab), np.float32)
        logits[0, TOKENIZER.eot :] = -30
        logits[0, tokens[said] if said < len(tokens) else TOKENIZER.eot] = self._line.gap
        return logits
