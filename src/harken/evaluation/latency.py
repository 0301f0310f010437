"""How long after it was spoken a word is shown, and committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from harken.evaluation.display import DisplayedWord, UnitSplitter, matching_positions
from harken.evaluation.simulation import EmissionTime
from harken.results import Word


@dataclass(frozen=True, slots=True, kw_only=True)
class WordLatency:
    """A word of the final text whose time is known.

    Attributes
    ----------
    text : str
        Normalized.
    end_s : float
        When it had been spoken.
    interim, commit : Moment
        Seconds from then until it was shown to stay, and until it was committed. Below 0 where it was guessed, or
        where the time is not exact.
    """

    text: str
    end_s: float
    interim_latency: EmissionTime
    commit_latency: EmissionTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Words of a stream, and those of which no latency can be told.

    Attributes
    ----------
    words : tuple of Timed
    unspoken : int
        Words of the final text that the reference does not have: misheard, mostly.
    unheard : int
        Words of the reference that the final text does not have.
    """

    words: tuple[WordLatency, ...] = ()
    unmatched_hypothesis_words: int = 0
    unmatched_reference_words: int = 0

    def __add__(self, other: Latencies) -> Latencies:
        return Latencies(
            words=self.words + other.words,
            unmatched_hypothesis_words=self.unmatched_hypothesis_words + other.unmatched_hypothesis_words,
            unmatched_reference_words=self.unmatched_reference_words + other.unmatched_reference_words,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Median, 95th percentile and maximum, in seconds."""

    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """That of some values; None if there are none."""
        if not (values := [*values]):
            return None
        p50, p95 = np.quantile(values, [0.5, 0.95])
        return cls(p50=float(p50), p95=float(p95), max=max(values))


def measure_latencies(
    displayed_words: Sequence[DisplayedWord], reference_words: Sequence[Word], split_units: UnitSplitter
) -> Latencies:
    """Match the words of a final text with those that were spoken, by the fewest edits.

    Parameters
    ----------
    shown : sequence of Shown
        From `Display.words`.
    spoken : sequence of Word
        With the times of the stream.
    units : callable
        What cut the text (see `harken.evaluation.display.units_of`).
    """
    reference = [(unit, word.end_s) for word in reference_words for unit in split_units(word.text)]
    words = []
    for said, heard in matching_positions(
        [unit for unit, _ in reference], [its.text for its in displayed_words]
    ):
        (text, end_s), its = reference[said], displayed_words[heard]
        commit = its.committed_at or its.displayed_at
        words.append(
            WordLatency(
                text=text,
                end_s=end_s,
                interim_latency=_latency(its.displayed_at, end_s),
                commit_latency=_latency(commit, end_s),
            )
        )
    return Latencies(
        words=tuple(words),
        unmatched_hypothesis_words=len(displayed_words) - len(words),
        unmatched_reference_words=len(reference) - len(words),
    )


def _latency(emission_time: EmissionTime, end_s: float) -> EmissionTime:
    return EmissionTime(
        computation_unaware_s=emission_time.computation_unaware_s - end_s,
        computation_aware_s=emission_time.computation_aware_s - end_s,
    )
