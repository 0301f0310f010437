"""The text of an item: deltas of committed words, which add up to the transcript."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from harken.results import Segment, Word

MIN_PROBABILITY = 1e-9


@dataclass(eq=False)
class Item:
    """An item: the audio of a turn, and the words in it.

    Attributes
    ----------
    id : str
    start_s, end_s : float
        Times in the session.
    text : str
        The deltas so far, joined. It becomes the transcript, so these are equal whatever the stream says.
    words : list of Word
        Of the final segments, with times in the stream.
    languages : list of str
    previous_id : str or None
        The item before it, once it is committed.
    """

    id: str
    start_s: float
    end_s: float
    text: str = ""
    words: list[Word] = field(default_factory=list)
    languages: list[str] = field(default_factory=list)
    previous_id: str | None = None
    _ahead: int = 0  # characters of deltas that no final segment has brought yet, without spaces

    def commit(self, words: Iterable[Word]) -> str:
        """Take words as they are committed, and return their delta."""
        delta = self._added("".join(word.text for word in words))
        self._ahead += _count(delta)
        return delta

    def finish(self, segment: Segment) -> tuple[str, list[Word]]:
        """Take a final segment; return the delta of what was not committed before, and its words."""
        self.words += segment.words
        if segment.language and segment.language not in self.languages:
            self.languages.append(segment.language)
        n_known = min(self._ahead, _count(segment.text))
        self._ahead -= n_known
        return self._added(_behind(segment.text, n_known)), _words_behind(segment.words, n_known)

    def end_utterance(self) -> None:
        """Note that final segments have brought all that was committed."""
        self._ahead = 0

    def _added(self, text: str) -> str:
        delta = text if self.text else text.lstrip()
        self.text += delta
        return delta


def logprobs_of(words: Iterable[Word]) -> list[dict[str, Any]]:
    """Return the log-probabilities of words: each has the logarithm of the mean probability of its tokens."""
    return [
        {
            "token": word.text,
            "bytes": [*word.text.encode()],
            "logprob": math.log(max(word.probability, MIN_PROBABILITY)),
        }
        for word in words
    ]


def _count(text: str) -> int:
    """Return the number of characters without spaces, which words and segments may have in other places."""
    return sum(not character.isspace() for character in text)


def _behind(text: str, n_characters: int) -> str:
    """Return what is behind some characters, spaces not counted."""
    for i, character in enumerate(text):
        if not n_characters:
            return text[i:]
        n_characters -= not character.isspace()
    return ""


def _words_behind(words: Iterable[Word], n_characters: int) -> list[Word]:
    behind = []
    for word in words:
        if n_characters <= 0:
            behind.append(word)
        n_characters -= _count(word.text)
    return behind
