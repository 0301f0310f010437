"""Hotwords: a bonus for tokens that spell them, where the model finds these plausible by itself.

What has been spelled of a hotword is read off the prefix, so the rule holds no state, like all rules. Spellings are
compared as bytes: it does not matter how a word is cut into tokens. What was measured, and the rejected alternatives:
docs/decisions/hotwords.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harken.contract import Logits
from harken.text import Tokenizer

CANDIDATES = 20
"""How many of the most probable tokens are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bias:
    """Bonuses for the tokens of some words.

    Parameters
    ----------
    beginnings : mapping of bytes to float
        Whatever a hotword may begin with, up to the whole of it, and which part of the hotword that is, above 0 to 1.
    longest : int
        Bytes of the longest hotword.
    piece : callable
        Bytes of a text token.
    eot : int
        Ids below this one are text.
    strength : float
        Added to the logit of a token that goes on with a hotword. One that begins a hotword gets the part of it that it
        spells: all of it says much, its first letter little.
    margin : float
        A token that is further than this below the best one, in log-probability, gets nothing.
    """

    beginnings: Mapping[bytes, float]
    longest: int
    piece: Callable[[int], bytes]
    eot: int
    strength: float = 6.0
    margin: float = 8.0

    def apply(self, logits: Logits, prefixes: Sequence[Sequence[int]]) -> None:
        """Add the bonuses at each position of `logits`, by its prefix of sampled tokens."""
        ids, logprobs = logits.top(CANDIDATES)
        plausible = logprobs >= logprobs[:, :1] - self.margin
        rows = zip(prefixes, ids, plausible, strict=True)
        logits.bias([self.bonuses(prefix, row[near].tolist()) for prefix, row, near in rows])

    def bonuses(self, prefix: Sequence[int], candidates: Iterable[int]) -> dict[int, float]:
        """Bonus of each candidate with which, after `prefix`, a hotword begins or goes on."""
        begun = self._begun(prefix)
        apart = not self._in_word(prefix)
        bonuses: dict[int, float] = {}
        for token in candidates:
            piece = self.piece(token) if token < self.eot else b""
            if piece and any(start + piece in self.beginnings for start in begun):
                bonuses[token] = self.strength
            elif piece in self.beginnings and (apart or piece.startswith(b" ")):
                bonuses[token] = self.strength * self.beginnings[piece]
        return bonuses

    def _begun(self, prefix: Sequence[int]) -> list[bytes]:
        """What the last tokens of the text spell, wherever a hotword may begin with that."""
        begun, end = [], b""
        for place in range(len(prefix) - 1, -1, -1):
            if prefix[place] >= self.eot or len(end) >= self.longest:
                break
            end = self.piece(prefix[place]) + end
            if end in self.beginnings and (end.startswith(b" ") or not self._in_word(prefix[:place])):
                begun.append(end)
        return begun

    def _in_word(self, prefix: Sequence[int]) -> bool:
        """Whether the text ends with a letter; those without upper and lower case, as in Chinese, do not count."""
        if not prefix or prefix[-1] >= self.eot:
            return False
        last = self.piece(prefix[-1]).decode(errors="ignore")[-1:]
        return last.lower() != last.upper()


def make_bias(tokenizer: Tokenizer, hotwords: Iterable[str]) -> Bias | None:
    """Bias towards some words, None for no words.

    Parameters
    ----------
    tokenizer : Tokenizer
    hotwords : iterable of str
        Words and names, of several words too; each as it is to be spelled, and with a capital as its first letter.

    Returns
    -------
    Bias or None
    """
    words = [" ".join(word.split()) for word in hotwords]
    capitalised = [word[:1].upper() + word[1:] for word in words]
    beginnings: dict[bytes, float] = {}
    for word in {*words, *capitalised} - {""}:
        for spelled in (word.encode(), f" {word}".encode()):
            for n in range(1, len(spelled) + 1):
                beginnings[spelled[:n]] = max(n / len(spelled), beginnings.get(spelled[:n], 0.0))
    if not beginnings:
        return None
    return Bias(
        beginnings=beginnings,
        longest=max(map(len, beginnings)),
        piece=lambda token: tokenizer.decode_bytes((token,)),
        eot=tokenizer.eot,
    )
