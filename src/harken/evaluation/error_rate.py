"""Error rates: normalization of two texts, errors of words and characters and their classes, bootstrap intervals."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, reduce
from itertools import pairwise, zip_longest
from operator import add
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harken.errors import importing
from harken.text.languages import LANGUAGES_WITHOUT_SPACES


@contextmanager
def require_eval_extra() -> Iterator[None]:
    """Import modules of the extra inside this block; one that is not installed raises `BackendUnavailable`."""
    with importing("eval", "evaluation"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in their docstrings warn at the first compilation
        yield


# The reference's tokenizer splits Khmer at spaces, but those separate phrases, not words.
_SCORED_BY_CHARACTER = LANGUAGES_WITHOUT_SPACES | {"km"}


def is_spaced(language: str | None) -> bool:
    """Return whether a language separates words by spaces; others are scored by character."""
    return language not in _SCORED_BY_CHARACTER


@cache
def normalizer(language: str | None) -> Callable[[str], str]:
    """Return the function that normalizes texts of a language: to its words, separated by single spaces.

    Source: the Whisper paper, appendix C, and openai/whisper, normalizers/. English has rules of its own for
    spelling, numbers and contractions; all other languages, and unknown ones, lose only case, punctuation and marks.
    In a language without spaces every letter (grapheme cluster) becomes a word.
    """
    with require_eval_extra():
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer

    split_letters = not is_spaced(language)
    clean: Any = (
        EnglishTextNormalizer() if language == "en" else BasicTextNormalizer(split_letters=split_letters)
    )
    return lambda text: str(clean(text)).strip()


class Summed:
    """A dataclass of numbers that are added field by field."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Counted(Summed, ABC):
    """Errors, and the length of the reference in the same unit: words, characters or seconds."""

    __slots__ = ()

    @property
    @abstractmethod
    def errors(self) -> float: ...

    @property
    @abstractmethod
    def reference_length(self) -> float: ...

    @property
    def rate(self) -> float | None:
        """Errors divided by the length of the reference; None where that is 0."""
        return self.errors / self.reference_length if self.reference_length else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounts(Counted):
    """Numbers of correct, substituted, deleted and inserted units (words or characters)."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def errors(self) -> int:
        """Sum of substitutions, deletions and insertions: the edit distance."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def reference_length(self) -> int:
        """Number of units in the reference."""
        return self.hits + self.substitutions + self.deletions


@dataclass(frozen=True, slots=True)
class AlignmentChunk:
    """A run of aligned words: equal, substituted, deleted (empty `hypothesis`) or inserted (empty `reference`)."""

    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """True if reference and hypothesis are the same."""
        return self.reference == self.hypothesis

    @property
    def error_counts(self) -> ErrorCounts:
        """Its words, counted as what they are."""
        if self.equal:
            return ErrorCounts(hits=len(self.reference))
        if self.reference and self.hypothesis:
            return ErrorCounts(substitutions=len(self.reference))
        return ErrorCounts(deletions=len(self.reference), insertions=len(self.hypothesis))


Alignment = Sequence[AlignmentChunk]
"""Two texts, aligned, in order."""


def count_word_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Count the word errors between two normalized texts."""
    return count_errors(align_words(reference, hypothesis))


def count_errors(alignment: Alignment) -> ErrorCounts:
    """Count the errors of an alignment."""
    return reduce(add, (chunk.error_counts for chunk in alignment), ErrorCounts())


def count_character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Count the character errors between two normalized texts; spaces count as characters."""
    counted = _jiwer().process_characters(reference, hypothesis)
    return ErrorCounts(**{kind.name: getattr(counted, kind.name) for kind in fields(ErrorCounts)})


def align_words(reference: str, hypothesis: str) -> tuple[AlignmentChunk, ...]:
    """Align the words of two normalized texts and return the chunks in order."""
    alignment = _jiwer().process_words(reference, hypothesis)
    (references,), (hypotheses,), (chunks,) = alignment.references, alignment.hypotheses, alignment.alignments
    return tuple(
        AlignmentChunk(
            tuple(references[chunk.ref_start_idx : chunk.ref_end_idx]),
            tuple(hypotheses[chunk.hyp_start_idx : chunk.hyp_end_idx]),
        )
        for chunk in chunks
    )


def _jiwer() -> Any:
    with require_eval_extra():
        import jiwer
    return jiwer


MIN_RUN = 3
"""Fewest words one after another that are a passage, and not slips."""
NOUNS_WITH_CAPITALS = {"de", "lb"}
"""Languages in which a capital does not tell a name."""

_WORD = re.compile(r"[^\W\d_]+")
_INSIDE_A_SENTENCE = re.compile(r"[\s,;'\u2019-]*")


def count_error_classes(reference: str, language: str | None, alignment: Alignment) -> dict[str, ErrorCounts]:
    """Count the errors of each class; the words of names and numbers alone are the length of theirs.

    The reference has its capitals, and the alignment is of the normalized texts; in a language without spaces their
    units are letters.

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
    runs = [chunk.error_counts for chunk in alignment]
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
    written = {word[0] for word in words}
    for before, word in pairwise(words):
        inside = _INSIDE_A_SENTENCE.fullmatch(text, before.end(), word.start())
        if inside and word[0][0].isupper() and not word[0].isupper() and word[0].lower() not in written:
            yield from normalize(word[0]).split()


SEED = 0
RESAMPLES = 1000
RESAMPLES_PER_BATCH = 100
"""Number of test sets drawn at once; all of them together would need much memory."""
CONFIDENCE_LEVEL = 0.95


def bootstrap_error_rates(error_counts: Sequence[Counted]) -> NDArray[np.float64]:
    """Return the error rates of bootstrap test sets, each drawn with replacement and as large as the original.

    The counts are of independent units, each with a reference that is not empty. Equal counts give equal rates. The
    units drawn depend only on their number, so the rates of two engines on one test set can be subtracted.

    Source: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation" (ICASSP 2004).
    """
    totals = np.array([(counts.errors, counts.reference_length) for counts in error_counts], np.float64)
    rng = np.random.default_rng(SEED)
    shape = (RESAMPLES_PER_BATCH, len(totals))
    resampled_totals = [
        totals[rng.integers(len(totals), size=shape)].sum(axis=1)
        for _ in range(RESAMPLES // RESAMPLES_PER_BATCH)
    ]
    errors, reference = np.concatenate(resampled_totals).T
    return np.asarray(errors / reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRate:
    """The errors of many recordings together, or the difference of two engines on the same ones."""

    rate: float  # errors divided by the length of the reference
    confidence_interval: tuple[float, float] | None  # of 95 %; a single recording does not represent others
    error_counts: Any = None  # their sum; None for a difference
    # The rates of the bootstrap test sets that the interval is of, shape (1000,).
    resampled: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)


def error_rate_of(counts: Sequence[Any]) -> ErrorRate | None:
    """Return the rate over all counts, each of a unit that is resampled; None where there is nothing to be wrong about.

    Counts without a reference have no rate of their own: their errors are in the total, but they are not resampled.
    """
    length = sum(count.reference_length for count in counts)
    if not length:
        return None
    scored = [count for count in counts if count.reference_length]
    resampled = bootstrap_error_rates(scored) if len(scored) > 1 else None
    return ErrorRate(
        rate=sum(count.errors for count in counts) / length,
        confidence_interval=None if resampled is None else confidence_interval(resampled),
        error_counts=reduce(add, counts),
        resampled=resampled,
    )


def difference(first: ErrorRate | None, second: ErrorRate | None) -> ErrorRate | None:
    """Return the first rate minus the second; None if one is missing, or they are not of the same references.

    The bootstrap draws the same test sets for both, so the interval is narrower than their own intervals suggest.
    """
    if not first or not second or first.error_counts.reference_length != second.error_counts.reference_length:
        return None
    interval = None
    if first.resampled is not None and second.resampled is not None:
        interval = confidence_interval(first.resampled - second.resampled)
    return ErrorRate(rate=first.rate - second.rate, confidence_interval=interval)


def confidence_interval(rates: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 2.5th and the 97.5th percentile of some rates."""
    low, high = np.quantile(rates, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    return float(low), float(high)
