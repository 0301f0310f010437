"""Backends with known logits: computed by a function of the test, or those of a fixed text for each window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from fakes.clock import FakeClock
from harken.backends.host_logits import HostLogits
from harken.contract import Capabilities, Floats, Ints
from harken.types import Dims, WordHead
from tiny_models import DIMS, TOKENIZER

LogitsFunction = Callable[[Any, tuple[int, ...]], Sequence[float] | Floats]
"""Maps a window and the tokens of a row to the logits of the next token, shape (n_vocab,)."""

N_VOCAB = 8
EOT = N_VOCAB - 1
WINDOW_POSITIONS = DIMS.n_audio_ctx
WINDOW_S = WINDOW_POSITIONS * 0.02


# --- the common parts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FakeFeatures:
    """`harken.contract.Features` without any numbers; `encode_call` counts the calls of `encode` before theirs."""

    n_windows: int = 1
    encode_call: int = field(default=0, repr=False)


class FakeSession:
    """`harken.contract.Session` that records the tokens given to it.

    Windows have whatever form `next_logits` takes. `rows` holds the window and the tokens of each row, `read` the new
    tokens of each row for each forward pass.
    """

    vocabulary: Ints | None = None
    """Ids that the logits cover; None for all."""

    def __init__(
        self, next_logits: LogitsFunction, windows: Sequence[Any], capacity: int | None = None
    ) -> None:
        self._next_logits, self._capacity = next_logits, capacity
        self.rows: list[tuple[Any, tuple[int, ...]]] = [(window, ()) for window in windows]
        self.read: list[list[tuple[int, ...]]] = []

    @property
    def logits(self) -> HostLogits:
        """Logits after the tokens of each row."""
        return HostLogits(np.array([self._next_logits(*row) for row in self.rows], np.float32))

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        self.read.append([tuple(new) for new in tokens])
        logits = []
        for row, ((window, seen), new) in enumerate(zip(self.rows, tokens, strict=True)):
            whole = (*seen, *new)
            assert self._capacity is None or len(whole) <= self._capacity, "a row is longer than the capacity"
            self.rows[row] = (window, whole)
            first = max(len(whole) - last_n, len(seen)) + 1
            logits += [self._next_logits(window, whole[:end]) for end in range(first, len(whole) + 1)]
        values = np.array(logits, np.float32)
        return HostLogits(
            values if self.vocabulary is None else values.take(self.vocabulary, axis=1), self.vocabulary
        )

    def rewind(self, lengths: Sequence[int]) -> None:
        for (_, seen), length in zip(self.rows, lengths, strict=True):
            assert length <= len(seen), "a row cannot be rewound to more than its length"
        self.rows = [(window, seen[:n]) for (window, seen), n in zip(self.rows, lengths, strict=True)]

    def reorder(self, rows: Sequence[int]) -> None:
        self.rows = [self.rows[row] for row in rows]


class FakeBackend:
    """The parts that all fake backends share: the dimensions of the tiny model, and a description."""

    word_heads: tuple[WordHead, ...] = ()
    clock = staticmethod(perf_counter)

    def __init__(self, n_text_ctx: int = DIMS.n_text_ctx) -> None:
        self.dims: Dims = replace(DIMS, n_text_ctx=n_text_ctx)
        self.capabilities = Capabilities(
            name="fake", precision="exact", device="none", detail="fixed logits", frozen_padding=True
        )


# --- logits of a function ----------------------------------------------------------------------------------


class ScriptedBackend(FakeBackend):
    """`harken.contract.Backend` with the logits of a function, over all ids or some, and with a cost on a clock.

    The cost in seconds of a forward pass follows from the rows and the new tokens of the longest one.
    """

    def __init__(
        self,
        next_logits: LogitsFunction,
        n_text_ctx: int = DIMS.n_text_ctx,
        *,
        vocabulary: Ints | None = None,
        clock: FakeClock | None = None,
        cost: Callable[[int, int], float] = lambda rows, width: 0.0,
    ) -> None:
        super().__init__(n_text_ctx)
        self.next_logits, self.vocabulary, self.fake_clock, self.cost = next_logits, vocabulary, clock, cost
        self.sessions: list[Any] = []

    def encode(self, mel: Floats, *, padded: bool = False) -> Any:
        return FakeFeatures(len(mel))

    def reuse_encoder_output(self, features: FakeFeatures) -> FakeFeatures:
        return features

    def open_session(
        self, features: Any, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> ScriptedBackendSession:
        self.sessions.append(ScriptedBackendSession(self, row_windows, capacity))
        return self.sessions[-1]


class ScriptedBackendSession(FakeSession):
    """`FakeSession` that spends the cost of each forward pass; attention is a hash of the window and the tokens."""

    def __init__(self, backend: Any, windows: Sequence[Any], capacity: int) -> None:
        super().__init__(lambda window, seen: backend.next_logits(window, seen), windows, capacity)
        self._backend, self.vocabulary = backend, backend.vocabulary

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        if self._backend.fake_clock:
            self._backend.fake_clock.spend(self._backend.cost(len(tokens), max(map(len, tokens))))
        return super().extend(tokens, last_n)

    def attention(self, row: int) -> Floats:
        window, seen = self.rows[row]
        return np.array([[[hash((window, seen[: n + 1])) % 997] for n in range(len(seen))]], np.float32)


def logits_of_texts(texts: Sequence[Sequence[int]], prompt: int = 1, n_vocab: int = N_VOCAB) -> LogitsFunction:
    """Make logits under which each window has one text behind its prompt, whatever tokens a row already holds.

    Behind the text comes the last id of the vocabulary.
    """

    def next_logits(window: int, seen: tuple[int, ...]) -> Floats:
        logits = np.zeros(n_vocab, np.float32)
        text, index = texts[window], len(seen) - prompt
        logits[text[index] if 0 <= index < len(text) else n_vocab - 1] = 12
        return logits

    return next_logits


def random_logits(share: float = 0.0) -> LogitsFunction:
    """Make random logits that depend on the window, the last two tokens and the length.

    The share is the weight of a second random table: a draft model with another share agrees in part.
    """
    one, other = (
        np.random.default_rng(seed).standard_normal((3, 64, DIMS.n_vocab), np.float32) for seed in (0, 5)
    )
    tables = np.float32(3 * (1 - share)) * one + np.float32(3 * share) * other

    def next_logits(window: int, seen: tuple[int, ...]) -> Floats:
        indices = (seen[-1] % 64, hash(seen[-2:-1]) % 64, (window * 7 + len(seen)) % 64)
        logits: Floats = tables[0, indices[0]] + tables[1, indices[1]] + tables[2, indices[2]]
        return logits

    return next_logits


# --- a text for each window --------------------------------------------------------------------------------


def timestamp_token(position: int) -> int:
    """Id of the timestamp of an encoder position."""
    return TOKENIZER.timestamp_begin + position


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowText:
    """The output for a window, however it is decoded.

    Parameters
    ----------
    tokens : tuple of int
        Text and timestamps; the end of text follows by itself.
    gap : float
        Logit of the next token above that of all other text; other special tokens are far below.
    no_speech : float
        Probability of <|nospeech|>.
    attended : tuple of int
        Encoder position that each token attends to; without it all attend to all positions alike.
    """

    tokens: tuple[int, ...]
    gap: float = 40.0
    no_speech: float = 0.0
    attended: tuple[int, ...] = ()


def window_text(
    *parts: int | str, gap: float = 40.0, no_speech: float = 0.0, attended: tuple[int, ...] = ()
) -> WindowText:
    """Make a `WindowText` of text and of timestamps, which are given as encoder positions."""
    encoded = [TOKENIZER.encode(part) if isinstance(part, str) else [timestamp_token(part)] for part in parts]
    tokens = tuple(token for part in encoded for token in part)
    return WindowText(tokens=tokens, gap=gap, no_speech=no_speech, attended=attended)


class TranscriptBackend(FakeBackend):
    """`harken.contract.Backend` with a fixed text for each `encode` call, or one for each attempt to decode it.

    The last one serves all later attempts, and all later windows. `prompts` are those of each session, `mels` those of
    each `encode` call, and `steps` counts forward passes of the decoder.
    """

    def __init__(self, *windows: WindowText | Sequence[WindowText], n_text_ctx: int = DIMS.n_text_ctx) -> None:
        super().__init__(n_text_ctx)
        self.prompts: list[tuple[int, ...]] = []
        self.mels: list[Floats] = []
        self.steps = 0
        self._windows = [[texts] if isinstance(texts, WindowText) else list(texts) for texts in windows]
        self._attempts: list[int] = []

    def encode(self, mel: Floats, *, padded: bool = False) -> FakeFeatures:
        self.mels.append(mel)
        self._attempts.append(0)
        return FakeFeatures(encode_call=len(self.mels) - 1)

    def open_session(
        self, features: FakeFeatures, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> TranscriptSession:
        texts = self._windows[min(features.encode_call, len(self._windows) - 1)]
        attempt = self._attempts[features.encode_call]
        self._attempts[features.encode_call] += 1
        return TranscriptSession(self, texts[min(attempt, len(texts) - 1)], len(row_windows))


class TranscriptSession(FakeSession):
    """`FakeSession` in which every row follows the same text."""

    def __init__(self, backend: TranscriptBackend, text: WindowText, rows: int) -> None:
        super().__init__(self._logits, [text] * rows)
        self._backend, self._prompt_tokens = backend, 0

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        self._backend.steps += 1
        if not self._prompt_tokens:
            # The first tokens are those of the prompt, whose last is special, and of a draft.
            special = range(TOKENIZER.eot + 1, TOKENIZER.timestamp_begin)
            self._prompt_tokens = max(i for i, token in enumerate(tokens[0], 1) if token in special)
            self._backend.prompts.append(tuple(tokens[0][: self._prompt_tokens]))
        return super().extend(tokens, last_n)

    def attention(self, row: int) -> Floats:
        """Attend to the positions of the text; the row that gives its first token is the last one of the prompt."""
        weights = np.full((1, len(self.rows[row][1]), WINDOW_POSITIONS), 1 / WINDOW_POSITIONS, np.float32)
        attended = self.rows[row][0].attended[: max(0, len(self.rows[row][1]) - self._prompt_tokens + 1)]
        first = self._prompt_tokens - 1
        weights[:, first : first + len(attended)] = np.eye(WINDOW_POSITIONS, dtype=np.float32)[list(attended)]
        return weights

    def _logits(self, text: WindowText, seen: tuple[int, ...]) -> Floats:
        logits = np.zeros(DIMS.n_vocab, np.float32)
        index = len(seen) - self._prompt_tokens
        if index < 0:  # within the prompt, where <|nospeech|> is looked up
            odds = text.no_speech / (1 - text.no_speech) * (DIMS.n_vocab - 1)
            logits[TOKENIZER.no_speech] = math.log(odds) if odds else -np.inf
            return logits
        logits[TOKENIZER.eot :] = -30
        logits[text.tokens[index] if index < len(text.tokens) else TOKENIZER.eot] = text.gap
        return logits
