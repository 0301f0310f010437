"""Requests to decode and their results: strategies, windows, hypotheses, steps and statistics.

The strategies are a sum type, so that an illegal combination cannot be written: `Greedy` and `Beam` are deterministic,
`Sample` draws at a temperature. A fallback schedule is a tuple of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field
from typing import ClassVar

from harken.contract import Floats, Session
from harken.option_types import check, option

MIN_TEMPERATURE = 0.001
"""Least temperature to sample at: logits that are divided by less overflow, and it is as greedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Pick the most probable token at every step."""

    temperature: ClassVar[float] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Draw tokens at a temperature, `best_of` times, and keep the best.

    Parameters
    ----------
    temperature : float
        Above 0; 1 draws from the model's own distribution.
    best_of : int
        Number of independent samples.
    length_penalty : float or None
        As in `Beam`.
    """

    temperature: float = option(MISSING, low=MIN_TEMPERATURE, high=10)
    best_of: int = option(5, low=1, high=64)
    length_penalty: float | None = option(None, low=0, high=1)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """Keep the `width` best hypotheses at every step.

    Parameters
    ----------
    width : int
        Number of hypotheses kept.
    patience : float
        Stop after ``round(width * patience)`` finished ones (Kasai et al. 2022, arXiv:2204.05424).
    length_penalty : float or None
        Alpha in ((5 + length) / 6) ** alpha, by which a finished hypothesis' log-probability is divided
        (Wu et al. 2016, arXiv:1609.08144, equation 14); None divides by the length.
    """

    temperature: ClassVar[float] = 0.0
    width: int = option(5, low=1, high=64)
    patience: float = option(1.0, above=0, high=100)
    length_penalty: float | None = option(None, low=0, high=1)

    def __post_init__(self) -> None:
        check(self)


Strategy = Greedy | Sample | Beam


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window to decode.

    Parameters
    ----------
    window_index : int
        Index among the encoded windows.
    prompt : tuple of int
        From `harken.decoding.decode_windows.make_prompt`.
    seed : tuple of int
        Seed of sampling; equal seeds give equal samples, whatever else is in the batch.
    draft_tokens : tuple of int
        Tokens of an earlier attempt at the same audio, a source of drafts.
    speech_end : int or None
        Timestamp before which no segment may be empty (see `LogitRules.banned`).
    """

    window_index: int
    prompt: tuple[int, ...]
    seed: tuple[int, ...] = (0,)
    draft_tokens: tuple[int, ...] = ()
    speech_end: int | None = None


CapturedAttention = tuple[Floats | None, Floats | None]
"""Attention of the alignment heads and of the word heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """The tokens of one window with their log-probabilities.

    Parameters
    ----------
    tokens : tuple of int
        Without the end of text.
    logprobs : tuple of float
        Log-probability of each at temperature 1, under the logit rules; one more for the end of text if it was reached.
    attention : ndarray of shape (heads, len(logprobs), positions), or None
        Cross-attention that picked each token: softmax weights of the alignment heads; None unless captured.
    word_attention : ndarray of shape (word heads, len(logprobs), positions), or None
        That of the word heads; None unless captured, or where the backend has none.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    attention: Floats | None = field(default=None, compare=False, repr=False)
    word_attention: Floats | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_picked(
        cls, tokens: Sequence[int], logprobs: Sequence[float], eot: int, captured: CapturedAttention
    ) -> Hypothesis:
        """Make a hypothesis of the tokens that were picked, of which the last may be the end of text."""
        text_tokens = tuple(tokens[:-1] if tokens[-1] == eot else tokens)
        attention, word_attention = captured
        return cls(
            tokens=text_tokens, logprobs=tuple(logprobs), attention=attention, word_attention=word_attention
        )

    def first(self, n_tokens: int) -> Hypothesis:
        """Return the first tokens of it, as if it had run out of tokens there."""
        return Hypothesis(
            tokens=self.tokens[:n_tokens],
            logprobs=self.logprobs[:n_tokens],
            attention=None if self.attention is None else self.attention[:, :n_tokens],
            word_attention=None if self.word_attention is None else self.word_attention[:, :n_tokens],
        )

    @property
    def sum_logprob(self) -> float:
        """Sum of all log-probabilities."""
        return sum(self.logprobs)

    @property
    def avg_logprob(self) -> float:
        """Mean log-probability a token, the end of text counted (openai/whisper, decoding.py, DecodingTask.run)."""
        return self.sum_logprob / (len(self.tokens) + 1)

    def score(self, length_penalty: float | None) -> float:
        """Return the score that ranks hypotheses (openai/whisper, decoding.py, MaximumLikelihoodRanker)."""
        length = max(1, len(self.tokens))
        divisor = length if length_penalty is None else ((5 + length) / 6) ** length_penalty
        return self.sum_logprob / divisor


AttentionCapture = Callable[[int, int], CapturedAttention]
"""Return the attention that picked the last tokens of a row, given the row of the session and the number of tokens."""


def no_attention(row: int, n_tokens: int) -> CapturedAttention:
    """Return no attention: an `AttentionCapture` for sessions that keep none."""
    return None, None


def copy_attention(
    session: Session, row: int, tokens: slice, n_word_heads: int
) -> tuple[Floats, Floats | None]:
    """Copy the attention of some tokens of a row out of a session, that of the word heads too if there are any."""
    attention = session.attention(row, words=True) if n_word_heads else session.attention(row)
    copied = attention[:, tokens].copy()
    n_alignment_heads = len(copied) - n_word_heads
    return copied[:n_alignment_heads], copied[n_alignment_heads:] if n_word_heads else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One token as it is picked; in beam search, the last token of the best hypothesis.

    Parameters
    ----------
    row : int
        Row of the decode; in beam search, the window.
    index : int
        Number of tokens picked in this row before this one.
    token : int
    logprob : float
    strategy : Greedy, Sample or Beam
        What picked it.
    """

    row: int
    index: int
    token: int
    logprob: float
    strategy: Strategy = field(default_factory=Greedy)


Observer = Callable[[Step], None]
"""A function that is called at every step; decoding stops at once with whatever it raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStats:
    """Statistics of a decode; ``+`` adds them up.

    Parameters
    ----------
    windows : int
        Windows decoded; each attempt of the fallback schedule counts.
    forwards : int
        Forward passes of the decoder.
    prompt_tokens : int
        Tokens read before the first one was picked.
    sampled_tokens : int
        Tokens picked in all rows.
    drafted : int
        Draft tokens that the model verified.
    accepted : int
        Draft tokens that were right.
    draft_forwards : int
        Forward passes of the assistant model.
    skipped_steps : int
        Steps without a draft because drafting did not pay, or to measure the cost of such a step.
    undrafted_windows : int
        Windows decoded without drafts because the strategy does not support them: beam search.
    near_ties : tuple of float
        Margins, in log-probability, of tokens that were verified together with others and beat the second best by less
        than `harken.decoding.speculation.NEAR_TIE`: rounding may make plain decoding pick another token there.
    encode_s, decode_s, draft_s : float
        Seconds of encoding and of decoding; seconds of decoding that went to drafting, the assistant's encoder
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
        """Share of the draft tokens that were right; None without any."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_forward(self) -> float | None:
        """Mean number of tokens picked in a forward pass, those over prompts included; None without any."""
        return self.sampled_tokens / self.forwards if self.forwards else None
