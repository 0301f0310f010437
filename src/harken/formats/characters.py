"""Characters that a terminal, a player or a parser takes for commands, made harmless; and how wide characters are.

A vocabulary can hold any characters, and so can the name of a file: an escape sequence renames a terminal's window or
moves its cursor, NUL ends a text in many programs, and a lone surrogate (Python's sign for a byte of a file name that
is no UTF-8) cannot be written at all.
"""

from __future__ import annotations

import re
from unicodedata import category, east_asian_width

_CONTROLS = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
_LINE_SEPARATORS = "\u2028\u2029"
# They turn the text behind them around. Subtitles in Arabic and Hebrew use them, so only names are rid of them.
_DIRECTIONS = "\u202a-\u202e\u2066-\u2069"

_ALL = re.compile(f"[{_CONTROLS}{_LINE_SEPARATORS}{_DIRECTIONS}]")
_IN_TEXT = re.compile(f"(?![\n\t])[{_CONTROLS}]")
_IN_JSON = re.compile(f"(?![\x00-\x1f])[{_CONTROLS}{_LINE_SEPARATORS}{_DIRECTIONS}]")
# The colours of `harken.cli.eval`, which do no harm in any other place.
_ON_TERMINAL = re.compile(f"(\x1b\\[(?:0|31|32)m)|(?![\n\t])[{_CONTROLS}]")


def replace_controls(text: str) -> str:
    """Return the text of a transcript with U+FFFD for every control character but line feed and tab."""
    return _IN_TEXT.sub("\ufffd", text)


def printable(text: str, keep: str = "") -> str:
    """Return a name or a message for people, with escapes such as ``\\u001b`` for characters that cannot be seen.

    Parameters
    ----------
    text : str
    keep : str
        Characters to keep, such as line feeds in a message of several lines.
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
    return sum(0 if category(each) in _MARKS else 1 + (east_asian_width(each) in _WIDE) for each in text)


def is_wide(text: str) -> bool:
    """Return whether most characters of a text, but for spaces, are wide."""
    letters = "".join(text.split())
    return not letters.isascii() and 2 * (columns(letters) - len(letters)) > len(letters)


_MARKS, _WIDE = ("Mn", "Me", "Cf"), "WF"
