"""How long after it was spoken a word is shown, and committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from harken.evaluation.display import Shown, Units, matches
from harken.evaluation.live import Moment
from harken.results import Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
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
    interim: Moment
    commit: Moment


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

    words: tuple[Timed, ...] = ()
    unspoken: int = 0
    unheard: int = 0

    def __add__(self, other: Latencies) -> Latencies:
        return Latencies(
            words=self.words + other.words,
            unspoken=self.unspoken + other.unspoken,
            unheard=self.unheard + other.unheard,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
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


def latencies(shown: Sequence[Shown], spoken: Sequence[Word], units: Units) -> Latencies:
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
    reference = [(unit, word.end_s) for word in spoken for unit in units(word.text)]
    words = []
    for said, heard in matches([unit for unit, _ in reference], [its.text for its in shown]):
        (text, end_s), its = reference[said], shown[heard]
        commit = its.committed or its.shown
        words.append(
            Timed(text=text, end_s=end_s, interim=_after(its.shown, end_s), commit=_after(commit, end_s))
        )
    return Latencies(words=tuple(words), unspoken=len(shown) - len(words), unheard=len(reference) - len(words))


def _after(moment: Moment, end_s: float) -> Moment:
    return Moment(unaware_s=moment.unaware_s - end_s, aware_s=moment.aware_s - end_s)
