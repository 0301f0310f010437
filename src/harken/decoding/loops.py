"""Loops: text that repeats itself until the decoder runs out of tokens."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

STREAMED_REPEATS = {**dict.fromkeys(range(1, 4), 5), **dict.fromkeys(range(4, 11), 3)}
"""Least number of repetitions that make a loop in a stream, by the length of the unit in tokens: a stream starts anew
every hop, so it sees short loops only, and people do say "no, no, no"."""
REPEATS = {**dict.fromkeys(range(1, 9), 8), **dict.fromkeys(range(9, 41), 4)}
"""The same for whole windows, where a loop is also judged by the compression ratio."""
CHECK_EVERY = 16
"""Tokens between two looks for a loop."""


def compression_ratio(text: str) -> float:
    """Return the ratio by which a text deflates, high for repetition (openai/whisper, utils.py, compression_ratio)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def repetition_length(tokens: Sequence[int], repeats: Mapping[int, int]) -> int:
    """Return how many tokens at the end only repeat those before them, if that makes a loop; else 0.

    Parameters
    ----------
    tokens : sequence of int
    repeats : mapping of int to int
        Least number of repetitions that make a loop, by the length of the unit.
    """
    for period, least in repeats.items():
        length = 0
        while length + period < len(tokens) and tokens[-1 - length] == tokens[-1 - length - period]:
            length += 1
        if length >= (least - 1) * period:
            return length
    return 0


@dataclass(frozen=True, slots=True)
class LoopRule:
    """The rule that tells a loop from speech that repeats itself, for the text of a whole window.

    Parameters
    ----------
    decode : callable
        Text of some tokens.
    eot : int
        Ids from it on are no text: timestamps differ from repetition to repetition.
    max_ratio : float
        Compression ratio above which a text is rejected. What passes is no loop.
    """

    decode: Callable[[Sequence[int]], str]
    eot: int
    max_ratio: float

    def stops(self, tokens: Sequence[int]) -> bool:
        """Return whether a row ends here: every `CHECK_EVERY` tokens it is looked at, and ends in a loop."""
        return not len(tokens) % CHECK_EVERY and self.begins(tokens) is not None

    def begins(self, tokens: Sequence[int]) -> int | None:
        """Return the index of the first token that only repeats those before it up to the end; None without a loop."""
        text = [index for index, token in enumerate(tokens) if token < self.eot]
        length = repetition_length([tokens[index] for index in text], REPEATS)
        if not length or compression_ratio(self.decode(tokens).lstrip()) <= self.max_ratio:
            return None
        return text[-length]
