"""Words to speakers: each word is said by who speaks during it, and segments are cut where the speaker changes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from harken.results import Segment, SpeakerTurn, Word, cut

SHARED_PART = 0.5
"""Part of a word during which another speaker speaks, too, from which both have said it."""
REACH_S = 2.0
"""Distance to the nearest turn up to which a word outside of all turns belongs to its speaker."""


class SpeakerAttribution:
    """The turns of a recording, and who said the words in them.

    Parameters
    ----------
    turns : sequence of SpeakerTurn
    encode : callable
        Returns the tokens of a text, for segments that are cut.
    """

    def __init__(self, turns: Sequence[SpeakerTurn], encode: Callable[[str], Sequence[int]]) -> None:
        self._turns = sorted(turns, key=lambda turn: turn.end_s)
        self._ends = [turn.end_s for turn in self._turns]
        self._longest_s = max((turn.end_s - turn.start_s for turn in turns), default=0.0)
        self._encode = encode

    def segments(self, segments: Iterable[Segment]) -> list[Segment]:
        """Return the segments with speakers, cut where the main speaker changes, and numbered anew."""
        cut = [part for segment in segments for part in self._cut(segment)]
        return [replace(segment, index=index) for index, segment in enumerate(cut)]

    def speakers(self, start_s: float, end_s: float) -> tuple[str, ...]:
        """Return who speaks during a stretch: who speaks most first, then those who speak for half of it, too."""
        seconds: dict[str, float] = defaultdict(float)
        near = self._near(start_s - REACH_S, end_s + REACH_S)
        for turn in near:
            seconds[turn.speaker] += max(0.0, min(end_s, turn.end_s) - max(start_s, turn.start_s))
        ranked = sorted((name for name in seconds if seconds[name] > 0), key=lambda name: -seconds[name])
        if ranked:
            least_s = SHARED_PART * (end_s - start_s)
            return (ranked[0], *(name for name in ranked[1:] if seconds[name] >= least_s))
        nearest = min(near, key=lambda turn: max(turn.start_s - end_s, start_s - turn.end_s), default=None)
        return (nearest.speaker,) if nearest else ()

    def corrected(self, segment: Segment, settled_s: float) -> Segment:
        """Return a segment, not cut, with the speakers of its words anew but of those that end before a time."""
        if not segment.words:
            settled = segment.end_s <= settled_s
            speakers = segment.speakers if settled else self.speakers(segment.start_s, segment.end_s)
            return replace(segment, speakers=speakers)
        words = tuple(
            before if before.end_s <= settled_s else word
            for before, word in zip(segment.words, self._with_speakers(segment.words), strict=True)
        )
        main = [name for name, _ in Counter(name for word in words for name in word.speakers[:1]).most_common()]
        others = (name for word in words for name in word.speakers)
        return replace(segment, words=words, speakers=tuple(dict.fromkeys([*main, *others])))

    def _near(self, start_s: float, end_s: float) -> list[SpeakerTurn]:
        """Return the turns that are in a stretch in part."""
        first, behind = bisect_left(self._ends, start_s), bisect_left(self._ends, end_s + self._longest_s)
        return [turn for turn in self._turns[first:behind] if turn.start_s <= end_s]

    def _cut(self, segment: Segment) -> Iterator[Segment]:
        """Yield the parts of a segment that one speaker says each; a word is never cut."""
        if not segment.words:
            yield replace(segment, speakers=self.speakers(segment.start_s, segment.end_s))
            return
        words = self._with_speakers(segment.words)
        yield from cut_at_changes(replace(segment, words=tuple(words)), self._encode)

    def _with_speakers(self, words: Sequence[Word]) -> list[Word]:
        """Return the words of a segment with their speakers.

        A word that several say is transcribed from the louder one: most likely that of the rest of the segment. One
        near no turn is said by who said the word before it.
        """
        candidates = [self.speakers(word.start_s, word.end_s) for word in words]
        certain = Counter(names[0] for names in candidates if len(names) == 1)
        attributed: list[Word] = []
        for word, names in zip(words, candidates, strict=True):
            before = attributed[-1].speakers if attributed else ()
            ranked = sorted(names, key=lambda name: (-certain[name], name not in before[:1]))
            attributed.append(replace(word, speakers=tuple(ranked) or before))
        return attributed


def cut_at_changes(segment: Segment, encode: Callable[[str], Sequence[int]]) -> Iterator[Segment]:
    """Yield the parts of a segment, whose words have speakers, that one main speaker says each."""
    if not segment.words:
        yield segment
        return
    runs = [tuple(run) for _, run in groupby(segment.words, key=lambda word: word.speakers[:1])]
    for part in cut(segment, runs, encode):
        yield replace(
            part, speakers=tuple(dict.fromkeys(name for word in part.words for name in word.speakers))
        )
