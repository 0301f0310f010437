"""Check of subtitles, from any program, against the rules of a style."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

from harken.errors import ManifestError, OptionError
from harken.files import decode, read_file
from harken.formats.base import Layout, columns, is_wide
from harken.formats.cues import LONG_PAUSE_S, Cue
from harken.text.languages import SENTENCE_END, SPACELESS_LETTER

TOLERANCE_S = 0.0015
"""Times in files are rounded to milliseconds."""
_ALLOWED = "allowed is a file in the format srt or vtt"
_ALLOWED_TIMES = "a line such as 00:01:02,003 --> 00:01:04,500"
_CLOCK = r"(?:(\d+):)?(\d\d):(\d\d)[.,](\d{3})"
_TIMES = re.compile(rf"\s*{_CLOCK}\s*-->\s*{_CLOCK}(?:\s.*)?")
_LIKE_TIMES = re.compile(r"\s*\d+:[\d:.,]*\s*-->")
_VOICE, _NAME = re.compile(r"<v(?:\.[^\s>]*)? ([^>]*)>"), re.compile(r"([^:]{1,40}): ")
_MARKUP = re.compile(r"<[^>\n]*>|\{\\[^}\n]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """A rule that a cue breaks."""

    number: int  # of the cue, from 1
    rule: str  # name of the option that sets it; "alone" for a word alone, which none does
    found: float
    allowed: float

    def __str__(self) -> str:
        return _MESSAGES[self.rule].format(found=self.found, allowed=self.allowed)


_MESSAGES = {
    "max_line_width": "{found:.0f} characters on a line; allowed are {allowed:.0f}",
    "max_line_count": "{found:.0f} lines; allowed are {allowed:.0f}",
    "max_words_per_line": "{found:.0f} words; allowed are {allowed:.0f}",
    "max_reading_speed": "{found:.1f} characters a second; allowed are {allowed:g}",
    "min_cue_s": "shown for {found:.2f} s; allowed are {allowed:g} s and more",
    "max_cue_s": "shown for {found:.2f} s; allowed are up to {allowed:g} s",
    "min_gap_s": "{found:.3f} s before the next; allowed are {allowed:g} s and more",
    "alone": "a word alone, torn out of its sentence",
}


def check_cues(cues: Sequence[Cue], layout: Layout) -> Iterator[BrokenRule]:
    """Yield the rules of a layout, or of ``"plain"`` if it has none, that cues break, cue by cue."""
    before: Cue | None = None
    for number, cue in enumerate(cues, 1):
        following = _following(cue, cues[number:])
        for rule, found, allowed, is_most in _measures(cue, following, layout):
            if found > allowed + TOLERANCE_S if is_most else found < allowed - TOLERANCE_S:
                yield BrokenRule(number=number, rule=rule, found=found, allowed=allowed)
        if _is_alone(cue, before, following):
            yield BrokenRule(number=number, rule="alone", found=1, allowed=2)
        before = cue


def _following(cue: Cue, behind: Sequence[Cue]) -> Cue | None:
    """Return the next cue; of the same speaker, where another speaks at the same time."""
    at_once = behind and behind[0].start_s < cue.end_s
    return next((each for each in behind if not at_once or each.speaker == cue.speaker), None)


def _measures(cue: Cue, following: Cue | None, layout: Layout) -> Iterator[tuple[str, float, float, bool]]:
    """Yield for each rule what the cue has, what is allowed, and whether that is the most."""
    lines, rules = cue.text.split("\n"), layout.rules(cue.text)
    size = 2 if is_wide(cue.text) else 1
    seconds = cue.end_s - cue.start_s
    width = columns(" ".join(lines))
    yield "max_line_width", max(map(columns, lines)) / size, rules.max_line_width / size, True
    yield "max_line_count", len(lines), rules.max_line_count, True
    yield "max_words_per_line", len(_words(cue.text)), rules.max_words, True
    yield "max_reading_speed", width / (seconds + TOLERANCE_S) / size, rules.max_reading_speed / size, True
    yield "min_cue_s", seconds, rules.min_cue_s, False
    yield "max_cue_s", seconds, rules.max_cue_s, True
    if following:
        yield "min_gap_s", following.start_s - cue.end_s, rules.min_gap_s, False


def _is_alone(cue: Cue, before: Cue | None, following: Cue | None) -> bool:
    """Return whether a cue is one word that belongs to the sentence before or behind it, or has a line of one word."""
    words = _words(cue.text)
    if len(words) == 1:
        belongs_before = before and not SENTENCE_END.search(before.text) and _near(before, cue)
        belongs_behind = following and not SENTENCE_END.search(cue.text) and _near(cue, following)
        return bool(belongs_before or belongs_behind)
    return len(words) > 3 and any(len(_words(line)) == 1 for line in cue.text.split("\n"))


def _near(cue: Cue, following: Cue) -> bool:
    return following.start_s - cue.end_s <= LONG_PAUSE_S


def _words(text: str) -> list[str]:
    """Return the words; in scripts without spaces every letter is one."""
    return SPACELESS_LETTER.sub(r" \g<0> ", text).split()


def read_cues(path: str | os.PathLike[str]) -> list[Cue]:
    """Read the cues of a file in the format srt or vtt, without their markup.

    A `ManifestError` says that it cannot be read, is of another kind, or has times whose cue would be left out.
    """
    text = re.sub("\r\n?", "\n", decode(read_file(Path(path), _ALLOWED), str(path)))
    for number, line in enumerate(text.split("\n"), start=1):
        if _LIKE_TIMES.match(line) and not _TIMES.fullmatch(line):
            raise ManifestError(f"{path}:{number}: {OptionError('times', line.strip(), _ALLOWED_TIMES)}")
    cues = [*parse_cues(text)]
    # Without speech an srt file is empty, and a vtt file its heading, which may go on after this word.
    if not cues and text.split(maxsplit=1)[:1] not in ([], ["WEBVTT"]):
        raise ManifestError(f"{path}: has no subtitles; {_ALLOWED}")
    return cues


def parse_cues(text: str) -> Iterator[Cue]:
    """Yield the cues of a text in the format srt or vtt, whose lines end with line feeds, without their markup.

    Their speakers are voices of vtt, or names with a colon, which stand before the first of several cues.
    """
    speaker = ""
    # Captions of YouTube begin with a line of a space, which ends no cue.
    for block in re.split(r"\n\s*\n", re.sub("(-->.*\n) +\n", r"\1", text)):
        lines = block.split("\n")
        for position, line in enumerate(lines):
            if times := _TIMES.fullmatch(line):
                start_s, end_s = _seconds(times.groups()[:4]), _seconds(times.groups()[4:])
                content = lines[position + 1 :]
                shown = (unescape(_MARKUP.sub("", each)).strip() for each in content)
                said = "\n".join(each for each in shown if each)
                if named := _VOICE.search("\n".join(content)) or _NAME.match(said):
                    speaker = named[1]
                if said:
                    yield Cue(start_s=start_s, end_s=end_s, text=said, speaker=speaker)
                break


def _seconds(clock: Sequence[str | None]) -> float:
    hours, minutes, seconds, milliseconds = (int(part or 0) for part in clock)
    return (hours * 60 + minutes) * 60 + seconds + milliseconds / 1000
