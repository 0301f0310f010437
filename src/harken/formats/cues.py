"""Cues: segments as they are, or the best way to cut what is said into subtitles by the rules of a style.

Every way to cut words into cues has a cost, the sum of the costs of its cues, and the cheapest one is found by dynamic
programming: the cheapest way up to a word is a cue behind the cheapest way up to the first word of that cue. What all
ways to go on have in common is final, so cues come while segments arrive, and are the same however they arrive.

A cue costs 1, and more (`_Run._cost`) where it tears a sentence or a clause apart, holds the end of a sentence or a
pause inside, is a word alone, or breaks a rule: it goes too fast to be read, or too soon. Other rules hold of all cues
but those of a single word: lines are not too wide nor too many, and speech is not too long. Lines are broken likewise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from math import inf
from unicodedata import category

from harken.formats.base import (
    CueRules,
    Layout,
    columns,
    is_wide,
    main_speaker,
    split_lines,
    without_blank_lines,
)
from harken.results import Segment, Word
from harken.text.languages import SENTENCE_END, SPACELESS_LETTER

LONG_PAUSE_S = 2.0
"""Silence that no cue spans."""

_CLAUSE_END = re.compile(r"[,;:，、；：،؛·՝፣፤၊—–-][\"'”’»)\]」』）]*\s*$")
_ABBREVIATION = re.compile(
    r"^\W*(?:\w|mrs?|ms|dra?|st|profa?|sra?|srta|sig|dott|hr|nr|ing|inż|mgr|ul|dhr|mevr|ул|проф)\.\s*$",
    re.IGNORECASE,
)
_ORDINAL = re.compile(r"^\W*\d{1,2}\.\s*$")
_WITH_ORDINALS = "bs cs da de et eu fi fo hr hu is lb lv nn no pl sk sl sr tr"
"""Languages in which a point behind a number makes it an ordinal: ``am 21. Oktober``."""
# Signs of scripts without spaces that are read with the letter before or behind them: of kana those that are small or
# make it longer, vowels of Thai and Lao, and what stacks letters of Burmese and Khmer.
_WITH_BEFORE = re.compile(
    r"\s*[ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶー々ゝゞヽヾะาำๅๆ\u0eb0\u0eb2\u0eb3\u0ec6]"
)
_WITH_BEHIND = re.compile(r"[เ-ไເ-ໄ\u1039\u17d2]\s*$")
SHORT_WORD = 3
"""Most letters of a word that probably belongs to the next one: an article, a preposition, a conjunction."""

# Costs, in cues: what it costs to cut between two words of a clause, and so on.
CUT, SHORT_WORD_CUT, CLAUSE_CUT, TORN_WORD, TORN_MARK = 4.0, 6.0, 1.2, 12.0, 24.0
SENTENCE_INSIDE, PAUSE_INSIDE = 1.5, 1.5  # the latter a second
ALONE = 10.0
UNEVEN = 20.0  # lines, by the square of what they differ from the mean, in relation to it
BROKEN, BROKEN_BY = 8.0, 20.0  # a rule, and in relation to the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """A subtitle: text and the time during which it is shown."""

    start_s: float
    end_s: float
    text: str  # may contain line breaks, but not at an end and not blank lines
    words: tuple[Word, ...] = ()  # those of the text, including line breaks; empty if they are unknown
    speaker: str = ""  # name of the main speaker of all of it; empty if nobody is known
    speaker_number: int = 0  # in the order of appearance, from 1; 0 if nobody is known

    def map_text(self, change: Callable[[str], str]) -> Cue:
        """Return the cue with a function applied to its text and that of its words."""
        words = tuple(replace(word, text=change(word.text)) for word in self.words)
        return replace(self, text=change(self.text), words=words)


class CueMaker:
    """Incremental maker of cues from segments; no cue has words of two main speakers.

    `label` returns the visible text that is put before the first line of a cue, by its speaker; without `breaks_lines`
    all words of a cue are on one line.
    """

    def __init__(self, layout: Layout, label: Callable[[str], str], *, breaks_lines: bool = True) -> None:
        self._layout, self._label, self._breaks_lines = layout, label, breaks_lines
        self._runs: list[_Run] = []  # several where people speak at once
        self._waiting: list[Cue] = []  # cues before which there may be others

    def feed(self, segment: Segment) -> Iterator[Cue]:
        """Yield the cues that are final with the next segment; none if it has no text."""
        if not segment.text.strip():
            return
        words = [*self._words(segment)]
        if not self._layout.has_rules:
            yield from _cues_of_segment(segment, words)
            return
        if not words:
            self._end_runs(segment.start_s)
            self._waiting += _cues_of_segment(segment, words)
        rules = self._layout.rules(segment.text)
        spoken_at_once = [run for run in self._runs if run.end_s > segment.start_s]
        for word in words:
            (speaker,) = word.speakers
            own = [run for run in self._runs if run.goes_on(word, rules)]
            self._end_runs(word.start_s, but=own + [run for run in spoken_at_once if run.speaker != speaker])
            if not own:
                own = [_Run(rules, speaker, columns(self._label(speaker)), self._breaks_lines)]
                self._runs += own
            own[0].add(word, segment.language)
        for run in self._runs:
            self._waiting += run.final_cues()
        yield from self._in_order(min((run.start_s for run in self._runs), default=inf), segment.start_s)

    def finish(self) -> Iterator[Cue]:
        """Yield the cues that are left."""
        self._end_runs(inf)
        yield from self._in_order()

    def _words(self, segment: Segment) -> Iterator[Word]:
        """Yield the words of which cues are made, each on a line and with its main speaker; none without such text."""
        if self._layout.needs_words:
            for word in segment.words:
                speaker = main_speaker(word.speakers or segment.speakers)
                text = " ".join(split_lines(word.text))
                if text.strip():
                    yield replace(word, text=text, speakers=(speaker,))

    def _end_runs(self, next_start_s: float, *, but: Sequence[_Run] = ()) -> None:
        """End the runs before a time, but for some that go on."""
        for run in self._runs:
            if run not in but:
                self._waiting += run.finish(next_start_s)
        self._runs = [run for run in self._runs if run in but]

    def _in_order(self, *until_s: float) -> Iterator[Cue]:
        """Yield cues in order of their start, up to one that may come later."""
        self._waiting.sort(key=lambda cue: cue.start_s)
        while self._waiting and self._waiting[0].start_s <= min(until_s, default=inf):
            yield self._waiting.pop(0)


def _cues_of_segment(segment: Segment, words: Sequence[Word]) -> Iterator[Cue]:
    """Yield the cue of a segment as it is, or one of each of its speakers."""
    if not words:
        speaker = main_speaker(segment.speakers)
        text = without_blank_lines(segment.text)
        yield Cue(start_s=segment.start_s, end_s=segment.end_s, text=text, speaker=speaker)
    for (speaker,), said in groupby(words, lambda word: word.speakers):
        of_speaker = [*said]
        yield _cue(of_speaker, {0}, of_speaker[-1].end_s, speaker)


def _cue(words: Sequence[Word], line_starts: Container[int], end_s: float, speaker: str) -> Cue:
    """Return a cue of words, of which some begin a line; what they last longer than the cue is cut off."""

    def shown_word(index: int, word: Word) -> Word:
        text = ("\n" if index else "") + word.text.lstrip() if index in line_starts else word.text
        return replace(word, text=text, start_s=min(word.start_s, end_s), end_s=min(word.end_s, end_s))

    shown = tuple(shown_word(index, word) for index, word in enumerate(words))
    text = without_blank_lines("".join(word.text for word in shown))
    return Cue(start_s=words[0].start_s, end_s=end_s, text=text, words=shown, speaker=speaker)


class _Run:
    """Words of one speaker without a long pause, and the cheapest ways to cut them.

    Before the first line of each cue `label_width` columns are taken.
    """

    def __init__(self, rules: CueRules, speaker: str, label_width: int, breaks_lines: bool) -> None:
        self.speaker, self._rules, self._label_width = speaker, rules, label_width
        self._breaks_lines = breaks_lines
        self._words: list[Word] = []
        self._ends = [0]  # columns of the first n words
        self._spaces: list[int] = []  # before each word
        self._n_joined = [0]  # of the first n words, those that go on with the one before, as 'eau of l'eau
        self._cuts: list[float] = [0.0]  # what it costs to tear before each word; at 0 there is nothing to tear
        self._costs = [0.0]  # of the cheapest way to cut before each word
        self._previous = [0]  # the cut before that one, in this way
        self._n_cut = 0

    @property
    def start_s(self) -> float:
        """Start of the first cue that is not final."""
        return self._words[self._n_cut].start_s

    @property
    def end_s(self) -> float:
        """End of the last word."""
        return self._words[-1].end_s

    def goes_on(self, word: Word, rules: CueRules) -> bool:
        """Return whether a word belongs to the run."""
        pause_s = word.start_s - self.end_s
        return (word.speakers, rules) == ((self.speaker,), self._rules) and pause_s <= LONG_PAUSE_S

    def add(self, word: Word, language: str | None) -> None:
        """Append a word of a language, before which the cheapest way to cut is then known."""
        joined = False
        if self._words:
            before = self._words[-1].text
            self._cuts.append(_cut_cost(before, word.text, language))
            spaceless = any(map(SPACELESS_LETTER.match, (before[-1:], word.text)))
            joined = not word.text[:1].isspace() and (not spaceless or self._cuts[-1] == TORN_MARK)
            self._find_way(word.start_s)
        self._n_joined.append(self._n_joined[-1] + joined)
        self._words.append(word)
        self._ends.append(self._ends[-1] + columns(word.text))
        self._spaces.append(len(word.text) - len(word.text.lstrip()))

    def final_cues(self) -> Iterator[Cue]:
        """Yield the cues that all ways to go on have in common."""
        firsts = {first for first, _ in self._firsts(len(self._words))}
        while len(firsts) > 1:
            last = max(firsts)
            firsts = firsts - {last} | {self._previous[last]}
        yield from self._cut_until(firsts.pop(), inf)

    def finish(self, next_start_s: float) -> Iterator[Cue]:
        """Yield all cues that are left."""
        self._cuts.append(0.0)
        self._find_way(next_start_s)
        yield from self._cut_until(len(self._words), next_start_s)

    def _find_way(self, next_start_s: float) -> None:
        """Find the cheapest way to cut behind the last word, where the next one begins at a time."""
        behind = len(self._words)
        cost, first = min(
            (self._costs[first] + self._cost(first, behind, inside, next_start_s), first)
            for first, inside in self._firsts(behind)
        )
        self._costs.append(cost)
        self._previous.append(first)

    def _firsts(self, behind: int) -> Iterator[tuple[int, float]]:
        """Yield the first words of all cues that end behind a word, each with what there is inside them to pay for."""
        words, inside, n_lines, line_end = self._words, 0.0, 1, behind
        for first in range(behind - 1, self._n_cut - 1, -1):
            if first < behind - 1:
                too_wide = self._line_width(first, line_end, first_line=False) > self._rules.max_line_width
                n_lines, line_end = (n_lines + 1, first + 1) if too_wide else (n_lines, line_end)
                labelled = self._line_width(first, line_end, first_line=True) > self._rules.max_line_width
                needed = n_lines + (labelled and line_end - first > 1)
                spoken_s = words[behind - 1].end_s - words[first].start_s
                n_words = behind - first - (self._n_joined[behind] - self._n_joined[first + 1])
                if (
                    needed > self._rules.max_line_count
                    or spoken_s > self._rules.max_cue_s
                    or n_words > self._rules.max_words
                ):
                    return
                pause_s = words[first + 1].start_s - words[first].end_s
                inside += PAUSE_INSIDE * pause_s + SENTENCE_INSIDE * (not self._cuts[first + 1])
            yield first, inside

    def _cost(self, first: int, behind: int, inside: float, next_start_s: float) -> float:
        """Return the cost of a cue."""
        start_s = self._words[first].start_s
        shown_s = max(self._end_s(first, behind, next_start_s) - start_s, 0.001)
        pause_s = max(0.0, next_start_s - self._words[behind - 1].end_s)
        broken = 0.0
        for ratio in (
            self._width(first, behind) / shown_s / self._rules.max_reading_speed,
            self._rules.min_cue_s / shown_s,
        ):
            broken += BROKEN + BROKEN_BY * min(ratio - 1, 10) if ratio > 1 + 1e-6 else 0.0
        alone = behind - first == 1 and (self._cuts[first] or self._cuts[behind])
        return 1 + inside + self._cuts[behind] / (1 + 2 * pause_s) + (ALONE if alone else 0.0) + broken

    def _end_s(self, first: int, behind: int, next_start_s: float) -> float:
        """Return the end of a cue: that of its speech, later if there is silence for who reads, and before the next.

        Cues of two who speak at once are shown at once. The gap takes at most half of a cue, as of a single short word.
        """
        start_s, spoken_until_s = self._words[first].start_s, self._words[behind - 1].end_s
        read_s = max(self._rules.min_cue_s, self._width(first, behind) / self._rules.max_reading_speed)
        next_s = max(next_start_s, spoken_until_s)
        latest_s = max(next_s - self._rules.min_gap_s, (start_s + next_s) / 2)
        return min(max(spoken_until_s, start_s + read_s), latest_s, start_s + self._rules.max_cue_s)

    def _cut_until(self, behind: int, next_start_s: float) -> Iterator[Cue]:
        """Yield the cues of the cheapest way up to a word that have not been yielded."""
        cuts = [behind]
        while cuts[-1] > self._n_cut:
            cuts.append(self._previous[cuts[-1]])
        for behind, first in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
            begins_s = self._words[behind].start_s if behind < len(self._words) else next_start_s
            lines = self._lines(first, behind) if self._breaks_lines else [first]
            line_starts = {last - first for last in lines}
            end_s = self._end_s(first, behind, begins_s)
            yield _cue(self._words[first:behind], line_starts, end_s, self.speaker)
        self._n_cut = cuts[0]

    def _lines(self, first: int, behind: int) -> list[int]:
        """Return the first word of each line: as few lines as fit, of about the same width, cut between clauses."""

        @cache
        def cheapest(n_lines: int, behind: int) -> tuple[float, list[int]]:
            """Return what it costs to break the first words into lines, infinite if they do not fit, and the lines."""
            best: tuple[float, list[int]] = inf, []
            for last in [first] if n_lines == 1 else range(behind - 1, first, -1):
                width = self._line_width(last, behind, first_line=last == first)
                if width > self._rules.max_line_width and behind - last > 1:
                    break
                cost, lines = cheapest(n_lines - 1, last) if n_lines > 1 else (0.0, [])
                uneven = UNEVEN * (width / usual - 1) ** 2
                alone = ALONE * (behind - last == 1)
                best = min(best, (cost + self._cuts[last] + uneven + alone, [*lines, last]))
            return best

        for n_lines in range(1, behind - first + 1):
            usual = max(self._width(first, behind), 1) / n_lines
            cheapest.cache_clear()
            cost, lines = cheapest(n_lines, behind)
            if cost < inf:
                break
        return lines

    def _width(self, first: int, behind: int) -> int:
        """Return the columns of a cue on a single line."""
        return self._line_width(first, behind, first_line=True)

    def _line_width(self, first: int, behind: int, *, first_line: bool) -> int:
        width = self._ends[behind] - self._ends[first] - self._spaces[first]
        return width + self._label_width * first_line


def _cut_cost(before: str, after: str, language: str | None) -> float:
    """Return what a cut between two words of a language tears apart: nothing at the end of a sentence."""
    if (
        _is_mark(before, -1, ("Ps", "Pi"))
        or _is_mark(after, 0, ("Pe", "Pf", "Po"))
        or category(after.strip()[0]) in ("Mn", "Mc", "Me", "Cf")
        or _WITH_BEFORE.match(after)
        or _WITH_BEHIND.search(before)
    ):
        return TORN_MARK
    if SENTENCE_END.search(before) and not _is_abbreviated(before, after, language):
        return 0.0
    if _CLAUSE_END.search(before):
        return CLAUSE_CUT
    if is_wide(before):
        return CUT
    if not after[:1].isspace():
        return TORN_WORD
    return SHORT_WORD_CUT if len(before.strip()) <= SHORT_WORD else CUT


def _is_abbreviated(before: str, after: str, language: str | None) -> bool:
    """Return whether a word ends with a point that does not end its sentence."""
    goes_on = re.search(r"[^.]\.\s*$", before) and after.lstrip()[:1].islower()
    is_ordinal = language in _WITH_ORDINALS.split() and _ORDINAL.match(before)
    return bool(goes_on or is_ordinal or _ABBREVIATION.match(before))


def _is_mark(word: str, position: int, categories: Sequence[str]) -> bool:
    """Return whether a word has only marks, and at a position one of some categories, as of brackets that open."""
    marks = word.strip()
    return category(marks[position]) in categories and not any(map(str.isalnum, marks))
