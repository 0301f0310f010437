"""A text that a recording is expected to have, as a source of drafts: a script, an old transcript, subtitles."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_MATCH, SHORTEST_MATCH = 8, 3
"""Tokens that have to be the same for a place in the text to be found, most and fewest."""
MOST_SKIPPED = 8
"""Tokens at the end of a window that may differ from the text."""
LEAST_SLACK = 100
"""Tokens that may be missing from the text, or stand in it without being spoken, between two windows."""


class KnownText:
    """The text of a recording, and how far it has been spoken.

    Parameters
    ----------
    tokens : sequence of int
        Text tokens.
    context : int
        Most tokens of a window.
    """

    def __init__(self, tokens: Sequence[int], context: int) -> None:
        self._tokens, self._context, self._spoken = tuple(tokens), context, 0

    def ahead(self) -> tuple[int, ...]:
        """Return what is expected to be spoken next, of some windows that are decoded together."""
        return self._tokens[self._spoken : self._spoken + 2 * self._context]

    def advance(self, spoken: Sequence[int]) -> None:
        """Go on behind the text tokens of a window: to where the text has its last ones, else as far as it is long."""
        expected = self._spoken + len(spoken)
        for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
            for skipped in range(min(MOST_SKIPPED, len(spoken) - length) + 1):
                end = len(spoken) - skipped
                ngram = tuple(spoken[end - length : end])
                slack = LEAST_SLACK + len(spoken)
                starts = range(max(0, expected - slack), min(len(self._tokens), expected + slack))
                if matches := [start for start in starts if self._tokens[start : start + length] == ngram]:
                    found = min(matches, key=lambda start: abs(start + length + skipped - expected))
                    self._spoken = found + length + skipped
                    return
        self._spoken = min(expected, len(self._tokens))
