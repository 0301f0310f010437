"""Which tokens may follow which: logit rules as data, a pure function of the tokens sampled so far.

Since nothing but the prefix decides, verifying k drafted tokens at once applies the same rules as k single steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from harken.contract import Ints, Logits, Span
from harken.decoding.bias import Bias, make_bias
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.types import TIMESTAMP_STEP_S

_EVERYTHING = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rules:
    """The rules of one decode.

    Parameters
    ----------
    eot : int
        End of text.
    timestamp_begin : int
        Id of <|0.00|>; all ids from here on are timestamps.
    suppressed : ndarray of int64
        Ids never sampled.
    first_banned : tuple of (int, int)
        Id ranges that may not come first.
    timestamps : bool
        Whether the grammar of timestamps holds.
    last_initial_timestamp : int or None
        Highest id that a first timestamp may have.
    forced : tuple of int
        Text with which what is sampled begins, behind the first timestamp if there are any.
    bias : Bias or None
        Bonuses for hotwords.
    """

    eot: int
    timestamp_begin: int
    suppressed: Ints
    first_banned: tuple[Span, ...]
    timestamps: bool
    last_initial_timestamp: int | None
    forced: tuple[int, ...] = ()
    bias: Bias | None = None

    def apply(self, logits: Logits, prefixes: Sequence[Sequence[int]]) -> None:
        """Ban, at each position of `logits`, what may not follow its prefix of sampled tokens."""
        logits.suppress(self.suppressed)
        logits.ban([self.banned(prefix) for prefix in prefixes])
        if self.bias is not None:
            self.bias.apply(logits, prefixes)
        if self.timestamps:
            logits.prefer_timestamps(self.timestamp_begin)

    def allows(self, prefix: Sequence[int], token: int) -> bool:
        """Whether a token may follow `prefix`, as far as that does not depend on logits."""
        banned = any(start <= token < stop for start, stop in self.banned(prefix))
        return not (banned or (self.suppressed == token).any())

    def banned(self, prefix: Sequence[int]) -> list[Span]:
        """Id ranges that may not follow `prefix`, the tokens sampled after the prompt."""
        place = len(prefix) - self.timestamps
        if 0 <= place < len(self.forced):
            return [(0, self.forced[place]), (self.forced[place] + 1, _EVERYTHING)]
        spans = [] if prefix else list(self.first_banned)
        return [*spans, *self._banned_by_timestamps(prefix)] if self.timestamps else spans

    def _banned_by_timestamps(self, prefix: Sequence[int]) -> list[Span]:
        """Timestamps come in pairs, never decrease, and stand at the start.

        Source: openai/whisper, decoding.py, ApplyTimestampRules.
        """
        begin, everything = self.timestamp_begin, _EVERYTHING
        if not prefix:
            limit = (
                [] if self.last_initial_timestamp is None else [(self.last_initial_timestamp + 1, everything)]
            )
            return [(0, begin), *limit]
        after_timestamp = prefix[-1] >= begin
        opened = after_timestamp and (len(prefix) < 2 or prefix[-2] >= begin)
        spans: list[Span] = []
        if opened:
            spans.append((begin, everything))
        elif after_timestamp:
            spans.append((0, self.eot))
        last = next((token for token in reversed(prefix) if token >= begin), None)
        if last is not None:
            closing = after_timestamp and not opened
            spans.append((begin, last if closing else last + 1))
        return spans


def make_rules(
    tokenizer: Tokenizer,
    *,
    timestamps: bool,
    suppress_tokens: Iterable[int] = (-1,),
    suppress_blank: bool = True,
    max_initial_timestamp_s: float | None = 1.0,
    suppress_regex: str | None = None,
    prefix: Sequence[int] = (),
    hotwords: Iterable[str] = (),
) -> Rules:
    """Rules of a decode, from the ids of a vocabulary.

    Parameters
    ----------
    tokenizer : Tokenizer
    timestamps : bool
        Whether timestamps are decoded.
    suppress_tokens : iterable of int
        Ids never sampled; -1 stands for the symbols that are not spoken.
    suppress_blank : bool
        Whether the first token may be neither a blank nor the end of text.
    max_initial_timestamp_s : float or None
        Latest start of the first segment, in seconds; None for no limit.
    suppress_regex : str or None
        Text tokens in which this regular expression finds something are never sampled (see `matching_tokens`).
    prefix : sequence of int
        Text tokens with which the window must begin, whatever is suppressed otherwise.
    hotwords : iterable of str
        Words and names to expect (see `harken.decoding.bias.make_bias`).

    Raises
    ------
    OptionError
        If `suppress_regex` is no regular expression, or leaves no token.

    Notes
    -----
    Source: openai/whisper, decoding.py, DecodingTask._get_suppress_tokens, SuppressBlank.
    """
    asked = set(suppress_tokens)
    never = asked - {-1}
    if -1 in asked:
        never |= set(tokenizer.non_speech_tokens)
    never |= {tokenizer.transcribe, tokenizer.translate, tokenizer.sot}
    never |= {tokenizer.sot_prev, tokenizer.sot_lm, tokenizer.no_speech}
    if timestamps:
        never.add(tokenizer.no_timestamps)
    if suppress_regex is not None:
        never |= matching_tokens(tokenizer, suppress_regex)
    never -= set(prefix)
    last = None
    if max_initial_timestamp_s is not None:
        last = tokenizer.timestamp_begin + round(max_initial_timestamp_s / TIMESTAMP_STEP_S)
    return Rules(
        eot=tokenizer.eot,
        timestamp_begin=tokenizer.timestamp_begin,
        suppressed=np.array(sorted(never), np.int64),
        first_banned=tuple((token, token + 1) for token in tokenizer.blank_tokens) if suppress_blank else (),
        timestamps=timestamps,
        last_initial_timestamp=last,
        forced=tuple(prefix),
        bias=make_bias(tokenizer, hotwords),
    )


@lru_cache(maxsize=8)
def matching_tokens(tokenizer: Tokenizer, pattern: str) -> frozenset[int]:
    """Text tokens in which a regular expression finds something: ``[0-9]`` has numbers spelled out.

    Raises
    ------
    OptionError
        If `pattern` is no regular expression, or finds something in every token.

    Notes
    -----
    Source: whisper.cpp, `suppress_regex`, which wants the whole token to match: ``^[0-9]+$`` means that here. Tokens
    mostly begin with a space.
    """
    try:
        finds = re.compile(pattern).search
    except re.error as error:
        place = "" if error.pos is None else f" at position {error.pos}"
        raise OptionError("suppress_regex", pattern, f"a regular expression; {error.msg}{place}") from None
    matching = frozenset(token for token in range(tokenizer.eot) if finds(tokenizer.describe(token)))
    if len(matching) == tokenizer.eot:
        raise OptionError("suppress_regex", pattern, "a regular expression that leaves some tokens")
    return matching
