"""Scripts of a language that is written in two: Chinese characters, simplified or traditional, and Serbian letters.

Whisper writes either, and mixes them. A text is rewritten behind decoding, character by character but for phrases in
which one has another form (docs/decisions/languages.md).
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

_DATA = Path(__file__).parent / "data"
_CYRILLIC = dict(zip("абвгдђежзијклмнопрстћуфхцчш", "abvgdđežzijklmnoprstćufhcčš", strict=True)) | {
    **{"љ": "lj", "њ": "nj", "џ": "dž"}
}
_NO_DIGRAPHS = (
    *("injekc", "injekt", "konjekt", "konjug", "konjunk", "tanjug", "vanjezi"),
    *("nadživ", "odžal", "odživ", "podžanr"),
)
"""Parts of Serbian words in which ``nj`` and ``dž`` are two letters."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script of a language: what its texts have for the letters and phrases of another.

    Parameters
    ----------
    letters : mapping of str to str
        What is written for some letters, of one character or a few; the longest that fits counts.
    phrases : mapping of str to str
        Phrases that are not written letter by letter; as long as before.
    foreign : Pattern or None
        Words that stay as they are.
    """

    letters: Mapping[str, str]
    phrases: Mapping[str, str] = field(default_factory=dict)
    foreign: re.Pattern[str] | None = None

    def changes(self, text: str, *, unfinished: bool = False) -> Iterator[tuple[int, int, str]]:
        """Yield start and end of each part that is written otherwise, and what for; each is within a word.

        Parameters
        ----------
        text : str
        unfinished : bool
            Whether words may follow, which must not change what is written for this text: no phrases.
        """
        phrases = {} if unfinished else self.phrases
        foreign = (
            {i for word in self.foreign.finditer(text) for i in range(*word.span())} if self.foreign else ()
        )
        start = 0
        while start < len(text):
            for end in range(min(start + self._longest, len(text)), start, -1):
                part = text[start:end]
                written = phrases.get(part, self.letters.get(part))
                if written is not None and start not in foreign:
                    break
            else:
                end, written = start + 1, text[start]
            if len(written) == end - start:
                for i, letter in enumerate(written, start):
                    if letter != text[i]:
                        yield i, i + 1, letter
            else:
                yield start, end, written
            start = end

    @cached_property
    def _longest(self) -> int:
        return max(map(len, (*self.letters, *self.phrases)))


@cache
def script_named(language: str, script: str) -> Script:
    """Return a script of `harken.text.languages.SCRIPTS`.

    Parameters
    ----------
    language : str
        Code of the language.
    script : {"Hans", "Hant", "Latn", "Cyrl"}
        As ISO 15924 names it.
    """
    if language == "sr":
        return _serbian_latin() if script == "Latn" else _serbian_cyrillic()
    simplified, traditional = lzma.decompress((_DATA / "chinese.txt.xz").read_bytes()).decode().split("\n\n")
    lines = (simplified if script == "Hans" else traditional).split()
    pairs = {line[: len(line) // 2]: line[len(line) // 2 :] for line in lines}
    return Script(
        letters={before: after for before, after in pairs.items() if len(before) == 1},
        phrases={before: after for before, after in pairs.items() if len(before) > 1},
    )


def _serbian_latin() -> Script:
    capitals = {cyrillic.upper(): latin.title() for cyrillic, latin in _CYRILLIC.items()}
    in_capitals = {cyrillic.upper(): latin.upper() for cyrillic, latin in _CYRILLIC.items()}
    pairs = {
        first + second: in_capitals[first] + in_capitals[second]
        for first in in_capitals
        for second in in_capitals
        if len(in_capitals[first] + in_capitals[second]) > 2
    }
    return Script(letters=_CYRILLIC | capitals | pairs)


def _serbian_cyrillic() -> Script:
    letters = {latin: cyrillic for cyrillic, latin in _CYRILLIC.items()}
    letters |= {part: "".join(letters[letter] for letter in part) for part in _NO_DIGRAPHS}
    capitals = {latin.capitalize(): cyrillic.capitalize() for latin, cyrillic in letters.items()}
    in_capitals = {latin.upper(): cyrillic.upper() for latin, cyrillic in letters.items()}
    return Script(letters=letters | capitals | in_capitals, foreign=re.compile(r"\w*[qwxy]\w*", re.IGNORECASE))
