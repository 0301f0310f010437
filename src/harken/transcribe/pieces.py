"""Cut a recording and the text that is known of it into pieces that belong together.

What was heard, with its mistakes, stands between the two: where words of the text agree with words that were heard, it
is known when they are spoken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from harken.errors import AudioError
from harken.results import Word
from harken.text.languages import UNSPACED
from harken.transcribe.phrases import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some of the text, and between which times it is spoken."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A place between two words that were heard as the text has them."""

    at: int
    at_s: float
    pause_s: float


def pieces(
    text: str, heard: Sequence[Word], duration_s: float, longest_s: float, *, language: str
) -> Iterator[Piece]:
    """Pieces of a text, one after the other; together they are the text, and cover the recording.

    Each ends in the longest pause of its second half, if there is one.

    Parameters
    ----------
    text : str
        What is said in the recording.
    heard : sequence of Word
        What was heard in it.
    duration_s : float
        Length of the recording.
    longest_s : float
        Most seconds that a piece may have.
    language : str
        Code of the language: it says whether words are written apart.

    Raises
    ------
    AudioError
        If for so long nothing was heard that stands in the text.
    """
    cuts = list(_cuts(text, heard, language))
    start, start_s = 0, 0.0
    while duration_s - start_s > longest_s:
        ahead = [cut for cut in cuts if start_s < cut.at_s <= start_s + longest_s and cut.at > start]
        late = [cut for cut in ahead if cut.at_s > start_s + longest_s / 2] or ahead
        if not late:
            raise AudioError(
                f"the recording does not say what stands in the text, from {start_s:.2f} s on; "
                f"allowed are at most {longest_s:g} s without a word of it"
            )
        cut = max(late, key=lambda cut: (cut.pause_s, cut.at_s))
        yield Piece(text=text[start : cut.at], start_s=start_s, end_s=cut.at_s)
        start, start_s = cut.at, cut.at_s
    yield Piece(text=text[start:], start_s=start_s, end_s=duration_s)


def _cuts(text: str, heard: Sequence[Word], language: str) -> Iterator[_Cut]:
    """Between any two words that follow one another both in the text and in what was heard."""
    unit = r"\S" if language in UNSPACED else r"\S+"
    written = list(re.finditer(unit, text))
    spoken = [(match[0], word) for word in heard for match in re.finditer(unit, word.text)]
    matcher = SequenceMatcher(
        None, [plain(match[0]) for match in written], [plain(part) for part, _ in spoken], autojunk=False
    )
    for block in matcher.get_matching_blocks():
        for offset in range(1, block.size):
            (_, before), (_, word) = spoken[block.b + offset - 1 : block.b + offset + 1]
            if word is not before:
                yield _Cut(
                    at=written[block.a + offset].start(),
                    at_s=(before.end_s + word.start_s) / 2,
                    pause_s=word.start_s - before.end_s,
                )
