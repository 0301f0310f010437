"""Record how OpenCC writes Chinese characters, as data of the package.

Run from the root of the repository, with OpenCC installed and its dictionaries as texts (`data/dictionary` of its
repository)::

    python tests/golden/record_scripts.py path/to/dictionary

It writes ``chinese.txt.xz``: a pair a line, before and after without a space between, to simplified characters and,
behind an empty line, to traditional ones. Of the phrases, those that shorter pairs do not explain, and those of two
characters of which the second begins another phrase: there a word ends.
"""

from __future__ import annotations

import lzma
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from opencc import OpenCC

from harken.text import Script

TARGET = Path(__file__).parents[2] / "src/harken/text/data/chinese.txt.xz"
CHARACTERS = [*map(chr, (*range(0x3400, 0x4DC0), *range(0x4E00, 0xA000)))]


def main(dictionaries: Path) -> None:
    simplified = pairs(OpenCC("tw2s").convert, phrases(dictionaries, "TSPhrases", "TWVariantsRevPhrases"))
    traditional = pairs(
        OpenCC("s2tw").convert, phrases(dictionaries, "STPhrases", "STPhrases_GeneratedFromRegionalPhrases")
    )
    blocks = ["\n".join(map("".join, each.items())) for each in (simplified, traditional)]
    TARGET.write_bytes(lzma.compress("\n\n".join(blocks).encode(), preset=9 | lzma.PRESET_EXTREME))


def phrases(dictionaries: Path, *names: str) -> list[str]:
    """Return the phrases of dictionaries, shorter ones first."""
    lines = [line for name in names for line in (dictionaries / f"{name}.txt").read_text("utf-8").splitlines()]
    return sorted({line.partition("\t")[0] for line in lines}, key=lambda phrase: (len(phrase), phrase))


def pairs(convert: Callable[[str], str], phrases: Iterable[str]) -> dict[str, str]:
    """Return what is written for characters and phrases, without characters that fonts often lack."""
    converted = {before: convert(before) for before in (*CHARACTERS, *phrases)}
    known = {
        before: after
        for before, after in converted.items()
        if len(after) == len(before) and max(before + after) <= "\uffff"
    }
    letters = {before: after for before, after in known.items() if len(before) == 1 and after != before}
    longer: dict[str, str] = {}
    for before, after in known.items():
        if len(before) > 1 and after != written(Script(letters=letters, phrases=longer), before):
            longer[before] = after
    first_characters = {before[0] for before in longer}
    ends = {
        before: after for before, after in known.items() if len(before) == 2 and before[1] in first_characters
    }
    return letters | ends | longer


def written(script: Script, text: str) -> str:
    """Return a text in a script that leaves its length."""
    characters = [*text]
    for start, end, after in script.changes(text):
        characters[start:end] = after
    return "".join(characters)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
