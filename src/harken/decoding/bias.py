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

BIAS_TOP_K = 20
"""How many of the most probable tokens are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HotwordBias:
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

    hotword_prefixes: Mapping[bytes, float]
    max_bytes: int
    token_bytes: Callable[[int], bytes]
    eot: int
    strength: float = 6.0
    max_logprob_gap: float = 8.0

    def apply(self, logits: Logits, prefixes: Sequence[Sequence[int]]) -> None:
        """Add the bonuses at each position of `logits`, by its prefix of sampled tokens."""
        ids, logprobs = logits.top(BIAS_TOP_K)
        plausible = logprobs >= logprobs[:, :1] - self.max_logprob_gap
        rows = zip(prefixes, ids, plausible, strict=True)
        logits.bias([self.bonuses(prefix, row[mask].tolist()) for prefix, row, mask in rows])

    def bonuses(self, prefix: Sequence[int], candidates: Iterable[int]) -> dict[int, float]:
        """Bonus of each candidate with which, after `prefix`, a hotword begins or goes on."""
        partial_matches = self._partial_matches(prefix)
        at_word_start = not self._ends_in_word(prefix)
        bonuses: dict[int, float] = {}
        for token in candidates:
            spelling = self.token_bytes(token) if token < self.eot else b""
            if spelling and any(start + spelling in self.hotword_prefixes for start in partial_matches):
                bonuses[token] = self.strength
            elif spelling in self.hotword_prefixes and (at_word_start or spelling.startswith(b" ")):
                bonuses[token] = self.strength * self.hotword_prefixes[spelling]
        return bonuses

    def _partial_matches(self, prefix: Sequence[int]) -> list[bytes]:
        """What the last tokens of the text spell, wherever a hotword may begin with that."""
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
        """Whether the text ends with a letter; those without upper and lower case, as in Chinese, do not count."""
        if not prefix or prefix[-1] >= self.eot:
            return False
        last_char = self.token_bytes(prefix[-1]).decode(errors="ignore")[-1:]
        return last_char.lower() != last_char.upper()


def make_hotword_bias(tokenizer: Tokenizer, hotwords: Iterable[str]) -> HotwordBias | None:
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
    hotword_prefixes: dict[bytes, float] = {}
    for word in {*words, *capitalised} - {""}:
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
