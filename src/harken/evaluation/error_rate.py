"""Two texts side by side: how many words or characters were heard rightly, and which were not."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from harken.evaluation.extra import require_eval_extra


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
