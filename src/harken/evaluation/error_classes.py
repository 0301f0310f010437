"""Classes of word errors: lost and invented passages, names, numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise, zip_longest

from harken.evaluation.error_rate import (
    Alignment,
    AlignmentChunk,
    ErrorCounts,
    count_errors,
    is_spaced,
    normalizer,
)

MIN_RUN = 3
"""Fewest words one after another that are a passage, and not slips."""
NOUNS_WITH_CAPITALS = {"de", "lb"}
"""Languages in which a capital does not tell a name."""

_WORD = re.compile(r"[^\W\d_]+")
_INSIDE_A_SENTENCE = re.compile(r"[\s,;'\u2019-]*")


def count_error_classes(reference: str, language: str | None, alignment: Alignment) -> dict[str, ErrorCounts]:
    """Count the errors of each class; the words of names and numbers alone are the length of theirs.

    Parameters
    ----------
    reference : str
        The reference text with its capitals.
    language : str or None
        Code of its language.
    alignment : sequence of AlignmentChunk
        The normalized texts. In a language without spaces the units are letters.

    Returns
    -------
    dict of str to ErrorCounts
        ``deleted_in_runs`` and ``inserted_in_runs``: `MIN_RUN` words or more one after another. ``names``: words with
        a capital and small letters inside a sentence of the reference; none where all nouns have one. A word that is
        in small letters elsewhere in the text is none.
        ``numbers``: words of the normalized reference with digits, so in English number words too.
    """
    names = frozenset(_find_names(reference, language))
    length = count_errors(alignment).reference_length
    runs = [chunk.error_counts for chunk in alignment if not (chunk.reference and chunk.hypothesis)]
    deleted = sum(run.deletions for run in runs if run.deletions >= MIN_RUN)
    inserted = sum(run.insertions for run in runs if run.insertions >= MIN_RUN)
    return {
        "deleted_in_runs": ErrorCounts(hits=length - deleted, deletions=deleted),
        "inserted_in_runs": ErrorCounts(hits=length, insertions=inserted),
        "names": _count_words(alignment, names.__contains__),
        "numbers": _count_words(alignment, lambda word: any(map(str.isdigit, word))),
    }


def _count_words(alignment: Alignment, counts: Callable[[str], bool]) -> ErrorCounts:
    """Count what became of those words of the reference that count."""
    return count_errors(
        [
            AlignmentChunk((word,), (found,) if found else ())
            for chunk in alignment
            for word, found in zip_longest(chunk.reference, chunk.hypothesis, fillvalue="")
            if counts(word)
        ]
    )


def _find_names(text: str, language: str | None) -> Iterator[str]:
    """Yield the normalized words that have a capital inside a sentence, and are nowhere in small letters."""
    if language is None or language in NOUNS_WITH_CAPITALS or not is_spaced(language):
        return
    normalize = normalizer(language)
    words = [*_WORD.finditer(text)]
    small = {word[0] for word in words if word[0].islower()}
    for before, word in pairwise(words):
        inside = _INSIDE_A_SENTENCE.fullmatch(text, before.end(), word.start())
        if inside and word[0][0].isupper() and not word[0].isupper() and word[0].lower() not in small:
            yield from normalize(word[0]).split()
