"""Replacements of words, such as names, and of scripts, in the text of segments and in their words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, chain, groupby, pairwise
from unicodedata import category, east_asian_width, normalize

from harken.errors import OptionError
from harken.results import Segment, Word
from harken.text import Script
from harken.text.languages import SPACELESS_LETTER, Change


class Replacements:
    """Replacements of words, in texts that are written in a script of their language.

    Parameters
    ----------
    lines : sequence of str
        Each ``wrong = right``, of a word or several; empty ones and comments, from a ``#``, are skipped. The longest
        one that fits is used. A text in capitals stays so, and one that begins with a capital, unless what it is
        replaced by has capitals of its own.
    scripts : mapping of str to Script
        The script of a language, by its code.

    Raises
    ------
    OptionError
        If a line has no equals sign, or nothing on one side of it, or two say the same word.
    """

    def __init__(self, lines: Sequence[str], scripts: Mapping[str, Script] | None = None) -> None:
        self._scripts = scripts or {}
        pairs: dict[str, tuple[str, str]] = {}
        for line in chain.from_iterable(map(str.splitlines, lines)):
            wrong, equals, right = (" ".join(part.split()) for part in line.partition("="))
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not (wrong and equals and right):
                raise OptionError("replace", line, "lines such as: wrong = right")
            if pairs.setdefault(normalize("NFC", wrong.lower()), (wrong, right)) != (wrong, right):
                raise OptionError("replace", line, f"one replacement of {wrong!r}")
        self._pairs = sorted(pairs.values(), key=lambda pair: -len(pair[0]))
        alternatives = (
            f"{before}(?:{'|'.join(f'({_spelled(wrong)})' for wrong, _ in alike)}){behind}"
            for (before, behind), alike in groupby(self._pairs, lambda pair: _around(pair[0]))
        )
        self._pattern = re.compile("|".join(alternatives) or "(?!)", re.IGNORECASE)

    def apply(self, segment: Segment, *, streamed: bool = False) -> Segment:
        """Return a segment in its script and with its words replaced. Its tokens stay.

        Words that stand for others have their times. A streamed segment is written as `in_script` writes its text.
        """
        if script := self._scripts.get(segment.language or ""):
            segment = _rewritten_segment(segment, script.changes(segment.text, unfinished=streamed))
        return _rewritten_segment(segment, self._changes(segment.text))

    def in_script(self, text: str, language: str | None) -> str:
        """Return the text of a live utterance in the script of its language; a longer one begins with it."""
        script = self._scripts.get(language or "")
        return _changed(text, script.changes(text, unfinished=True)) if script else text

    def _changes(self, text: str) -> Iterator[Change]:
        for found in self._pattern.finditer(text):
            assert found.lastindex, "each alternative is a group"
            yield Change(found.start(), found.end(), _in_case_of(found[0], *self._pairs[found.lastindex - 1]))


def _rewritten_segment(segment: Segment, changes: Iterable[Change]) -> Segment:
    if not (changes := [*changes]):
        return segment
    words = segment.words
    if "".join(word.text for word in words) == segment.text:
        words = tuple(_changed_words(words, changes))
    return replace(segment, text=_changed(segment.text, changes), words=words)


def _around(wrong: str) -> tuple[str, str]:
    """Return the patterns of the places before and behind a text that is not part of other words.

    In scripts without spaces, and in Korean, where endings follow names, it may be between letters; nowhere between a
    letter and its marks, as the vowel signs of Hindi.
    """
    before, behind = (
        "" if SPACELESS_LETTER.match(edge) or east_asian_width(edge) in "WF" else r"\w"
        for edge in (wrong[0], wrong[-1])
    )
    return f"(?<![{before}{_marks()}])" if before else "", f"(?![{behind}{_marks()}])"


@cache
def _marks() -> str:
    """Return the combining marks of the scripts of today, which are no letters for regular expressions."""
    return "".join(mark for mark in map(chr, range(0x300, 0x10000)) if category(mark).startswith("M"))


def _spelled(wrong: str) -> str:
    """Return the pattern of a text, with its accents as characters of their own or not, and any space between words."""
    spellings = dict.fromkeys((wrong, normalize("NFC", wrong), normalize("NFD", wrong)))
    return "|".join(r"\s+".join(map(re.escape, spelling.split())) for spelling in spellings)


def _in_case_of(found: str, wrong: str, right: str) -> str:
    """Return what is written for a text, in capitals if that is."""
    if normalize("NFC", " ".join(found.split())) == normalize("NFC", wrong):
        return right
    if found.isupper() and sum(map(str.isalpha, found)) > 1:
        return right.upper()
    return right[0].upper() + right[1:] if found[0].isupper() and right.islower() else right


def _changed(text: str, changes: Iterable[Change]) -> str:
    parts, end = [], 0
    for change in changes:
        parts += [text[end : change.start], change.text]
        end = change.end
    return "".join([*parts, text[end:]])


def _changed_words(words: Sequence[Word], changes: Sequence[Change]) -> Iterator[Word]:
    """Yield the words of a text after changes to it; together they are the new text."""
    waiting = [*changes]
    starts = [0, *accumulate(len(word.text) for word in words)]
    first = 0
    while first < len(words):
        behind, inside = first + 1, []
        while waiting and waiting[0].start < starts[behind]:
            change = waiting.pop(0)
            inside.append(Change(change.start - starts[first], change.end - starts[first], change.text))
            while starts[behind] < change.end:
                behind += 1
        group = words[first:behind]
        text = "".join(word.text for word in group)
        yield from _rewritten(group, _changed(text, inside)) if inside else group
        first = behind


def _rewritten(words: Sequence[Word], text: str) -> Iterator[Word]:
    """Yield the words of another text that is said in their place: in their times, or spread over them by length."""
    texts = re.findall(r"\s*\S+(?:\s+$)?", text)
    if len(texts) == len(words):
        yield from (replace(word, text=text) for word, text in zip(words, texts, strict=True))
        return
    start_s, end_s = words[0].start_s, max(words[0].start_s, words[-1].end_s)
    part_ends = accumulate(map(len, texts))
    bounds = [start_s, *(start_s + (end_s - start_s) * part_end / len(text) for part_end in part_ends)]
    for part, (part_start_s, part_end_s) in zip(texts, pairwise(bounds), strict=True):
        yield Word(
            start_s=round(part_start_s, 3),
            end_s=round(part_end_s, 3),
            text=part,
            probability=min(word.probability for word in words),
            speakers=words[0].speakers,
        )
