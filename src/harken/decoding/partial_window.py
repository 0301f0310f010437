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
from harken.decoding.alignment_attention import alignment_matrix
from harken.decoding.candidate_generator import common_prefix_length
from harken.decoding.hypothesis import DecodeStats
from harken.decoding.logit_rules import LogitRules
from harken.text import Tokenizer
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

POSITIONS_PER_SECOND = FRAMES_PER_SECOND // FRAMES_PER_POSITION
REWIND_THRESHOLD = POSITIONS_PER_SECOND
"""A token that listens to sound more than a second before what was reached repeats what was said."""
MIN_LOOP_REPEATS = {**dict.fromkeys(range(1, 4), 5), **dict.fromkeys(range(4, 11), 3)}
"""How often so many tokens are not said one after another: people say "no, no, no"."""
MAX_TOKENS_PER_SECOND, EXTRA_TOKENS = 10, 16
"""Nobody says more than this: a text with more tokens is a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialWindow:
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

    window_index: int
    prompt: tuple[int, ...]
    committed: tuple[int, ...]
    draft_tokens: tuple[int, ...]
    n_positions: int
    frame_threshold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialHypothesis:
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
    attended_positions: Ints
    attention: Floats
    reached_eot: bool
    no_speech_prob: float | None


def decode_partial(
    backend: Backend,
    features: Features,
    windows: Sequence[PartialWindow],
    logit_rules: LogitRules,
    tokenizer: Tokenizer,
) -> tuple[list[PartialHypothesis], DecodeStats]:
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
    session = backend.open_session(features, [window.window_index for window in windows], n_ctx, attention=True)
    rows = [_PartialRow(window, n_ctx, tokenizer.sot) for window in windows]
    active, forwards, accepted = rows, 0, 0
    drafted = sum(len(row.draft) for row in rows)
    while active:
        logits = _extend(session, active)
        if not forwards:
            _set_no_speech_probs(logits, rows, tokenizer.no_speech)
        forwards += 1
        logits = logits.select_positions(_choice_positions(active))
        logit_rules.apply(logits, [prefix for row in active for prefix in row.prefixes()])
        ids, logprobs = (column[:, 0].tolist() for column in logits.top(1))
        for i, row in enumerate(active):
            count = len(row.draft) + 1
            accepted += row.accept(ids[:count], logprobs[:count], session.attention(i), logit_rules.eot)
            del ids[:count], logprobs[:count]
        # The last token of each row is still to be read, and guesses that were wrong are to be forgotten.
        session.rewind([row.n_read for row in active])
        unfinished = [i for i, row in enumerate(active) if row.hypothesis is None]
        if len(unfinished) < len(active):
            session.reorder(unfinished)
            active = [active[i] for i in unfinished]
    stats = DecodeStats(
        windows=len(rows),
        forwards=forwards,
        prompt_tokens=sum(row.prompt_length for row in rows),
        sampled_tokens=sum(len(row.tokens) for row in rows),
        drafted=drafted,
        accepted=accepted,
    )
    return [row.hypothesis for row in rows if row.hypothesis], stats


class _PartialRow:
    """A window in work; `draft` are guesses that the model has read behind its tokens."""

    def __init__(self, window: PartialWindow, n_text_ctx: int, sot: int) -> None:
        self.window = window
        self.prompt_length = len(window.prompt) + len(window.committed)
        max_tokens = EXTRA_TOKENS + MAX_TOKENS_PER_SECOND * window.n_positions // POSITIONS_PER_SECOND
        self._limit = max(0, min(n_text_ctx - self.prompt_length, max_tokens - len(window.committed)))
        self.draft = window.draft_tokens[: self._limit]
        self.tokens: list[int] = []
        self.hypothesis: PartialHypothesis | None = None
        self.no_speech_prob: float | None = None
        self._no_speech_offset = 0 if window.committed else len(window.prompt) - 1 - window.prompt.index(sot)
        self._logprobs: list[float] = []
        self._max_attended = 0

    @property
    def unread(self) -> Sequence[int]:
        """What the model is to read next."""
        window = self.window
        return self.tokens[-1:] if self.tokens else (*window.prompt, *window.committed, *self.draft)

    @property
    def n_read(self) -> int:
        """How many tokens the model has read, but for guesses."""
        return self.prompt_length + max(0, len(self.tokens) - 1)

    @property
    def n_logits(self) -> int:
        """How many of the unread tokens something is to be chosen behind, or asked."""
        return (0 if self.tokens else self._no_speech_offset) + len(self.draft) + 1

    def prefixes(self) -> list[Sequence[int]]:
        """What stands before each token to choose."""
        tokens_and_draft = (*self.window.committed, *self.tokens, *self.draft)
        return [tokens_and_draft[: len(tokens_and_draft) - n] for n in range(len(self.draft), -1, -1)]

    def accept(self, token_ids: Sequence[int], logprobs: Sequence[float], attention: Floats, eot: int) -> int:
        """Take choices as long as the guesses were right and the text and the sound go on.

        Returns
        -------
        int
            How many guesses were right.
        """
        n_matched = common_prefix_length(self.draft, token_ids)
        n_before_draft = attention.shape[1] - len(self.draft)
        for n, (token, logprob) in enumerate(zip(token_ids[: n_matched + 1], logprobs, strict=False)):
            # A token is chosen by what the one before it listens to, compared with what those before that did.
            position = int(self._attended_positions(attention[:, : n_before_draft + n], 1)[0])
            n_repeated = repetition_length((*self.window.committed, *self.tokens))
            if token == eot or n_repeated or self._must_stop(position):
                self._drop_last(n_repeated)
                self._finish(attention, reached_eot=token == eot)
                break
            self._max_attended = max(self._max_attended, position)
            self.tokens.append(token)
            self._logprobs.append(logprob)
        self.draft = ()
        return n_matched

    def _must_stop(self, position: int) -> bool:
        """Whether a token that listens to that place is not to be taken."""
        frame_threshold = self.window.frame_threshold
        in_last_frames = frame_threshold > 0 and position >= self.window.n_positions - frame_threshold
        return (
            in_last_frames
            or position < self._max_attended - REWIND_THRESHOLD
            or len(self.tokens) == self._limit
        )

    def _drop_last(self, count: int) -> None:
        """Take back the last tokens; what is committed stays."""
        n_left = max(0, len(self.tokens) - count)
        del self.tokens[n_left:], self._logprobs[n_left:]

    def _finish(self, attention: Floats, *, reached_eot: bool) -> None:
        attention = attention[:, : self.prompt_length + len(self.tokens)]
        last_n = len(self.tokens) + 1
        self.hypothesis = PartialHypothesis(
            tokens=tuple(self.tokens),
            logprobs=tuple(self._logprobs),
            attended_positions=np.maximum.accumulate(self._attended_positions(attention, last_n)),
            attention=attention[:, -last_n:].copy(),
            reached_eot=reached_eot,
            no_speech_prob=self.no_speech_prob,
        )

    def _attended_positions(self, attention: Floats, last_n: int) -> Ints:
        attended_positions: Ints = alignment_matrix(attention, self.window.n_positions, last_n).argmax(axis=1)
        return attended_positions


def repetition_length(tokens: Sequence[int]) -> int:
    """How many tokens at the end only repeat what stands before them, where that makes a loop; else 0."""
    for period, repeats in MIN_LOOP_REPEATS.items():
        unit = tuple(tokens[-period:])
        if repeats * period <= len(tokens) and tuple(tokens[-repeats * period :]) == repeats * unit:
            return (repeats - 1) * period
    return 0


def _extend(session: Session, rows: Sequence[_PartialRow]) -> Logits:
    """Read what each row has not read, and return the logits behind as many tokens of each as it wants."""
    unread = [row.unread for row in rows]
    last_n = max(row.n_logits for row in rows)
    logits = session.extend(unread, last_n)
    ends = np.cumsum([min(last_n, len(row_tokens)) for row_tokens in unread]).tolist()
    return logits.select_positions(
        [position for row, end in zip(rows, ends, strict=True) for position in range(end - row.n_logits, end)]
    )


def _choice_positions(rows: Sequence[_PartialRow]) -> list[int]:
    """Of the logits that were read, those that something is to be chosen from."""
    ends = np.cumsum([row.n_logits for row in rows]).tolist()
    return [
        position
        for row, end in zip(rows, ends, strict=True)
        for position in range(end - len(row.draft) - 1, end)
    ]


def _set_no_speech_probs(logits: Logits, rows: Sequence[_PartialRow], no_speech: int) -> None:
    """Find out how probable it is that nothing is said, where nothing has been committed yet."""
    starts = [0, *np.cumsum([row.n_logits for row in rows]).tolist()]
    fresh = [i for i, row in enumerate(rows) if not row.window.committed]
    probabilities = logits.select_positions([starts[i] for i in fresh]).probability(no_speech).tolist()
    for i, probability in zip(fresh, probabilities, strict=True):
        rows[i].no_speech_prob = probability
