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
    timestamp_begin : int or None
        Ids from here on are timestamps: a hypothesis that has none, as of a stream, goes on behind what was said.
    """

    texts: Sequence[Sequence[int]]
    same_audio: bool = False
    shortest_match: int = 3
    claim: float = 0.5
    allows: Callable[[Sequence[int], int], bool] = lambda prefix, token: True
    timestamp_begin: int | None = None
    forwards: int = 0

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Proposal:
        reach, tokens = 1.0, list[int]()
        for token in self._expected(ask.row, ask.prefix)[: min(ask.limit, MOST_TOKENS)]:
            reach *= ask.chance(self.claim)
            if reach <= ask.least or not self.allows((*ask.prefix, *tokens), token):
                break
            tokens.append(token)
        return Proposal(tuple(tokens), (self.claim,) * len(tokens))

    def _expected(self, row: int, prefix: Sequence[int]) -> Sequence[int]:
        """What comes next as far as the text tells."""
        text = self.texts[row] if self.same_audio else (*self.texts[row], *prefix)
        said = [token for token in prefix if not self._is_time(token)]
        timed = len(said) == len(prefix) or any(map(self._is_time, text))
        start = self._place(_spelled(text), _spelled(prefix if timed else said))
        if start is None:
            return ()
        # A segment usually begins where the one before it ended.
        ended = not timed and start < len(text) and [self._is_time(its) for its in prefix[-2:]] == [False, True]
        return (*prefix[-1:], *text[start:]) if ended else text[start:]

    def _is_time(self, token: int) -> bool:
        return self.timestamp_begin is not None and token >= self.timestamp_begin

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
