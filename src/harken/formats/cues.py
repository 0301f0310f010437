"""Cues: segments as they are, or the best way to cut what is said into subtitles by the rules of a style.

Every way to cut words into cues has a cost, the sum of the costs of its cues, and the cheapest one is found by dynamic
programming: the cheapest way up to a word is a cue behind the cheapest way up to the first word of that cue. What all
ways to go on have in common is final, so cues come while segments arrive, and are the same however they arrive.

A cue costs 1, and more (`_Run.cost`) where it tears a sentence or a clause apart, holds the end of a sentence or a pause
inside, leaves a word alone, or breaks a rule: that of reading speed or of the least time. Cues never break the others:
lines that are too wide or too many, or too much time; but a word of its own stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

from harken.formats.base import CueRules, Layout, main_speaker, split_lines, without_blank_lines
from harken.formats.characters import columns, is_wide
from harken.results import Segment, Word

LONG_PAUSE_S = 2.0
"""Silence that no cue spans."""

SENTENCE_END = re.compile(r"[.!?…。！？｡؟।]+[\"'”’»)\]」』）]*\s*$")
_CLAUSE_END = re.compile(r"[,;:，、；：،—–-][\"'”’»)\]」』）]*\s*$")
_ABBREVIATION = re.compile(r"^\W*(?:\w|mr|mrs|ms|dr|st|prof)\.\s*$", re.IGNORECASE)
SHORT_WORD = 3
"""Most letters of a word that probably belongs to the next one: an article, a preposition, a conjunction."""

# Costs, in cues: what it costs to cut between two words of a clause, and so on.
CUT, SHORT_WORD_CUT, CLAUSE_CUT, TORN_WORD = 4.0, 6.0, 1.2, 12.0
SENTENCE_INSIDE, PAUSE_INSIDE = 1.5, 1.5  # the latter a second
ALONE = 10.0
UNEVEN = 20.0  # lines, by the square of what they differ from the mean, in relation to it
BROKEN, BROKEN_BY = 8.0, 20.0  # a rule, and in relation to the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """A subtitle: text and the time during which it is shown.

    Parameters
    ----------
    start_s, end_s : float
    text : str
        May contain line breaks, but not at an end and not blank lines.
    words : tuple of Word
        The words of `text`, including line breaks; empty if they are unknown.
    speaker : str
        Name of the main speaker of all of it; empty if nobody is known.
    speaker_number : int
        Position of the speaker in the order of appearance, from 1; 0 if nobody is known.
    """

    start_s: float
    end_s: float
    text: str
    words: tuple[Word, ...] = ()
    speaker: str = ""
    speaker_number: int = 0

    def map_text(self, change: Callable[[str], str]) -> Cue:
        """Return the cue with a function applied to its text and that of its words."""
        words = tuple(replace(word, text=change(word.text)) for word in self.words)
        return replace(self, text=change(self.text), words=words)


class CueMaker:
    """Incremental maker of cues from segments; no cue has words of two main speakers.

    Parameters
    ----------
    layout : Layout
    label : callable
        Returns the visible text that is put before the first line of a cue, by its speaker.
    """

    def __init__(self, layout: Layout, label: Callable[[str], str]) -> None:
        self._layout, self._label = layout, label
        self._run: _Run | None = None

    def feed(self, segment: Segment) -> Iterator[Cue]:
        """Yield the cues that are final with the next segment; none if it has no text."""
        if not segment.text.strip():
            return
        words = [
            replace(
                word,
                text=" ".join(split_lines(word.text)),
                speakers=(main_speaker(word.speakers or segment.speakers),),
            )
            for word in segment.words
            if self._layout.needs_words
        ]
        if not any(word.text.strip() for word in words):
            yield from self.finish(segment.start_s)
            yield Cue(
                start_s=segment.start_s,
                end_s=segment.end_s,
                text=without_blank_lines(segment.text),
                speaker=main_speaker(segment.speakers),
            )
            return
        rules = self._layout.rules(segment.text) if self._layout.has_rules else None
        for word in words:
            if self._run and not self._run.goes_on(word, rules):
                yield from self.finish(word.start_s)
            if word.text.strip():
                self._run = self._run or _Run(rules, word.speakers[0], self._label(word.speakers[0]))
                self._run.add(word)
        if self._run and rules:
            yield from self._run.final_cues()
        else:
            yield from self.finish()

    def finish(self, next_start_s: float = inf) -> Iterator[Cue]:
        """Yield the cues that are left, before one that begins at a time."""
        run, self._run = self._run, None
        if run:
            yield from run.finish(next_start_s)


class _Run:
    """Words of one speaker without a long pause, and the cheapest ways to cut them.

    Parameters
    ----------
    rules : CueRules or None
        None if all words are one cue.
    speaker : str
    label : str
        Visible text before the first line of each cue.
    """

    def __init__(self, rules: CueRules | None, speaker: str, label: str) -> None:
        self._rules, self._speaker, self._label = rules, speaker, columns(label)
        self._words: list[Word] = []
        self._ends = [0]  # columns of the first n words
        self._cuts: list[float] = [0.0]  # what it costs to tear before each word; at 0 there is nothing to tear
        self._costs, self._previous = [0.0], [0]  # of the cheapest way to cut before each word, and the cut before it
        self._n_cut = 0

    def goes_on(self, word: Word, rules: CueRules | None) -> bool:
        """Return whether a word belongs to the run."""
        return (
            word.speakers == (self._speaker,)
            and rules == self._rules
            and (rules is None or word.start_s - self._words[-1].end_s <= LONG_PAUSE_S)
        )

    def add(self, word: Word) -> None:
        """Append a word, before which the cheapest way to cut is then known."""
        if self._words and self._rules:
            self._cuts.append(_cut_cost(self._words[-1].text, word.text))
            self._find_way(self._rules, word.start_s)
        self._words.append(word)
        self._ends.append(self._ends[-1] + columns(word.text))

    def final_cues(self) -> Iterator[Cue]:
        """Yield the cues that all ways to go on have in common."""
        assert self._rules
        firsts = {first for first, _ in self._firsts(self._rules, len(self._words))}
        while len(firsts) > 1:
            last = max(firsts)
            firsts = firsts - {last} | {self._previous[last]}
        yield from self._cut_until(firsts.pop(), inf)

    def finish(self, next_start_s: float) -> Iterator[Cue]:
        """Yield all cues that are left."""
        if self._rules:
            self._cuts.append(0.0)
            self._find_way(self._rules, next_start_s)
            yield from self._cut_until(len(self._words), next_start_s)
        else:
            yield self._cue(0, len(self._words), [0], self._words[-1].end_s)

    def _find_way(self, rules: CueRules, next_start_s: float) -> None:
        """Find the cheapest way to cut behind the last word, where the next one begins at a time."""
        behind = len(self._words)
        cost, first = min(
            (self._costs[first] + self._cost(rules, first, behind, inside, next_start_s), first)
            for first, inside in self._firsts(rules, behind)
        )
        self._costs.append(cost)
        self._previous.append(first)

    def _firsts(self, rules: CueRules, behind: int) -> Iterator[tuple[int, float]]:
        """Yield the first words of all cues that end behind a word, each with what there is inside them to pay for."""
        words, inside, n_lines, line_end = self._words, 0.0, 1, behind
        for first in range(behind - 1, max(-1, self._n_cut - 1), -1):
            if first < behind - 1:
                too_wide = self._line_width(first, line_end, first_line=False) > rules.max_line_width
                n_lines, line_end = (n_lines + 1, first + 1) if too_wide else (n_lines, line_end)
                labelled = self._line_width(first, line_end, first_line=True) > rules.max_line_width
                needed = n_lines + (labelled and line_end - first > 1)
                spoken_s = words[behind - 1].end_s - words[first].start_s
                if n_lines > rules.max_line_count or spoken_s > rules.max_cue_s or behind - first > rules.max_words:
                    return
                pause_s = words[first + 1].start_s - words[first].end_s
                inside += PAUSE_INSIDE * max(0.0, pause_s) + SENTENCE_INSIDE * (not self._cuts[first + 1])
                if needed > rules.max_line_count:
                    continue
            yield first, inside

    def _cost(self, rules: CueRules, first: int, behind: int, inside: float, next_start_s: float) -> float:
        """Return the cost of a cue."""
        start_s = self._words[first].start_s
        shown_s = max(self._end_s(rules, first, behind, next_start_s) - start_s, 0.001)
        pause_s = max(0.0, next_start_s - self._words[behind - 1].end_s)
        broken = 0.0
        for ratio in (self._width(first, behind) / shown_s / rules.max_reading_speed, rules.min_cue_s / shown_s):
            broken += BROKEN + BROKEN_BY * min(ratio - 1, 10) if ratio > 1 + 1e-6 else 0.0
        alone = behind - first == 1 and (self._cuts[first] or self._cuts[behind])
        return 1 + inside + self._cuts[behind] / (1 + 2 * pause_s) + (ALONE if alone else 0.0) + broken

    def _end_s(self, rules: CueRules, first: int, behind: int, next_start_s: float) -> float:
        """Return the end of a cue: that of its speech, later if there is silence for who reads, and before the next.

        Cues of two who speak at once are shown at once.
        """
        start_s, spoken_until_s = self._words[first].start_s, self._words[behind - 1].end_s
        read_s = max(rules.min_cue_s, self._width(first, behind) / rules.max_reading_speed)
        latest_s = max(next_start_s, spoken_until_s) - rules.min_gap_s
        return min(max(spoken_until_s, start_s + read_s), latest_s, start_s + rules.max_cue_s)

    def _cut_until(self, behind: int, next_start_s: float) -> Iterator[Cue]:
        """Yield the cues of the cheapest way up to a word that have not been yielded."""
        assert self._rules
        cuts = [behind]
        while cuts[-1] > self._n_cut:
            cuts.append(self._previous[cuts[-1]])
        for behind, first in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
            begins_s = self._words[behind].start_s if behind < len(self._words) else next_start_s
            end_s = self._end_s(self._rules, first, behind, begins_s)
            yield self._cue(first, behind, self._lines(self._rules, first, behind), end_s)
        self._n_cut = cuts[0]

    def _cue(self, first: int, behind: int, lines: Sequence[int], end_s: float) -> Cue:
        """Return a cue whose lines begin at these words."""
        words = tuple(
            replace(word, text=f"\n{word.text.strip()}" if index in lines[1:] else word.text)
            for index, word in enumerate(self._words[first:behind], first)
        )
        words = (replace(words[0], text=words[0].text.lstrip()), *words[1:])
        text = without_blank_lines("".join(word.text for word in words))
        return Cue(start_s=words[0].start_s, end_s=end_s, text=text, words=words, speaker=self._speaker)

    def _lines(self, rules: CueRules, first: int, behind: int) -> list[int]:
        """Return the first word of each line: as few lines as fit, of about the same width, cut between clauses."""

        @cache
        def cheapest(n_lines: int, behind: int) -> tuple[float, list[int]]:
            """Return the cheapest way to break the first words into lines, and its cost, infinite if they do not fit."""
            best: tuple[float, list[int]] = inf, []
            for last in [first] if n_lines == 1 else range(behind - 1, first, -1):
                width = self._line_width(last, behind, first_line=last == first)
                if width > rules.max_line_width and behind - last > 1:
                    break
                cost, lines = cheapest(n_lines - 1, last) if n_lines > 1 else (0.0, [])
                uneven = UNEVEN * (width / usual - 1) ** 2
                alone = ALONE * (behind - last == 1)
                best = min(best, (cost + self._cuts[last] + uneven + alone, [*lines, last]))
            return best

        for n_lines in range(1, behind - first + 1):
            usual = self._width(first, behind) / n_lines
            cheapest.cache_clear()
            cost, lines = cheapest(n_lines, behind)
            if cost < inf:
                break
        return lines

    def _width(self, first: int, behind: int) -> int:
        """Return the columns of a cue on a single line."""
        return self._line_width(first, behind, first_line=True)

    def _line_width(self, first: int, behind: int, *, first_line: bool) -> int:
        spaces = len(self._words[first].text) - len(self._words[first].text.lstrip())
        return self._ends[behind] - self._ends[first] - spaces + self._label * first_line


def _cut_cost(before: str, after: str) -> float:
    """Return what a cut between two words tears apart: nothing at the end of a sentence."""
    if SENTENCE_END.search(before) and not _ABBREVIATION.match(before):
        return 0.0
    if _CLAUSE_END.search(before):
        return CLAUSE_CUT
    if is_wide(before):
        return CUT
    if not after[:1].isspace():
        return TORN_WORD
    return SHORT_WORD_CUT if len(before.strip()) <= SHORT_WORD else CUT
