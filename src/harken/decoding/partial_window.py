"""Decoding of windows whose audio is still arriving: verify the previous hypothesis, extend it, stop by AlignAtt.

Each time there is more audio, the hypothesis of the time before is a draft: one forward pass reads it behind the
committed text, and it is accepted up to the first difference. From there on tokens are picked one by one, until the
text ends, or the decoder attends to the last of the audio, or goes back to audio that it has already attended to.

Source: Papi et al. 2023, "AlignAtt: Using Attention-based Audio-Translation Alignments as a Guide for Simultaneous
Speech Translation", section 3; Machacek and Polak 2025, "Simultaneous Translation with Offline Speech and LLM Models",
section 3.1 (Whisper's alignment heads, and the rewind).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harken.contract import Backend, Features, Floats, Ints
from harken.decoding.alignment_attention import RunningAlignment, alignment_matrix
from harken.decoding.generate import (
    STREAMED_REPEATS,
    Row,
    generate,
    pick_best,
    prefill,
    repetition_length,
)
from harken.decoding.logit_rules import LogitRules
from harken.decoding.types import DecodeStats
from harken.text import Tokenizer
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

POSITIONS_PER_SECOND = FRAMES_PER_SECOND // FRAMES_PER_POSITION
TOKEN_POSITIONS = POSITIONS_PER_SECOND // 2
"""Half a second: a token seldom ends further behind the position that it attends to."""
MIN_UNHEARD_POSITIONS = POSITIONS_PER_SECOND
"""A second of speech behind the last token: a text does not end before it."""
SAME_POSITIONS = POSITIONS_PER_SECOND // 10
"""Repeated words whose last token attends no further than this behind that of the first ones were said once."""
MIN_AVG_LOGPROB = -1.0
"""Least average log-probability of tokens behind such an end; the threshold of a transcription."""
REWIND_THRESHOLD = POSITIONS_PER_SECOND
"""A token that attends to a position more than a second before the latest one attended to repeats earlier text."""
MAX_TOKENS_PER_SECOND, EXTRA_TOKENS = 10, 16
"""Most tokens that a window may hold, by the length of its audio; nobody speaks faster, so more is a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialWindow:
    """A window whose audio is still arriving.

    Parameters
    ----------
    window_index : int
        Index among the encoded windows.
    prompt : tuple of int
        From `harken.decoding.decode_windows.make_prompt`, without timestamps.
    committed : tuple of int
        Text tokens that are final.
    draft_tokens : tuple of int
        The previous hypothesis behind the committed tokens, to be verified.
    n_positions : int
        Number of positions of the window that hold audio; padding may follow.
    frame_threshold : int
        A token that attends to the last so many of these positions is not accepted yet (AlignAtt); 0 accepts all, so
        that the text ends by itself.
    committed_end : int
        Position at which the committed tokens end.
    speech : ndarray of shape (up to n_positions,), bool
        True at the positions that hold speech, as far as it is known.
    """

    window_index: int
    prompt: tuple[int, ...]
    committed: tuple[int, ...]
    draft_tokens: tuple[int, ...]
    n_positions: int
    frame_threshold: int
    committed_end: int
    speech: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialHypothesis:
    """The text of a partial window so far.

    Parameters
    ----------
    tokens : tuple of int
        Text tokens behind the committed ones.
    logprobs : tuple of float
        Log-probability of each.
    attended_positions : ndarray of shape (len(tokens) + 1,), int64
        Position that each token attends to, made non-decreasing, and that of the token that was not accepted.
    attention : ndarray of shape (heads, len(tokens) + 1, positions), float32
        Cross-attention that picked each of them: softmax weights of the alignment heads.
    reached_eot : bool
        Whether the end of text came before any other reason to stop.
    no_speech_prob : float or None
        Probability of <|nospeech|> right after <|startoftranscript|>; None behind committed text.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    attended_positions: Ints
    attention: Floats
    reached_eot: bool
    no_speech_prob: float | None

    def followed_by(self, rest: PartialHypothesis) -> PartialHypothesis:
        """Return the hypothesis with that of the tokens behind it."""
        positions = np.concatenate([self.attended_positions[:-1], rest.attended_positions])
        return replace(
            self,
            tokens=(*self.tokens, *rest.tokens),
            logprobs=(*self.logprobs, *rest.logprobs),
            attended_positions=np.maximum.accumulate(positions),
            attention=np.concatenate([self.attention[:, :-1], rest.attention], axis=1),
            reached_eot=rest.reached_eot,
        )

    def from_token(self, first: int) -> PartialHypothesis:
        """Return the hypothesis behind its first tokens, which are committed by now."""
        return replace(
            self,
            tokens=self.tokens[first:],
            logprobs=self.logprobs[first:],
            attended_positions=self.attended_positions[first:],
            attention=self.attention[:, first:],
        )


def decode_partial(
    backend: Backend,
    features: Features,
    windows: Sequence[PartialWindow],
    logit_rules: LogitRules,
    tokenizer: Tokenizer,
) -> tuple[list[PartialHypothesis], DecodeStats]:
    """Decode a batch of partial windows.

    A text that ends before the speech does is continued with the most probable token but the end.

    Parameters
    ----------
    backend : Backend
    features : Features
    windows : sequence of PartialWindow
    logit_rules : LogitRules
        Without timestamps.
    tokenizer : Tokenizer

    Returns
    -------
    hypotheses : list of PartialHypothesis
        One a window.
    stats : DecodeStats
    """
    hypotheses, stats = _decode(backend, features, windows, logit_rules, tokenizer)
    too_short = [i for i, window in enumerate(windows) if _ends_too_early(window, hypotheses[i])]
    longer = [
        replace(windows[i], committed=(*windows[i].committed, *hypotheses[i].tokens), draft_tokens=())
        for i in too_short
    ]
    rests, more_stats = _decode(backend, features, longer, logit_rules, tokenizer, may_end=False)
    for i, rest in zip(too_short, rests, strict=True):
        if rest.tokens and sum(rest.logprobs) >= MIN_AVG_LOGPROB * len(rest.tokens):
            hypotheses[i] = hypotheses[i].followed_by(rest)
    return hypotheses, stats + more_stats


def _ends_too_early(window: PartialWindow, hypothesis: PartialHypothesis) -> bool:
    """Return whether there is speech behind a text that ended by itself; speech without any text may be noise."""
    has_text = bool(window.committed or hypothesis.tokens)
    if not hypothesis.reached_eot or not has_text:
        return False
    end = int(hypothesis.attended_positions[-2]) if hypothesis.tokens else window.committed_end
    return int(window.speech[end + TOKEN_POSITIONS :].sum()) >= MIN_UNHEARD_POSITIONS


def _decode(
    backend: Backend,
    features: Features,
    windows: Sequence[PartialWindow],
    logit_rules: LogitRules,
    tokenizer: Tokenizer,
    *,
    may_end: bool = True,
) -> tuple[list[PartialHypothesis], DecodeStats]:
    """Decode a batch of partial windows as far as their texts go; with `may_end` false, at least one token each."""
    if not windows:
        return [], DecodeStats()
    n_ctx = backend.dims.n_text_ctx
    session = backend.open_session(features, [window.window_index for window in windows], n_ctx, attention=True)
    criteria = [AlignAttStop(tokenizer, window) for window in windows]
    rows = [_make_row(criterion, n_ctx) for criterion in criteria]
    drafted = sum(len(row.draft) for row in rows)
    logits, no_speech_probs = prefill(session, rows, tokenizer.sot, tokenizer.no_speech)
    if not may_end:
        logits.suppress_tokens(np.array([logit_rules.eot]))
    forwards = 1 + generate(session, rows, logits, logit_rules, pick_best, stop_by_attention=True)
    stats = DecodeStats(
        windows=len(rows),
        forwards=forwards,
        prompt_tokens=sum(len(row.prompt) for row in rows),
        sampled_tokens=sum(len(row.tokens) for row in rows),
        drafted=drafted,
        accepted=sum(row.n_matched for row in rows),
    )
    probabilities = iter(no_speech_probs)
    hypotheses = [
        PartialHypothesis(
            tokens=tuple(row.tokens),
            logprobs=tuple(row.logprobs),
            attended_positions=criterion.attended_positions,
            attention=criterion.attention,
            reached_eot=criterion.reached_eot,
            no_speech_prob=None if row.committed else next(probabilities),
        )
        for row, criterion in zip(rows, criteria, strict=True)
    ]
    return hypotheses, stats


def _make_row(criterion: AlignAttStop, n_text_ctx: int) -> Row:
    """Make the row of a window; its limit is what fits the context and could be spoken in the time."""
    window = criterion.window
    prompt = (*window.prompt, *window.committed)
    max_tokens = EXTRA_TOKENS + MAX_TOKENS_PER_SECOND * window.n_positions // POSITIONS_PER_SECOND
    limit = max(0, min(n_text_ctx - len(prompt), max_tokens - len(window.committed)))
    return Row(prompt, limit, criterion, committed=window.committed, draft=window.draft_tokens[:limit])


class AlignAttStop:
    """The stopping criterion of streaming: end of text, a loop, or attention to audio that is still to come.

    A token is judged by the position that its predecessor attends to, compared with all tokens before it. The token
    that stops a row is not part of it. Of a loop one repetition is kept, of what was written twice but said once none.

    Parameters
    ----------
    tokenizer : Tokenizer
    window : PartialWindow

    Attributes
    ----------
    attended_positions, attention, reached_eot
        Those of the finished row, as in `PartialHypothesis`.
    """

    attended_positions: Ints
    attention: Floats
    reached_eot: bool

    def __init__(self, tokenizer: Tokenizer, window: PartialWindow) -> None:
        self.tokenizer, self.window = tokenizer, window
        self._max_attended = self._last_attended = 0
        self._alignment = RunningAlignment(window.n_positions)

    def __call__(self, row: Row, token: int, attention: Floats | None) -> int | None:
        """Return how many tokens the row keeps, if it ends before the token that was picked next."""
        assert attention is not None, "AlignAtt needs the attention of the row"
        self.reached_eot = token == self.tokenizer.eot
        n_repeated = repetition_length((*row.committed, *row.tokens), STREAMED_REPEATS)
        if not (self.reached_eot or n_repeated):
            read = attention[:, : len(row.prompt) + len(row.tokens)]
            if not row.tokens:
                self._hear_committed(read)
            position = int(self._alignment.last_row(read).argmax())
            too_far_ahead = position >= self.window.n_positions - self.window.frame_threshold
            too_far_back = position < self._max_attended - REWIND_THRESHOLD
            if not (too_far_ahead or too_far_back or len(row.tokens) == row.limit):
                # A single token that attends far ahead is an outlier: what follows it does not go back.
                self._hear(position)
                return None
        n_kept = self._n_spoken(row, max(0, len(row.tokens) - n_repeated), attention)
        attention = attention[:, : len(row.prompt) + n_kept]
        attended = alignment_matrix(attention, self.window.n_positions, n_kept + 1).argmax(axis=1)
        self.attended_positions = np.maximum.accumulate(attended)
        self.attention = attention[:, -(n_kept + 1) :].copy()
        return n_kept

    def _n_spoken(self, row: Row, n_kept: int, attention: Floats) -> int:
        """Return the number of tokens before words at the end that repeat those before them, and attend to these."""
        tokens = (*row.committed, *row.tokens[:n_kept])
        for size in range(1, len(tokens) // 2 + 1) if n_kept else ():
            repeats = tokens[-size:] == tokens[-2 * size : -size]
            if repeats and self.tokenizer.decode((tokens[-size],)).startswith(" "):
                read = attention[:, : len(row.prompt) + n_kept]
                attended = alignment_matrix(read, self.window.n_positions, len(tokens) + 1)[:-1].argmax(axis=1)
                if attended[-1] <= attended[-1 - size] + SAME_POSITIONS:
                    return self._n_spoken(row, max(0, n_kept - size), attention)
        return n_kept

    def _hear(self, position: int) -> None:
        """Note the position that an accepted token attends to."""
        self._max_attended = max(self._max_attended, min(self._last_attended, position))
        self._last_attended = position

    def _hear_committed(self, read: Floats) -> None:
        """Note the positions of the committed tokens: a text that starts anew behind them repeats them."""
        n_committed = len(self.window.committed)
        for position in alignment_matrix(read, self.window.n_positions, n_committed + 1)[:-1].argmax(axis=1):
            self._hear(int(position))
