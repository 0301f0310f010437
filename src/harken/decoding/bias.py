"""Hotwords: a bonus for tokens that spell them, where the model finds these plausible by itself.

What has been spelled of a hotword is read off the prefix, so the rule holds no state, like all rules. Spellings are
compared as bytes: it does not matter how a word is cut into tokens. Why it is so: docs/decisions/hotwords.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    beginnings : frozenset of bytes
        Whatever a hotword may begin with, the whole word included.
    piece : callable
        Bytes of a text token.
    eot : int
        Ids below this one are text.
    start, further : float
        Added to the logit of a token that begins a hotword, and of one that goes on with it.
    margin : float
        A token that is further than this below the best one, in log-probability, gets nothing.
    """

    beginnings: frozenset[bytes]
    piece: Callable[[int], bytes]
    eot: int
    start: float = 4.0
    further: float = 6.0
    margin: float = 8.0

    def apply(self, logits: Logits, prefixes: Sequence[Sequence[int]]) -> None:
        """Add the bonuses at each position of `logits`, by its prefix of sampled tokens."""
        ids, logprobs = logits.top(CANDIDATES)
        plausible = logprobs >= logprobs[:, :1] - self.margin
        logits.bias(
            [
                self.bonuses(prefix, row[near].tolist())
                for prefix, row, near in zip(prefixes, ids, plausible, strict=True)
            ]
        )

    def bonuses(self, prefix: Sequence[int], candidates: Iterable[int]) -> dict[int, float]:
        """Bonus of each candidate with which, after `prefix`, a hotword begins or goes on."""
        begun = self._begun(prefix)
        apart = not self._in_word(prefix)
        bonuses: dict[int, float] = {}
        for token in candidates:
            piece = self.piece(token) if token < self.eot else b""
            if any(start + piece in self.beginnings for start in begun if piece):
                bonuses[token] = self.further
            elif piece in self.beginnings and (apart or piece.startswith(b" ")):
                bonuses[token] = self.start
        return bonuses

    def _begun(self, prefix: Sequence[int]) -> list[bytes]:
        """What the last tokens of the text spell, where a hotword may begin with that."""
        begun, end = [], b""
        for place in range(len(prefix) - 1, -1, -1):
            if prefix[place] >= self.eot:
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
        Words and names, of several words too; each as it is to be spelled, and with its first letter as a capital.

    Returns
    -------
    Bias or None
    """
    words = [" ".join(word.split()) for word in hotwords]
    capitalised = [word[:1].upper() + word[1:] for word in words]
    spelled = [
        (" " * spaced + word).encode() for word in {*words, *capitalised} - {""} for spaced in (False, True)
    ]
    if not spelled:
        return None
    return Bias(
        beginnings=frozenset(word[:n] for word in spelled for n in range(1, len(word) + 1)),
        piece=lambda token: tokenizer.decode_bytes((token,)),
        eot=tokenizer.eot,
    )
