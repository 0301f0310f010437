"""How long after it was spoken a word is shown, and committed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np

from harken.evaluation.error_rate import align_words, normalizer
from harken.evaluation.simulation import EmissionTime
from harken.results import Word
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded

UnitSplitter = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedWord:
    """A word on the screen.

    Attributes
    ----------
    text : str
        Normalized (see `units_of`).
    shown : Moment
        Since when it has been there, tentative or not. A word that goes away and comes again counts from then.
    committed : Moment or None
        When it was first committed; None for a tentative one.
    """

    text: str
    displayed_at: EmissionTime
    committed_at: EmissionTime | None


@cache
def unit_splitter(language: str | None) -> UnitSplitter:
    """What cuts texts of a language into the units that are compared: its words, each normalized by itself.

    So the words of a text that grows stay the same, where the rules for a whole text would join "twenty three". A word
    may become several units, or none.
    """
    normalize = cache(normalizer(language))
    return lambda text: [unit for word in text.split() for unit in normalize(word).split()]


def matching_positions(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Positions of the words that two texts share, by the fewest edits, in order."""
    prefix_length = next(
        (i for i, (one, other) in enumerate(zip(reference, hypothesis, strict=False)) if one != other), None
    )
    prefix_length = min(len(reference), len(hypothesis)) if prefix_length is None else prefix_length
    yield from ((i, i) for i in range(prefix_length))
    old = new = prefix_length
    for chunk in align_words(" ".join(reference[prefix_length:]), " ".join(hypothesis[prefix_length:])):
        if chunk.equal:
            yield from ((old + i, new + i) for i in range(len(chunk.reference)))
        old, new = old + len(chunk.reference), new + len(chunk.hypothesis)


class Display:
    """Follows the events of a stream.

    Parameters
    ----------
    units : callable
        See `units_of`.

    Attributes
    ----------
    interim, final : list of str
        Text of every utterance as it was shown last before its segments, and of every committed segment.
    retractions : int
        How often the committed text of an utterance did not begin with what it was before.
    flickered : int
        Words that were shown, and were not any more at the next update.
    """

    def __init__(self, split_units: UnitSplitter) -> None:
        self.interim_texts: list[str] = []
        self.final_texts: list[str] = []
        self.retractions = 0
        self.flickered = 0
        self._split_units = split_units
        self._committed_text = ""
        self._utterance_text = ""
        self._displayed_words: list[DisplayedWord] = []
        self._streamed_words: list[DisplayedWord] = []
        self._final_words: list[DisplayedWord] = []
        self._final_words_before = 0

    def update(self, event: Event, emission_time: EmissionTime) -> None:
        """Show what an event tells."""
        match event:
            case Interim():
                self._show_interim(event, emission_time)
            case FinalSegment():
                self.final_texts.append(event.segment.text)
                units = self._split_units(event.segment.text)
                self._final_words += [
                    DisplayedWord(text=unit, displayed_at=emission_time, committed_at=emission_time)
                    for unit in units
                ]
            case SpeechEnded(reason="limit"):
                self._split_utterance()
            case SpeechEnded():
                self._end_utterance()

    def words(self) -> list[DisplayedWord]:
        """Words of the final text: those that had been shown, or committed, in the utterance count from then."""
        self._end_utterance()
        words = [*self._final_words]
        for old, new in self._retained_positions():
            streamed, final = self._streamed_words[old], words[new]
            committed_at = min(
                filter(None, (streamed.committed_at, final.committed_at)),
                key=lambda moment: moment.computation_aware_s,
            )
            displayed_at = min(
                streamed.displayed_at, committed_at, key=lambda moment: moment.computation_aware_s
            )
            words[new] = replace(final, displayed_at=displayed_at, committed_at=committed_at)
        return words

    def revised(self) -> int:
        """Words that were committed in an utterance, and that its segments have otherwise or not at all."""
        self._end_utterance()
        retained = {old for old, _ in self._retained_positions()}
        return sum(
            word.committed_at is not None and i not in retained for i, word in enumerate(self._streamed_words)
        )

    def _retained_positions(self) -> Iterator[tuple[int, int]]:
        return matching_positions(
            [its.text for its in self._streamed_words], [its.text for its in self._final_words]
        )

    def _show_interim(self, event: Interim, emission_time: EmissionTime) -> None:
        if not event.committed.startswith(self._committed_text):
            self.retractions += 1
        self._committed_text, self._utterance_text = event.committed, event.committed + event.tentative
        texts, n_committed = self._split_units(self._utterance_text), len(self._split_units(event.committed))
        words = [
            DisplayedWord(
                text=text, displayed_at=emission_time, committed_at=emission_time if i < n_committed else None
            )
            for i, text in enumerate(texts)
        ]
        n_retained = 0
        for old, new in matching_positions([word.text for word in self._displayed_words], texts):
            displayed = self._displayed_words[old]
            words[new] = replace(
                words[new],
                displayed_at=displayed.displayed_at,
                committed_at=displayed.committed_at or words[new].committed_at,
            )
            n_retained += 1
        self.flickered += len(self._displayed_words) - n_retained
        self._displayed_words = words

    def _end_utterance(self) -> None:
        """The utterance is over."""
        if self._utterance_text:
            self.interim_texts.append(self._utterance_text)
        self._streamed_words += self._displayed_words
        self._final_words_before = len(self._final_words)
        self._committed_text, self._utterance_text, self._displayed_words = "", "", []

    def _split_utterance(self) -> None:
        """The utterance goes on as another; what its segments do not have is shown in that one again."""
        finals = [its.text for its in self._final_words[self._final_words_before :]]
        retained = [old for old, _ in matching_positions([its.text for its in self._displayed_words], finals)]
        before = retained[-1] + 1 if retained else 0
        self._displayed_words, rest = self._displayed_words[:before], self._displayed_words[before:]
        self._utterance_text = " ".join(its.text for its in self._displayed_words)
        self._end_utterance()
        self._displayed_words = rest


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
        What cut the text (see `harken.evaluation.latency.units_of`).
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
