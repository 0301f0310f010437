"""What a reader of a live stream has before him: which words, since when, and for good since when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from harken.evaluation.compare import differences
from harken.evaluation.live import Moment
from harken.evaluation.normalize import normalizer
from harken.streaming import Committed, Event, Interim, SpeechEnded

Units = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
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
    shown: Moment
    committed: Moment | None


@cache
def units_of(language: str | None) -> Units:
    """What cuts texts of a language into the units that are compared: its words, each normalized by itself.

    So the words of a text that grows stay the same, where the rules for a whole text would join "twenty three". A word
    may become several units, or none.
    """
    normalize = cache(normalizer(language))
    return lambda text: [unit for word in text.split() for unit in normalize(word).split()]


def matches(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Positions of the words that two texts share, by the fewest edits, in order."""
    same = next((i for i, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), None)
    same = min(len(before), len(after)) if same is None else same
    yield from ((i, i) for i in range(same))
    old = new = same
    for piece in differences(" ".join(before[same:]), " ".join(after[same:])):
        if piece.equal:
            yield from ((old + i, new + i) for i in range(len(piece.said)))
        old, new = old + len(piece.said), new + len(piece.heard)


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

    def __init__(self, units: Units) -> None:
        self.interim: list[str] = []
        self.final: list[str] = []
        self.retractions = 0
        self.flickered = 0
        self._units = units
        self._committed = ""
        self._text = ""
        self._now: list[Shown] = []
        self._streamed: list[Shown] = []
        self._finals: list[Shown] = []
        self._ended = 0

    def take(self, event: Event, moment: Moment) -> None:
        """Show what an event tells."""
        match event:
            case Interim():
                self._show(event, moment)
            case Committed():
                self.final.append(event.segment.text)
                units = self._units(event.segment.text)
                self._finals += [Shown(text=unit, shown=moment, committed=moment) for unit in units]
            case SpeechEnded(reason="limit"):
                self._cut()
            case SpeechEnded():
                self._end()

    def words(self) -> list[Shown]:
        """Words of the final text: those that had been shown, or committed, in the utterance count from then."""
        self._end()
        words = [*self._finals]
        for old, new in self._kept():
            was, its = self._streamed[old], words[new]
            committed = min(filter(None, (was.committed, its.committed)), key=lambda moment: moment.aware_s)
            shown = min(was.shown, committed, key=lambda moment: moment.aware_s)
            words[new] = replace(its, shown=shown, committed=committed)
        return words

    def revised(self) -> int:
        """Words that were committed in an utterance, and that its segments have otherwise or not at all."""
        self._end()
        kept = {old for old, _ in self._kept()}
        return sum(its.committed is not None and i not in kept for i, its in enumerate(self._streamed))

    def _kept(self) -> Iterator[tuple[int, int]]:
        return matches([its.text for its in self._streamed], [its.text for its in self._finals])

    def _show(self, event: Interim, moment: Moment) -> None:
        if not event.committed.startswith(self._committed):
            self.retractions += 1
        self._committed, self._text = event.committed, event.committed + event.tentative
        texts, settled = self._units(self._text), len(self._units(event.committed))
        words = [
            Shown(text=text, shown=moment, committed=moment if i < settled else None)
            for i, text in enumerate(texts)
        ]
        kept = 0
        for old, new in matches([its.text for its in self._now], texts):
            was = self._now[old]
            words[new] = replace(words[new], shown=was.shown, committed=was.committed or words[new].committed)
            kept += 1
        self.flickered += len(self._now) - kept
        self._now = words

    def _end(self) -> None:
        """The utterance is over."""
        if self._text:
            self.interim.append(self._text)
        self._streamed += self._now
        self._ended = len(self._finals)
        self._committed, self._text, self._now = "", "", []

    def _cut(self) -> None:
        """The utterance goes on as another; what its segments do not have is shown in that one again."""
        finals = [its.text for its in self._finals[self._ended :]]
        kept = [old for old, _ in matches([its.text for its in self._now], finals)]
        before = kept[-1] + 1 if kept else 0
        self._now, rest = self._now[:before], self._now[before:]
        self._text = " ".join(its.text for its in self._now)
        self._end()
        self._now = rest
