"""Two texts side by side: how many words or characters were heard rightly, and which were not."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from harken.evaluation.extra import extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of the units of a reference, and how many came in addition."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Tally)})

    @property
    def errors(self) -> int:
        """Substitutions, deletions and insertions: the edit distance."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def reference(self) -> int:
        """Number of units in the reference."""
        return self.hits + self.substitutions + self.deletions

    @property
    def rate(self) -> float | None:
        """Errors over the length of the reference; None where that is 0."""
        return self.errors / self.reference if self.reference else None


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of units that are equal, were replaced by others, left out (no `heard`) or added (no `said`)."""

    said: tuple[str, ...]
    heard: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether it was heard rightly."""
        return self.said == self.heard


def count_words(said: str, heard: str) -> Tally:
    """Count the words of two normalized texts against each other."""
    return _tally(_jiwer().process_words(said, heard)) if said else Tally(insertions=len(heard.split()))


def count_characters(said: str, heard: str) -> Tally:
    """Count the characters of two normalized texts against each other, spaces among them."""
    return _tally(_jiwer().process_characters(said, heard)) if said else Tally(insertions=len(heard))


def differences(said: str, heard: str) -> tuple[Piece, ...]:
    """Align the words of two normalized texts, run by run."""
    if not said:
        return (Piece((), tuple(heard.split())),) if heard else ()
    aligned = _jiwer().process_words(said, heard)
    (references,), (hypotheses,), (chunks,) = aligned.references, aligned.hypotheses, aligned.alignments
    return tuple(
        Piece(
            tuple(references[chunk.ref_start_idx : chunk.ref_end_idx]),
            tuple(hypotheses[chunk.hyp_start_idx : chunk.hyp_end_idx]),
        )
        for chunk in chunks
    )


def _tally(output: Any) -> Tally:
    return Tally(**{f.name: getattr(output, f.name) for f in fields(Tally)})


def _jiwer() -> Any:
    with extra():
        import jiwer
    return jiwer
