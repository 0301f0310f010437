"""The interface and the layout options of all output formats, and helpers for times and for harmless text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Protocol
from unicodedata import category, east_asian_width

from harken.errors import OptionError
from harken.option_types import check, option
from harken.results import Segment, Transcript


class TranscriptFormat(Protocol):
    """A writer of one transcript in one format; each call returns the next part of the text, by default nothing."""

    def header(self) -> str:
        """Return the text before the first segment."""
        return ""

    def header_chunks(self) -> Iterator[str]:
        """Yield the text before the first segment, in pieces if it is long."""
        yield self.header()

    def segment(self, segment: Segment) -> str:
        """Return the text that the next segment adds; a later call may return part of it."""
        return ""

    def footer(self, transcript: Transcript) -> str:
        """Return the text after the last segment."""
        return ""


_PLAIN = {
    "max_line_width": 42,
    "max_line_count": 2,
    "max_reading_speed": 17.0,
    "min_cue_s": 0.83,
    "max_cue_s": 7.0,
    "min_gap_s": 0.083,
}
STYLES: Mapping[str, Mapping[str, float]] = {
    "plain": _PLAIN,
    "netflix": {**_PLAIN, "max_reading_speed": 20.0},
    "bbc": {**_PLAIN, "max_line_width": 37, "min_gap_s": 0.08},
}
"""The rules of each style, by the option that changes one. A gap is two frames: at 24 a second, at 25 for the BBC.

Sources: Netflix, Timed Text Style Guide; BBC, Subtitle Guidelines 1.2 (180 words a minute are 17 characters a second).
"""
RULES = (*_PLAIN, "max_words_per_line")
"""Options that set a rule each."""
WIDE = {"max_line_width": 16, "max_reading_speed": 9.0}
"""What differs where characters are wide, as in Chinese, Japanese and Korean (Netflix, for Chinese)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CueRules:
    """The rules of cues that are made of words."""

    max_line_width: float  # in columns: a character takes one, a wide one two
    max_line_count: int
    max_reading_speed: float  # columns a second
    min_cue_s: float
    max_cue_s: float
    min_gap_s: float  # between two cues
    max_words: float


_subtitles = partial(option, section="Subtitles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Options for subtitles and word times; the defaults leave segments unchanged.

    A segment without words is always written as a whole; a transcript without any is refused where they are needed.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    subtitle_style: str | None = _subtitles(
        None,
        "Make cues of the words, cut at sentences and clauses, by the rules of plain, netflix or bbc. Each of the "
        "options below sets one rule, and takes the others of plain.",
        choices=tuple(STYLES),
        allowed="plain, netflix or bbc",
    )
    max_line_width: int | None = _subtitles(
        None, "Characters a line: 42, bbc 37, where they are wide (as in Chinese) 16.", low=1
    )
    max_line_count: int | None = _subtitles(None, "Lines a cue: 2.", low=1)
    max_words_per_line: int | None = _subtitles(None, "Words a cue, for short ones.", low=1)
    max_reading_speed: float | None = _subtitles(
        None, "Characters a second: 17, netflix 20, where they are wide 9.", above=0
    )
    min_cue_s: float | None = _subtitles(None, "Least seconds that a cue is shown: 0.83.", low=0)
    max_cue_s: float | None = _subtitles(None, "Most seconds that a cue is shown: 7.", above=0)
    min_gap_s: float | None = _subtitles(None, "Least seconds between two cues: two frames.", low=0)
    highlight_words: bool = _subtitles(False, "In srt and vtt underline each word while it is spoken.")
    karaoke: bool = _subtitles(False, "In vtt, lrc and ass put the time of every word inside its line.")
    embed_audio: bool = option(False, "Put the recording into the html page, instead of a link to it.")
    speakers: bool = option(
        False, "Prepare tsv, words.tsv and ass for speakers, which segments alone tell too late."
    )

    def __post_init__(self) -> None:
        check(self)
        if self.highlight_words and self.karaoke:
            raise OptionError("karaoke", True, "False together with highlight_words=True")
        least_s, most_s = self._rule("min_cue_s"), self._rule("max_cue_s")
        if least_s > most_s:
            if self.min_cue_s is None:
                raise OptionError("max_cue_s", most_s, f"at least min_cue_s, {least_s:g}")
            raise OptionError("min_cue_s", least_s, f"at most max_cue_s, {most_s:g}")

    @property
    def has_rules(self) -> bool:
        """True if cues are made of words by rules, not of segments."""
        return any(getattr(self, name) is not None for name in ("subtitle_style", *RULES))

    @property
    def needs_words(self) -> bool:
        """True if segments need words."""
        return bool(self._made_of_words())

    def refuse_without_words(self) -> None:
        """Raise an `OptionError` if segments need words, for a transcript that has none."""
        for name, unset in self._made_of_words().items():
            allowed = f"{unset} for a transcript without words; one of word_timestamps=True has them"
            raise OptionError(name, getattr(self, name), allowed)

    def _made_of_words(self) -> dict[str, object]:
        """Return what is set here for which segments need words, and the value of each where it is not."""
        plain, names = Layout(), ("subtitle_style", *RULES, "highlight_words", "karaoke")
        return {name: getattr(plain, name) for name in names if getattr(self, name) != getattr(plain, name)}

    def rules(self, text: str) -> CueRules:
        """Return the rules for a text, which differ where most of its characters are wide."""
        wide = is_wide(text)
        size = 2 if wide else 1
        rules: dict[str, Any] = {name: self._rule(name, wide=wide) for name in _PLAIN}
        for name in WIDE:
            rules[name] *= size
        return CueRules(max_words=self.max_words_per_line or inf, **rules)

    def _rule(self, name: str, *, wide: bool = False) -> float:
        """Return the value of a rule: that which was given, else that of the style."""
        given: float | None = getattr(self, name)
        if given is not None:
            return given
        style = STYLES[self.subtitle_style or "plain"]
        return (WIDE if wide and name in WIDE else style)[name]


# Characters that a terminal, a player or a parser takes for commands. A vocabulary can hold any, so can the name of a
# file: an escape sequence renames a terminal's window or moves its cursor, NUL ends a text in many programs, and a lone
# surrogate (Python's sign for a byte of a file name that is no UTF-8) cannot be written at all.
_CONTROLS = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
_LINE_SEPARATORS = "\u2028\u2029"
# They turn the text behind them around. Subtitles in Arabic and Hebrew use them, so only names are rid of them.
_DIRECTIONS = "\u202a-\u202e\u2066-\u2069"

_ALL = re.compile(f"[{_CONTROLS}{_LINE_SEPARATORS}{_DIRECTIONS}]")
_IN_TEXT = re.compile(f"(?![\n\t])[{_CONTROLS}]")
_IN_JSON = re.compile(f"(?![\x00-\x1f])[{_CONTROLS}{_LINE_SEPARATORS}{_DIRECTIONS}]")
# The colours of `harken.cli.eval_report`, which do no harm in any other place.
_ON_TERMINAL = re.compile(f"(\x1b\\[(?:0|31|32)m)|(?![\n\t])[{_CONTROLS}]")
_MARKS, _WIDE_WIDTHS = ("Mn", "Me", "Cf"), "WF"


def replace_controls(text: str) -> str:
    """Return the text of a transcript with U+FFFD for every control character but line feed and tab."""
    return _IN_TEXT.sub("\ufffd", text)


def printable(text: str, keep: str = "") -> str:
    """Return a name or a message for people, with escapes such as ``\\u001b`` for characters that cannot be seen.

    It keeps those of `keep`, such as line feeds in a message of several lines.
    """
    return _ALL.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def escape_controls(text: str) -> str:
    """Return output for a terminal with escapes for control characters, except line feed, tab and harken's colours.

    JSON stays the same JSON.
    """
    return _ON_TERMINAL.sub(lambda found: found[1] or _escape(found[0]), text)


def escape_json(json: str) -> str:
    """Escape the invisible characters in the strings of a JSON document; it means the same."""
    return _IN_JSON.sub(lambda found: _escape(found[0]), json)


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"


def columns(text: str) -> int:
    """Return the width of text in columns: a wide character, as in Chinese, takes two, a combining mark none."""
    if text.isascii():
        return len(text)
    return sum(0 if category(each) in _MARKS else 1 + (east_asian_width(each) in _WIDE_WIDTHS) for each in text)


def is_wide(text: str) -> bool:
    """Return whether most characters of a text, but for spaces, are wide."""
    letters = "".join(text.split())
    return 2 * (columns(letters) - len(letters)) > len(letters)


def split_lines(text: str) -> list[str]:
    """Split text at line breaks of all kinds, and replace the other control characters."""
    return [replace_controls(line) for line in text.splitlines()]


def without_blank_lines(text: str) -> str:
    """Return text without blank lines, which would end a cue."""
    return "\n".join(line for line in map(str.strip, split_lines(text)) if line)


def single_line(text: str) -> str:
    """Return text on one line, without tabs."""
    return without_blank_lines(text).replace("\n", " ").replace("\t", " ")


def main_speaker(speakers: Sequence[str]) -> str:
    """Return the name of who speaks most, on one line; an empty text if nobody is known."""
    return printable(" ".join(speakers[0].split())) if speakers else ""


def to_milliseconds(seconds: float) -> int:
    """Round a time to milliseconds."""
    return round(seconds * 1000)


def to_centiseconds(seconds: float) -> int:
    """Round a time to hundredths of a second."""
    return round(seconds * 100)


def format_timestamp(milliseconds: int, decimal_marker: str = ".") -> str:
    """Format a time as ``hh:mm:ss.mmm``, with more than two digits for the hours if needed."""
    seconds, milliseconds = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{decimal_marker}{milliseconds:03}"
