"""Two texts side by side: how many words or characters were heard rightly, and which were not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.errors import BackendUnavailable
from harken.text.languages import LANGUAGES_WITHOUT_SPACES


@contextmanager
def require_eval_extra() -> Iterator[None]:
    """Import modules of the extra inside this block.

    Raises
    ------
    BackendUnavailable
        If one is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in their docstrings, where they are first compiled
            yield
    except ImportError as error:
        raise BackendUnavailable(
            f"{error.name} is not installed, which evaluation needs: pip install 'harken[eval]'"
        ) from error


Normalizer = Callable[[str], str]

# The reference's tokenizer cuts Khmer at spaces, but those stand between phrases, not words.
_SCORED_BY_CHARACTER = LANGUAGES_WITHOUT_SPACES | {"km"}


def is_spaced(language: str | None) -> bool:
    """Whether a language has spaces between its words; otherwise only its letters can be counted."""
    return language not in _SCORED_BY_CHARACTER


@cache
def normalizer(language: str | None) -> Normalizer:
    """What makes texts of a language comparable.

    Source: the Whisper paper, appendix C, and openai/whisper, normalizers/. English has rules of its own for
    spelling, numbers and contractions; all other languages lose only case, punctuation and marks. In a language
    without spaces every letter (grapheme cluster) is made a word.

    Parameters
    ----------
    language : str or None
        Code; None for a language that is not known.

    Returns
    -------
    callable
        From a text to its words with single spaces between them.

    Raises
    ------
    BackendUnavailable
        If the extra ``harken[eval]`` is not installed.
    """
    with require_eval_extra():
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer

    split_letters = not is_spaced(language)
    clean: Any = (
        EnglishTextNormalizer() if language == "en" else BasicTextNormalizer(split_letters=split_letters)
    )
    return lambda text: str(clean(text)).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounts:
    """What became of the units of a reference, and how many came in addition."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(ErrorCounts)}
        )

    @property
    def errors(self) -> int:
        """Substitutions, deletions and insertions: the edit distance."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def reference_length(self) -> int:
        """Number of units in the reference."""
        return self.hits + self.substitutions + self.deletions

    @property
    def rate(self) -> float | None:
        """Errors over the length of the reference; None where that is 0."""
        return self.errors / self.reference_length if self.reference_length else None


@dataclass(frozen=True, slots=True)
class AlignmentChunk:
    """A run of units that are equal, were replaced by others, left out (no `heard`) or added (no `said`)."""

    reference: tuple[str, ...]
    hypothesis: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether it was heard rightly."""
        return self.reference == self.hypothesis


def count_word_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Count the words of two normalized texts against each other."""
    return (
        _error_counts(_jiwer().process_words(reference, hypothesis))
        if reference
        else ErrorCounts(insertions=len(hypothesis.split()))
    )


def count_character_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Count the characters of two normalized texts against each other, spaces among them."""
    return (
        _error_counts(_jiwer().process_characters(reference, hypothesis))
        if reference
        else ErrorCounts(insertions=len(hypothesis))
    )


def align_words(reference: str, hypothesis: str) -> tuple[AlignmentChunk, ...]:
    """Align the words of two normalized texts, run by run."""
    if not reference:
        return (AlignmentChunk((), tuple(hypothesis.split())),) if hypothesis else ()
    alignment = _jiwer().process_words(reference, hypothesis)
    (references,), (hypotheses,), (chunks,) = alignment.references, alignment.hypotheses, alignment.alignments
    return tuple(
        AlignmentChunk(
            tuple(references[chunk.ref_start_idx : chunk.ref_end_idx]),
            tuple(hypotheses[chunk.hyp_start_idx : chunk.hyp_end_idx]),
        )
        for chunk in chunks
    )


def _error_counts(output: Any) -> ErrorCounts:
    return ErrorCounts(**{f.name: getattr(output, f.name) for f in fields(ErrorCounts)})


def _jiwer() -> Any:
    with require_eval_extra():
        import jiwer
    return jiwer


SEED = 0
RESAMPLES = 1000
RESAMPLES_PER_BATCH = 100
"""Test sets that are drawn at once: all of them would take much memory."""
CONFIDENCE_LEVEL = 0.95


def bootstrap_error_rates(error_counts: Sequence[ErrorCounts]) -> NDArray[np.float64]:
    """Error rates of test sets drawn anew, with replacement and as large as the one there is.

    Source: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation" (ICASSP 2004).

    Parameters
    ----------
    tallies : sequence of Tally
        One for each unit that is independent of the others, with a reference that is not empty.

    Returns
    -------
    ndarray of shape (1000,), float64
        The same for the same tallies. What is drawn depends on their number only, so the rates of two engines on one
        test set can be subtracted.
    """
    counts = np.array([(tally.errors, tally.reference_length) for tally in error_counts], np.float64)
    rng = np.random.default_rng(SEED)
    shape = (RESAMPLES_PER_BATCH, len(counts))
    resampled_counts = [
        counts[rng.integers(len(counts), size=shape)].sum(axis=1)
        for _ in range(RESAMPLES // RESAMPLES_PER_BATCH)
    ]
    errors, reference = np.concatenate(resampled_counts).T
    return np.asarray(errors / reference)


def confidence_interval(rates: NDArray[np.float64]) -> tuple[float, float]:
    """Lowest and highest of the middle 95 % of some rates."""
    low, high = np.quantile(rates, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    return float(low), float(high)
