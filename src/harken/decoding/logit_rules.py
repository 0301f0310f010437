"""Logit rules: banned tokens, the grammar of timestamps, forced prefixes and hotwords.

The rules are data, and a pure function of the tokens picked so far. So verifying k draft tokens at once applies the
same rules as k single steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from harken.contract import GreedyRules, Ints, Logits, TokenRange
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.types import TIMESTAMP_STEP_S

HOTWORD_BONUS = 6.0
"""Bonus of a token that continues a hotword. A token that begins one gets the share of it that it spells, since the
first letter alone is weak evidence."""
BIAS_TOP_K, MAX_LOGPROB_GAP = 20, 8.0
"""Number of most probable tokens that may get a bonus, and how far they may be below the best, in log-probability."""
MAX_HOTWORD_CHARS = 100
"""Longest hotword: memory grows with the square of its length, as every prefix of it is kept."""
MAX_HOTWORDS_CHARS = 50_000
"""Most characters of all hotwords together, which take some 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HotwordBias:
    """Logit bonuses for the tokens of hotwords.

    Parameters
    ----------
    hotword_prefixes : mapping of bytes to float
        Every prefix of a hotword, the whole included, and its share of the hotword's length, above 0 to 1.
    max_bytes : int
        Bytes of the longest hotword.
    token_bytes : callable
        Returns the bytes of a text token.
    eot : int
        Ids below this one are text.
    """

    hotword_prefixes: Mapping[bytes, float]
    max_bytes: int
    token_bytes: Callable[[int], bytes]
    eot: int

    def apply(self, logits: Logits, prefixes: Sequence[Sequence[int]]) -> None:
        """Add the bonuses at each position of `logits`, given its prefix of picked tokens."""
        ids, logprobs = logits.top(BIAS_TOP_K)
        plausible = logprobs >= logprobs[:, :1] - MAX_LOGPROB_GAP
        rows = zip(prefixes, ids, plausible, strict=True)
        logits.bias([self.bonuses(prefix, row[mask].tolist()) for prefix, row, mask in rows])

    def bonuses(self, prefix: Sequence[int], candidates: Iterable[int]) -> dict[int, float]:
        """Return the bonus of each candidate that begins or continues a hotword after `prefix`."""
        partial_matches = self._partial_matches(prefix)
        at_word_start = not self._ends_in_word(prefix)
        bonuses: dict[int, float] = {}
        for token in candidates:
            spelling = self.token_bytes(token) if token < self.eot else b""
            if spelling and any(start + spelling in self.hotword_prefixes for start in partial_matches):
                bonuses[token] = HOTWORD_BONUS
            elif spelling in self.hotword_prefixes and (at_word_start or spelling.startswith(b" ")):
                bonuses[token] = HOTWORD_BONUS * self.hotword_prefixes[spelling]
        return bonuses

    def _partial_matches(self, prefix: Sequence[int]) -> list[bytes]:
        """Return every end of the text that is the beginning of a hotword."""
        matches, suffix = [], b""
        for index in range(len(prefix) - 1, -1, -1):
            if prefix[index] >= self.eot or len(suffix) >= self.max_bytes:
                break
            suffix = self.token_bytes(prefix[index]) + suffix
            if suffix in self.hotword_prefixes and (
                suffix.startswith(b" ") or not self._ends_in_word(prefix[:index])
            ):
                matches.append(suffix)
        return matches

    def _ends_in_word(self, prefix: Sequence[int]) -> bool:
        """Return whether the text ends with a letter that has upper and lower case, unlike those of Chinese."""
        if not prefix or prefix[-1] >= self.eot:
            return False
        last_char = self.token_bytes(prefix[-1]).decode(errors="ignore")[-1:]
        return last_char.lower() != last_char.upper()


def make_hotword_bias(tokenizer: Tokenizer, hotwords: Iterable[str]) -> HotwordBias | None:
    """Make the bias towards words, names and phrases as they are to be spelled; None for none.

    Each counts with a capital first letter too.

    Raises
    ------
    OptionError
        If a hotword is too long, or all of them together.
    """
    words = normalized_hotwords(hotwords)
    capitalised = [word[:1].upper() + word[1:] for word in words]
    hotword_prefixes: dict[bytes, float] = {}
    for word in {*words, *capitalised}:
        for spelled in (word.encode(), f" {word}".encode()):
            for n in range(1, len(spelled) + 1):
                hotword_prefixes[spelled[:n]] = max(n / len(spelled), hotword_prefixes.get(spelled[:n], 0.0))
    if not hotword_prefixes:
        return None
    return HotwordBias(
        hotword_prefixes=hotword_prefixes,
        max_bytes=max(map(len, hotword_prefixes)),
        token_bytes=lambda token: tokenizer.decode_bytes((token,)),
        eot=tokenizer.eot,
    )


def fitting_hotwords(words: Iterable[str]) -> tuple[str, ...]:
    """Return the first words that are allowed as hotwords: names of a whole home may be more."""
    fitting, left = [], MAX_HOTWORDS_CHARS
    for word in words:
        if len(word) <= min(left, MAX_HOTWORD_CHARS):
            fitting.append(word)
            left -= len(word)
    return tuple(fitting)


def normalized_hotwords(hotwords: Iterable[str]) -> tuple[str, ...]:
    """Return hotwords with single spaces between their words, without the blank ones.

    Raises
    ------
    OptionError
        If one is too long, or all of them together.
    """
    words = tuple(word for hotword in hotwords if (word := " ".join(hotword.split())))
    for word in words:
        if len(word) > MAX_HOTWORD_CHARS:
            raise OptionError(
                "hotwords", word, f"words and names of at most {MAX_HOTWORD_CHARS} characters each"
            )
    if sum(map(len, words)) > MAX_HOTWORDS_CHARS:
        raise OptionError("hotwords", words, f"at most {MAX_HOTWORDS_CHARS} characters in all")
    return words


_ID_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitRules:
    """The logit rules of one decode.

    Parameters
    ----------
    eot : int
        End of text.
    timestamp_begin : int
        Id of <|0.00|>; all ids from here on are timestamps.
    suppressed : ndarray of int64
        Ids never picked.
    first_banned : tuple of (int, int)
        Id ranges that may not be the first token.
    timestamps : bool
        Whether timestamps are decoded.
    max_initial_timestamp : int or None
        Highest id of the first timestamp.
    forced_prefix : tuple of int
        Text tokens that come first, behind the initial timestamp if timestamps are decoded.
    hotword_bias : HotwordBias or None
    """

    eot: int
    timestamp_begin: int
    suppressed: Ints
    first_banned: tuple[TokenRange, ...]
    timestamps: bool
    max_initial_timestamp: int | None
    forced_prefix: tuple[int, ...] = ()
    hotword_bias: HotwordBias | None = None

    def apply(
        self, logits: Logits, prefixes: Sequence[Sequence[int]], speech_ends: Sequence[int | None] = ()
    ) -> None:
        """Apply the rules to each position of `logits`, given its prefix of picked tokens and the end of speech."""
        logits.suppress_tokens(self.suppressed)
        ends = speech_ends or [None] * len(prefixes)
        logits.suppress_ranges([self.banned(*pair) for pair in zip(prefixes, ends, strict=True)])
        if self.hotword_bias is not None:
            self.hotword_bias.apply(logits, prefixes)
        if self.timestamps:
            logits.prefer_timestamps(self.timestamp_begin)

    @property
    def greedy(self) -> GreedyRules | None:
        """The rules behind the first token as data for a backend; None if they depend on more than that."""
        if self.forced_prefix or self.hotword_bias:
            return None
        begin = self.timestamp_begin if self.timestamps else None
        return GreedyRules(eot=self.eot, suppressed=self.suppressed, timestamp_begin=begin)

    def allows(self, prefix: Sequence[int], token: int) -> bool:
        """Return whether a token may follow `prefix`, as far as that does not depend on logits."""
        banned = any(start <= token < stop for start, stop in self.banned(prefix))
        return not (banned or (self.suppressed == token).any())

    def banned(self, prefix: Sequence[int], speech_end: int | None = None) -> list[TokenRange]:
        """Return the id ranges that may not follow `prefix`, the tokens picked after the prompt.

        Parameters
        ----------
        prefix : sequence of int
        speech_end : int or None
            Timestamp at which the speech of a self-contained window ends: a segment that opens before it has text. None
            if speech may go on behind the window.
        """
        position = len(prefix) - (1 if self.timestamps else 0)
        if 0 <= position < len(self.forced_prefix):
            return [(0, self.forced_prefix[position]), (self.forced_prefix[position] + 1, _ID_LIMIT)]
        spans = [] if prefix else list(self.first_banned)
        return [*spans, *self._banned_by_timestamps(prefix, speech_end)] if self.timestamps else spans

    def _banned_by_timestamps(self, prefix: Sequence[int], speech_end: int | None) -> list[TokenRange]:
        """Return the ranges that break the grammar: timestamps come in pairs, never decrease, and one comes first.

        Source: openai/whisper, decoding.py, ApplyTimestampRules.
        """
        begin, last_initial = self.timestamp_begin, self.max_initial_timestamp
        if not prefix:
            return [(0, begin)] if last_initial is None else [(0, begin), (last_initial + 1, _ID_LIMIT)]
        last_was_timestamp = prefix[-1] >= begin
        segment_opened = last_was_timestamp and (len(prefix) < 2 or prefix[-2] >= begin)
        spans: list[TokenRange] = []
        if segment_opened:
            spans.append((begin, _ID_LIMIT))
            # The model learned to leave a segment empty that a later window completes. Here none follows.
            if len(prefix) > 1 and speech_end is not None and prefix[-1] < speech_end:
                spans.append((self.eot, self.eot + 1))
        elif last_was_timestamp:
            spans.append((0, self.eot))
        last_timestamp = next((token for token in reversed(prefix) if token >= begin), None)
        if last_timestamp is not None:
            segment_closing = last_was_timestamp and not segment_opened
            spans.append((begin, last_timestamp if segment_closing else last_timestamp + 1))
        return spans


def make_logit_rules(
    tokenizer: Tokenizer,
    *,
    timestamps: bool,
    suppress_tokens: Iterable[int] = (-1,),
    suppress_blank: bool = True,
    max_initial_timestamp_s: float | None = 1.0,
    suppress_regex: str | None = None,
    forced_prefix: Sequence[int] = (),
    hotwords: Iterable[str] = (),
) -> LogitRules:
    """Make the rules of a decode for a vocabulary.

    Parameters
    ----------
    tokenizer : Tokenizer
    timestamps : bool
        Whether timestamps are decoded.
    suppress_tokens : iterable of int
        Ids never picked; -1 stands for the symbols that are not spoken.
    suppress_blank : bool
        Whether the first token may be neither a blank nor the end of text.
    max_initial_timestamp_s : float or None
        Latest start of the first segment, in seconds; None for no limit.
    suppress_regex : str or None
        Text tokens that this regular expression matches somewhere are never picked (see `matching_tokens`).
    forced_prefix : sequence of int
        Text tokens that the window must begin with, even if they are suppressed.
    hotwords : iterable of str
        Words and names to expect (see `make_hotword_bias`).

    Raises
    ------
    OptionError
        If `suppress_regex` is not a regular expression; if it and `suppress_tokens` leave no text, or no timestamp to
        begin with; or if hotwords are too long.

    Notes
    -----
    Source: openai/whisper, decoding.py, DecodingTask._get_suppress_tokens, SuppressBlank.
    """
    requested = set(suppress_tokens)
    suppressed = requested - {-1}
    if -1 in requested:
        suppressed |= set(tokenizer.non_speech_tokens)
    suppressed |= {tokenizer.transcribe, tokenizer.translate, tokenizer.sot}
    suppressed |= {tokenizer.sot_prev, tokenizer.sot_lm, tokenizer.no_speech}
    if timestamps:
        suppressed.add(tokenizer.no_timestamps)
    if suppress_regex is not None:
        suppressed |= matching_tokens(tokenizer, suppress_regex)
    max_initial_timestamp = None
    if max_initial_timestamp_s is not None:
        max_initial_timestamp = tokenizer.timestamp_begin + round(max_initial_timestamp_s / TIMESTAMP_STEP_S)
    without_text = {token for token in suppressed.union(tokenizer.blank_tokens) if 0 <= token < tokenizer.eot}
    first_timestamps = range(tokenizer.timestamp_begin, (max_initial_timestamp or tokenizer.n_vocab - 1) + 1)
    # Where nothing may be picked, probabilities are not numbers.
    if len(without_text) == tokenizer.eot or (timestamps and suppressed.issuperset(first_timestamps)):
        allowed = "ids that, with suppress_regex, leave some text, and a timestamp to begin with"
        raise OptionError("suppress_tokens", tuple(sorted(requested)), allowed)
    suppressed -= set(forced_prefix)
    return LogitRules(
        eot=tokenizer.eot,
        timestamp_begin=tokenizer.timestamp_begin,
        suppressed=np.array(sorted(suppressed), np.int64),
        first_banned=tuple((token, token + 1) for token in tokenizer.blank_tokens) if suppress_blank else (),
        timestamps=timestamps,
        max_initial_timestamp=max_initial_timestamp,
        forced_prefix=tuple(forced_prefix),
        hotword_bias=make_hotword_bias(tokenizer, hotwords),
    )


@lru_cache(maxsize=8)
def matching_tokens(tokenizer: Tokenizer, pattern: str) -> frozenset[int]:
    """Return the text tokens that a regular expression matches somewhere: without ``[0-9]``, numbers are spelled out.

    Raises
    ------
    OptionError
        If `pattern` is not a regular expression, or matches every token.

    Notes
    -----
    Source: whisper.cpp, `suppress_regex`, where the whole token has to match; here that is ``^[0-9]+$``. Most tokens
    begin with a space.
    """
    search = compile_suppress_regex(pattern).search
    matching = frozenset(token for token in range(tokenizer.eot) if search(tokenizer.describe_token(token)))
    if len(matching) == tokenizer.eot:
        raise OptionError("suppress_regex", pattern, "a regular expression that leaves some tokens")
    return matching


def compile_suppress_regex(pattern: str) -> re.Pattern[str]:
    """Compile the regular expression of tokens to suppress.

    Raises
    ------
    OptionError
        If it is none, has numbers or brackets beyond what `re` can handle, or could take forever to match.
    """
    try:
        compiled = re.compile(pattern)
        if _ways(_parser.parse(pattern)) <= _MOST_WAYS:
            return compiled
        reason = "no repetition or alternative inside of a repetition, as it may never end"
    except re.error as error:
        position = "" if error.pos is None else f" at position {error.pos}"
        reason = f"{error.msg}{position}"
    except OverflowError as error:
        reason = str(error)
    except RecursionError:
        reason = "its brackets are nested too deeply"
    raise OptionError("suppress_regex", pattern, f"a regular expression; {reason}")


_LONGEST_TOKEN = 130  # characters
_MOST_WAYS = 10_000_000


def _ways(parsed: Iterable[Any]) -> float:
    """Return a bound of the ways in which `re` can try a part of an expression on a token: what a match may cost.

    ``(a+)+`` has 2 to the power of the token's length, and no thread can interrupt such a match.
    """
    ways = 1.0
    for kind, argument in parsed:
        if kind in (_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT):
            least, most = (min(count, _LONGEST_TOKEN) for count in argument[:2])
            inner = _ways(argument[2])
            ways *= inf if inner > 1 and most > 23 else (most - least + 1) * inner**most
        elif kind is _parser.BRANCH:
            ways *= sum(map(_ways, argument[1]))
        else:  # groups, assertions and conditions hold further expressions
            parts = argument if isinstance(argument, tuple) else (argument,)
            for part in parts:
                ways *= _ways(part) if isinstance(part, _parser.SubPattern) else 1
        if ways > _MOST_WAYS:
            return inf
    return ways
