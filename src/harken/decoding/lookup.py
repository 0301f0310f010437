"""Drafts out of text that is known already: they cost nothing.

Sources: Saxena 2023, "Prompt Lookup Decoding"; transformers, generation/candidate_generator.py,
PromptLookupCandidateGenerator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harken.decoding.candidate_generator import DraftRequest, DraftTokens

MAX_NGRAM_SIZE = 4
MAX_CONTINUATION_TOKENS = 96


@dataclass(frozen=True, slots=True)
class PromptLookup:
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

    source_tokens: Sequence[Sequence[int]]
    same_audio: bool = False
    min_ngram_size: int = 3
    confidence: float = 0.5
    allows: Callable[[Sequence[int], int], bool] = lambda prefix, token: True
    timestamp_begin: int | None = None
    forwards: int = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftTokens]:
        return [self._propose(request) for request in requests]

    def _propose(self, request: DraftRequest) -> DraftTokens:
        joint_prob, tokens = 1.0, list[int]()
        for token in self._continuation(request.row, request.prefix)[
            : min(request.max_tokens, MAX_CONTINUATION_TOKENS)
        ]:
            joint_prob *= request.acceptance_prob(self.confidence)
            if joint_prob <= request.verify_threshold or not self.allows((*request.prefix, *tokens), token):
                break
            tokens.append(token)
        return DraftTokens(tuple(tokens), (self.confidence,) * len(tokens))

    def _continuation(self, row: int, prefix: Sequence[int]) -> Sequence[int]:
        """What comes next as far as the text tells."""
        source = self.source_tokens[row] if self.same_audio else (*self.source_tokens[row], *prefix)
        text_tokens = [token for token in prefix if not self._is_timestamp(token)]
        match_timestamps = len(text_tokens) == len(prefix) or any(map(self._is_timestamp, source))
        start = self._match_end(_as_string(source), _as_string(prefix if match_timestamps else text_tokens))
        if start is None:
            return ()
        # A segment usually begins where the one before it ended.
        segment_ended = (
            not match_timestamps
            and start < len(source)
            and [self._is_timestamp(token_id) for token_id in prefix[-2:]] == [False, True]
        )
        return (*prefix[-1:], *source[start:]) if segment_ended else source[start:]

    def _is_timestamp(self, token: int) -> bool:
        return self.timestamp_begin is not None and token >= self.timestamp_begin

    def _match_end(self, source: str, prefix: str) -> int | None:
        """Where in the text it goes on behind the longest end of the prefix that is found there."""
        if self.same_audio and source.startswith(prefix):
            return len(prefix)
        for n in range(min(MAX_NGRAM_SIZE, len(prefix)), self.min_ngram_size - 1, -1):
            ngram = prefix[-n:]
            if self.same_audio:
                match_ends = [i + n for i in range(len(source) - n) if source.startswith(ngram, i)]
                if match_ends:
                    return min(match_ends, key=lambda match_end: abs(match_end - len(prefix)))
            elif (found := source.rfind(ngram, 0, len(source) - 1)) >= 0:
                return found + n
        return None


def _as_string(tokens: Sequence[int]) -> str:
    """Tokens as characters, since strings are searched fast."""
    return "".join(map(chr, tokens))
