"""What decoding a window yields, and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harken.contract import Floats, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Tokens of one window with their log-probabilities.

    Parameters
    ----------
    tokens : tuple of int
        Sampled tokens, without the end of text.
    logprobs : tuple of float
        Log-probability of each, at temperature 1, under the rules; one more for the end of text if it was reached.
    attention : ndarray of shape (heads, len(logprobs), positions), or None
        What the decoder listened to when it chose each: softmax weights of the alignment heads; None where they
        were not asked for.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    attention: Floats | None = field(default=None, compare=False, repr=False)

    @property
    def sum_logprob(self) -> float:
        """Log-probability of the whole."""
        return sum(self.logprobs)

    @property
    def avg_logprob(self) -> float:
        """Log-probability a token, the end of text counted (openai/whisper, decoding.py, DecodingTask.run)."""
        return self.sum_logprob / (len(self.tokens) + 1)

    def score(self, length_penalty: float | None) -> float:
        """By which hypotheses are ranked (openai/whisper, decoding.py, MaximumLikelihoodRanker)."""
        length = max(1, len(self.tokens))
        divisor = length if length_penalty is None else ((5 + length) / 6) ** length_penalty
        return self.sum_logprob / divisor


AttentionCapture = Callable[[int, int], Floats | None]
"""Give what the decoder listened to when it chose the last tokens of a row: which row, and how many tokens."""


def no_attention(row: int, n_tokens: int) -> None:
    """Give nothing: a `Listen` for sessions that keep no attention."""


def capture_attention(session: Session) -> AttentionCapture:
    """Take from a session what it has kept, for as long as it still holds the row."""

    def capture(row: int, count: int) -> Floats:
        return session.attention(row)[:, -count:].copy()

    return capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One token as it is chosen; for a beam, the last token of the leading hypothesis.

    Parameters
    ----------
    row : int
        Which of the rows in work.
    index : int
        Number of tokens sampled in this row before this one.
    token : int
    logprob : float
    """

    row: int
    index: int
    token: int
    logprob: float


Observer = Callable[[Step], None]
"""Called at every step; decoding stops at once with whatever it raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStats:
    """What a decode did; add them up with ``+``.

    Parameters
    ----------
    windows : int
        Windows decoded, each attempt of the fallback ladder counted.
    forwards : int
        Forward passes of the decoder.
    prompt_tokens : int
        Tokens read before sampling began.
    sampled_tokens : int
        Tokens chosen, in all rows.
    drafted : int
        Tokens that were proposed to the model.
    accepted : int
        How many of them were right.
    draft_forwards : int
        Forward passes of the assistant.
    rested : int
        Steps without a draft because drafting did not pay, or to measure what they take.
    unspeculated : int
        Windows decoded without drafts because the strategy does not allow for them: beam search.
    near_ties : tuple of float
        Margins, in log-probability, of tokens that were verified together with others and chosen by less than
        `harken.decoding.speculation.NEAR_TIE`: there plain decoding in another order of additions may differ.
    encode_s, decode_s, draft_s : float
        Seconds for encoding, for decoding, and how many of the latter went to drafting, the assistant's own encoder
        included.
    """

    windows: int = 0
    forwards: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_forwards: int = 0
    skipped_steps: int = 0
    undrafted_windows: int = 0
    near_ties: tuple[float, ...] = ()
    encode_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0

    def __add__(self, other: DecodeStats) -> DecodeStats:
        sums = {name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        return DecodeStats(**sums)

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafted tokens that were right; None without any."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_forward(self) -> float | None:
        """Tokens chosen in each forward pass, those over prompts included; None without any."""
        return self.sampled_tokens / self.forwards if self.forwards else None
