"""Drafts out of text that is known already: they cost nothing.

Sources: Saxena 2023, "Prompt Lookup Decoding"; transformers, generation/candidate_generator.py,
PromptLookupCandidateGenerator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harken.decoding.drafts import Ask, Proposal

LONGEST_MATCH = 4
MOST_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Lookup:
    """Go on as some text went on where the same tokens stood in it.

    Parameters
    ----------
    texts : list of sequence of int
        One a row.
    same_audio : bool
        Whether the text of a row is an earlier hypothesis of what is being decoded: its beginning is what a row
        that has no tokens yet is expected to say, and of several places the one at the same distance is meant.
        Otherwise the text so far is searched too, and the last place is meant.
    shortest_match : int
        How many tokens have to be the same.
    claim : float
        Probability with which each token is taken to be right.
    allows : callable
        Whether a token may follow a prefix (`Rules.allows`); one that may not ends the proposal before it.
    """

    texts: Sequence[Sequence[int]]
    same_audio: bool = False
    shortest_match: int = 3
    claim: float = 0.5
    allows: Callable[[Sequence[int], int], bool] = lambda prefix, token: True
    forwards: int = 0

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Proposal:
        text = self.texts[ask.row] if self.same_audio else (*self.texts[ask.row], *ask.prefix)
        start = self._place(_spelled(text), _spelled(ask.prefix))
        if start is None:
            return Proposal()
        reach, tokens = 1.0, list[int]()
        for token in text[start : start + min(ask.limit, MOST_TOKENS)]:
            reach *= ask.chance(self.claim)
            if reach <= ask.least or not self.allows((*ask.prefix, *tokens), token):
                break
            tokens.append(token)
        return Proposal(tuple(tokens), (self.claim,) * len(tokens))

    def _place(self, text: str, prefix: str) -> int | None:
        """Where in the text it goes on behind the longest end of the prefix that is found there."""
        if self.same_audio and text.startswith(prefix):
            return len(prefix)
        for n in range(min(LONGEST_MATCH, len(prefix)), self.shortest_match - 1, -1):
            end = prefix[-n:]
            if self.same_audio:
                places = [i + n for i in range(len(text) - n) if text.startswith(end, i)]
                if places:
                    return min(places, key=lambda place: abs(place - len(prefix)))
            elif (found := text.rfind(end, 0, len(text) - 1)) >= 0:
                return found + n
        return None


def _spelled(tokens: Sequence[int]) -> str:
    """Tokens as characters, since strings are searched fast."""
    return "".join(map(chr, tokens))
