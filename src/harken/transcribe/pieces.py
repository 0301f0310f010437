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
from harken.text.languages import LANGUAGES_WITHOUT_SPACES
from harken.transcribe.phrases import normalize_phrase


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChunk:
    """Some of the text, and between which times it is spoken."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Anchor:
    """A place between two words that were heard as the text has them."""

    text_index: int
    time_s: float
    pause_s: float


def split_text(
    text: str, recognized: Sequence[Word], duration_s: float, max_chunk_s: float, *, language: str
) -> Iterator[TextChunk]:
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
    anchors = list(_anchors(text, recognized, language))
    start, start_s = 0, 0.0
    while duration_s - start_s > max_chunk_s:
        candidates = [
            cut for cut in anchors if start_s < cut.time_s <= start_s + max_chunk_s and cut.text_index > start
        ]
        in_second_half = [cut for cut in candidates if cut.time_s > start_s + max_chunk_s / 2] or candidates
        if not in_second_half:
            raise AudioError(
                f"the recording does not say what stands in the text, from {start_s:.2f} s on; "
                f"allowed are at most {max_chunk_s:g} s without a word of it"
            )
        anchor = max(in_second_half, key=lambda cut: (cut.pause_s, cut.time_s))
        yield TextChunk(text=text[start : anchor.text_index], start_s=start_s, end_s=anchor.time_s)
        start, start_s = anchor.text_index, anchor.time_s
    yield TextChunk(text=text[start:], start_s=start_s, end_s=duration_s)


def _anchors(text: str, recognized: Sequence[Word], language: str) -> Iterator[_Anchor]:
    """Between any two words that follow one another both in the text and in what was heard."""
    unit = r"\S" if language in LANGUAGES_WITHOUT_SPACES else r"\S+"
    text_units = list(re.finditer(unit, text))
    recognized_units = [(match[0], word) for word in recognized for match in re.finditer(unit, word.text)]
    matcher = SequenceMatcher(
        None,
        [normalize_phrase(match[0]) for match in text_units],
        [normalize_phrase(part) for part, _ in recognized_units],
        autojunk=False,
    )
    for block in matcher.get_matching_blocks():
        for offset in range(1, block.size):
            (_, before), (_, word) = recognized_units[block.b + offset - 1 : block.b + offset + 1]
            if word is not before:
                yield _Anchor(
                    text_index=text_units[block.a + offset].start(),
                    time_s=(before.end_s + word.start_s) / 2,
                    pause_s=word.start_s - before.end_s,
                )
