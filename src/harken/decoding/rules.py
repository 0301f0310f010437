"""Which tokens may follow which: logit rules as data, a pure function of the tokens sampled so far.

Since nothing but the prefix decides, verifying k drafted tokens at once applies the same rules as k single steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Ints, Logits, Span
from harken.text import Tokenizer

TIMESTAMP_STEP_S = 0.02


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
    """

    eot: int
    timestamp_begin: int
    suppressed: Ints
    first_banned: tuple[Span, ...]
    timestamps: bool
    last_initial_timestamp: int | None

    def apply(self, logits: Logits, prefixes: Sequence[Sequence[int]]) -> None:
        """Ban, at each position of `logits`, what may not follow its prefix of sampled tokens."""
        logits.suppress(self.suppressed)
        logits.ban([self.banned(prefix) for prefix in prefixes])
        if self.timestamps:
            logits.prefer_timestamps(self.timestamp_begin)

    def banned(self, prefix: Sequence[int]) -> list[Span]:
        """Id ranges that may not follow `prefix`, the tokens sampled after the prompt."""
        spans = [] if prefix else list(self.first_banned)
        return [*spans, *self._banned_by_timestamps(prefix)] if self.timestamps else spans

    def _banned_by_timestamps(self, prefix: Sequence[int]) -> list[Span]:
        """Timestamps come in pairs, never decrease, and stand at the start.

        Source: openai/whisper, decoding.py, ApplyTimestampRules.
        """
        begin, everything = self.timestamp_begin, 1 << 31
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
    )
