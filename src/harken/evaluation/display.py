"""What a reader of a live stream has before him: which words, since when, and for good since when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from harken.evaluation.error_rate import align_words
from harken.evaluation.normalize import normalizer
from harken.evaluation.simulation import EmissionTime
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
