"""Decode sound that is still growing: verify what was said of it before, go on, and stop where the sound ends.

Each time more has been heard, the hypothesis of the time before is a draft: one forward pass reads it behind what is
committed, and all of it up to the first difference stands. From there on tokens are chosen one by one, until the text
ends, or the decoder listens to the last of the sound or again to what it has listened to before.

Source: Papi et al. 2023, "AlignAtt: Using Attention-based Audio-Translation Alignments as a Guide for Simultaneous
Speech Translation", section 3; Machacek and Polak 2025, "Simultaneous Translation with Offline Speech and LLM Models",
section 3.1 (Whisper's alignment heads, and going back).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Backend, Features, Floats, Ints, Logits, Session
from harken.decoding.drafts import common
from harken.decoding.hypothesis import DecodeStats
from harken.decoding.listening import listening
from harken.decoding.rules import Rules
from harken.text import Tokenizer
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP

POSITIONS_PER_SECOND = FRAMES_PER_SECOND // FRAMES_PER_STEP
BACK_POSITIONS = POSITIONS_PER_SECOND
"""A token that listens to sound more than a second before what was reached repeats what was said."""
LOOPS = {**dict.fromkeys(range(1, 4), 5), **dict.fromkeys(range(4, 11), 3)}
"""How often so many tokens are not said one after another: people say "no, no, no"."""
TOKENS_PER_SECOND, SPARE_TOKENS = 10, 16
"""Nobody says more than this: a text with more tokens is a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """A window that grows.

    Parameters
    ----------
    audio : int
        Which of the features.
    prompt : tuple of int
        From `harken.decoding.prompt.make_prompt`, without timestamps.
    committed : tuple of int
        Text that stands, whatever is heard.
    previous : tuple of int
        What was said behind it before, to be verified.
    positions : int
        How many positions of the window hold sound; silence may follow.
    margin : int
        A token that listens to the last so many of them is not chosen yet; 0 lets the text end by itself.
    """

    audio: int
    prompt: tuple[int, ...]
    committed: tuple[int, ...]
    previous: tuple[int, ...]
    positions: int
    margin: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What is said in a window by now.

    Parameters
    ----------
    tokens : tuple of int
        Text behind what was committed.
    logprobs : tuple of float
        Of each of them.
    places : ndarray of shape (len(tokens) + 1,), int64
        Position that each listens to, in rising order, and that of what would have come next.
    attention : ndarray of shape (heads, len(tokens) + 1, positions), float32
        All that they listen to: softmax weights of the alignment heads.
    ended : bool
        Whether the text came to its end before the sound did.
    no_speech_prob : float or None
        Probability of <|nospeech|> right after <|startoftranscript|>; None behind committed text.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    places: Ints
    attention: Floats
    ended: bool
    no_speech_prob: float | None


def decode_growing(
    backend: Backend, features: Features, windows: Sequence[Growing], rules: Rules, tokenizer: Tokenizer
) -> tuple[list[Grown], DecodeStats]:
    """Decode windows that have grown, together.

    Parameters
    ----------
    backend : Backend
    features : Features
    windows : sequence of Growing
    rules : Rules
        Without timestamps.
    tokenizer : Tokenizer

    Returns
    -------
    grown : list of Grown
        One a window.
    stats : DecodeStats
    """
    n_ctx = backend.dims.n_text_ctx
    session = backend.open(features, [window.audio for window in windows], n_ctx, attention=True)
    rows = [_Row(window, n_ctx, tokenizer.sot) for window in windows]
    active, forwards, accepted = rows, 0, 0
    drafted = sum(len(row.draft) for row in rows)
    while active:
        logits = _read(session, active)
        if not forwards:
            _ask_for_silence(logits, rows, tokenizer.no_speech)
        forwards += 1
        logits = logits.take(_choices(active))
        rules.apply(logits, [prefix for row in active for prefix in row.prefixes()])
        ids, logprobs = (column[:, 0].tolist() for column in logits.top(1))
        for i, row in enumerate(active):
            count = len(row.draft) + 1
            accepted += row.take(ids[:count], logprobs[:count], session.attention(i), rules.eot)
            del ids[:count], logprobs[:count]
        # The last token of each row is still to be read, and guesses that were wrong are to be forgotten.
        session.rewind([row.read for row in active])
        going_on = [i for i, row in enumerate(active) if row.grown is None]
        if len(going_on) < len(active):
            session.select(going_on)
            active = [active[i] for i in going_on]
    stats = DecodeStats(
        windows=len(rows),
        forwards=forwards,
        prompt_tokens=sum(row.start for row in rows),
        sampled_tokens=sum(len(row.tokens) for row in rows),
        drafted=drafted,
        accepted=accepted,
    )
    return [row.grown for row in rows if row.grown], stats


class _Row:
    """A window in work; `draft` are guesses that the model has read behind its tokens."""

    def __init__(self, window: Growing, n_text_ctx: int, sot: int) -> None:
        self.window = window
        self.start = len(window.prompt) + len(window.committed)
        spoken = SPARE_TOKENS + TOKENS_PER_SECOND * window.positions // POSITIONS_PER_SECOND
        self._limit = max(0, min(n_text_ctx - self.start, spoken - len(window.committed)))
        self.draft = window.previous[: self._limit]
        self.tokens: list[int] = []
        self.grown: Grown | None = None
        self.no_speech_prob: float | None = None
        self._asked = 0 if window.committed else len(window.prompt) - 1 - window.prompt.index(sot)
        self._logprobs: list[float] = []
        self._furthest = 0

    @property
    def unread(self) -> Sequence[int]:
        """What the model is to read next."""
        window = self.window
        return self.tokens[-1:] if self.tokens else (*window.prompt, *window.committed, *self.draft)

    @property
    def read(self) -> int:
        """How many tokens the model has read, but for guesses."""
        return self.start + max(0, len(self.tokens) - 1)

    @property
    def tail(self) -> int:
        """How many of the unread tokens something is to be chosen behind, or asked."""
        return (0 if self.tokens else self._asked) + len(self.draft) + 1

    def prefixes(self) -> list[Sequence[int]]:
        """What stands before each token to choose."""
        spoken = (*self.window.committed, *self.tokens, *self.draft)
        return [spoken[: len(spoken) - n] for n in range(len(self.draft), -1, -1)]

    def take(self, choices: Sequence[int], logprobs: Sequence[float], attention: Floats, eot: int) -> int:
        """Take choices as long as the guesses were right and the text and the sound go on.

        Returns
        -------
        int
            How many guesses were right.
        """
        right = common(self.draft, choices)
        read = attention.shape[1] - len(self.draft)
        for n, (token, logprob) in enumerate(zip(choices[: right + 1], logprobs, strict=False)):
            # A token is chosen by what the one before it listens to, compared with what those before that did.
            place = int(self._places(attention[:, : read + n], 1)[0])
            looped = repetition((*self.window.committed, *self.tokens))
            if token == eot or looped or self._is_over(place):
                self._forget(looped)
                self._end(attention, ended=token == eot)
                break
            self._furthest = max(self._furthest, place)
            self.tokens.append(token)
            self._logprobs.append(logprob)
        self.draft = ()
        return right

    def _is_over(self, place: int) -> bool:
        """Whether a token that listens to that place is not to be taken."""
        margin = self.window.margin
        late = margin > 0 and place >= self.window.positions - margin
        return late or place < self._furthest - BACK_POSITIONS or len(self.tokens) == self._limit

    def _forget(self, count: int) -> None:
        """Take back the last tokens; what is committed stays."""
        keep = max(0, len(self.tokens) - count)
        del self.tokens[keep:], self._logprobs[keep:]

    def _end(self, attention: Floats, *, ended: bool) -> None:
        attention = attention[:, : self.start + len(self.tokens)]
        last = len(self.tokens) + 1
        self.grown = Grown(
            tokens=tuple(self.tokens),
            logprobs=tuple(self._logprobs),
            places=np.maximum.accumulate(self._places(attention, last)),
            attention=attention[:, -last:].copy(),
            ended=ended,
            no_speech_prob=self.no_speech_prob,
        )

    def _places(self, attention: Floats, last: int) -> Ints:
        places: Ints = listening(attention, self.window.positions, last).argmax(axis=1)
        return places


def repetition(tokens: Sequence[int]) -> int:
    """How many tokens at the end only repeat what stands before them, where that makes a loop; else 0."""
    for period, times in LOOPS.items():
        end = tuple(tokens[-period:])
        if times * period <= len(tokens) and tuple(tokens[-times * period :]) == times * end:
            return (times - 1) * period
    return 0


def _read(session: Session, rows: Sequence[_Row]) -> Logits:
    """Read what each row has not read, and return the logits behind as many tokens of each as it wants."""
    unread = [row.unread for row in rows]
    tail = max(row.tail for row in rows)
    logits = session.extend(unread, tail)
    ends = np.cumsum([min(tail, len(its)) for its in unread]).tolist()
    return logits.take(
        [place for row, end in zip(rows, ends, strict=True) for place in range(end - row.tail, end)]
    )


def _choices(rows: Sequence[_Row]) -> list[int]:
    """Of the logits that were read, those that something is to be chosen from."""
    ends = np.cumsum([row.tail for row in rows]).tolist()
    return [
        place for row, end in zip(rows, ends, strict=True) for place in range(end - len(row.draft) - 1, end)
    ]


def _ask_for_silence(logits: Logits, rows: Sequence[_Row], no_speech: int) -> None:
    """Find out how probable it is that nothing is said, where nothing has been committed yet."""
    starts = [0, *np.cumsum([row.tail for row in rows]).tolist()]
    asked = [i for i, row in enumerate(rows) if not row.window.committed]
    probabilities = logits.take([starts[i] for i in asked]).probability(no_speech).tolist()
    for i, probability in zip(asked, probabilities, strict=True):
        rows[i].no_speech_prob = probability
