"""The languages of Whisper, in the order of their tokens in the vocabulary, and the scripts of those with two.

Whisper writes Chinese in simplified or traditional characters, Serbian in Latin or Cyrillic letters, and mixes them. A
text is rewritten behind decoding, character by character but for phrases in which one has another form
(docs/decisions/languages.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from harken.errors import OptionError


class _Names(dict[str, str]):
    """Names by code; a language that a model has added is named by its code."""

    def __missing__(self, code: str) -> str:
        return code


_DATA = Path(__file__).parent / "data"
_, *_ROWS = (row.split(",") for row in (_DATA / "languages.csv").read_text(encoding="utf-8").splitlines())

#: Code to name, in vocabulary order (openai-whisper tokenizer.py, `LANGUAGES`). Models before large-v3
#: have the first 99; large-v3 added Cantonese.
LANGUAGES = _Names((code, name) for code, name, _, _ in _ROWS)

#: Other names of some languages (openai-whisper tokenizer.py, `TO_LANGUAGE_CODE`); `jv` is the ISO 639
#: code of the vocabulary's `jw`.
ALIASES = {alias: code for code, _, aliases, _ in _ROWS for alias in aliases.split()}

#: Codes of ISO 639 that locales, media files and other programs write, beside those of the vocabulary.
TAGS = {tag: code for code, _, _, tags in _ROWS for tag in tags.split()}

_CHINESE = dict.fromkeys(("hans", "cn", "sg"), "Hans") | dict.fromkeys(("hant", "tw", "hk", "mo"), "Hant")

#: Scripts that a text can be written in (`script_named`), by what asks for them in a tag: a script, or a region
#: that has it.
SCRIPTS = {
    "zh": _CHINESE,
    "yue": _CHINESE,
    "sr": {"latn": "Latn", "latin": "Latn", "cyrl": "Cyrl", "cyrillic": "Cyrl"},
}

#: Tags that name no language: it is to be detected.
ANY_LANGUAGE = frozenset({"", "*", "auto", "detect", "none", "null", "und", "mul", "mis", "multi"})

#: Languages written without spaces, which are split into words between characters
#: (openai-whisper tokenizer.py, `Tokenizer.split_to_word_tokens`).
LANGUAGES_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})

#: Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
SPACELESS_LETTER = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")

#: The end of a sentence in any script; behind a Greek letter a semicolon is a question mark.
SENTENCE_END = re.compile(r"(?:[.!?…。！？｡؟۔।॥։።፧။។\u037e]|(?<=[Ͱ-Ͽἀ-῿]);)+[\"'”’»)\]」』）]*\s*$")

_SEPARATORS = re.compile("[-_.@]")
_SCRIPT = re.compile("[a-z]{4}")  # RFC 5646, section 2.2.3
LANGUAGE_TOKEN = re.compile(r"<\|([a-z]{2,3})\|>")
_OTHER_LANGUAGE = re.compile(
    "a[abekvy]|bi|c[ehoruv]|d[vz]|e[eo]|f[fjy]|g[adv]|h[oz]|i[aegikou]|jv|k[gijlrsuvwy]|l[giu]|mh|n[adgrvy]|o[jmrs]|pi|"
    "qu|r[mnw]|s[ceghmst]|t[inoswy]|ug|v[eo]|w[ao]|xh|z[au]"
)
"""Codes of ISO 639-1 that Whisper has no token for."""
_NO_LANGUAGE = re.compile("bos|cls|eos|hmm|mhm|pad|sep|uhm|umm|unk")
"""Tokens in the form of codes of three letters, of which ISO 639-3 has nearly half as languages."""
_CODES = {code: code for code in LANGUAGES} | {name: code for code, name in LANGUAGES.items()} | ALIASES


def to_language_code(language: str, *, option: str = "language") -> str:
    """Find the code of a language given by code, name, alias or tag, in any case.

    Parameters
    ----------
    language : str
        Such as ``"de"``, ``"German"`` or ``"castilian"``; a tag of BCP 47 or a locale, of which the language counts
        (``"pt_BR"``, ``"zh-Hant"``); a code of ISO 639 (``"ger"``); or the token of a language that a model has added,
        such as ``"<|gsw|>"``.
    option : str
        Name of the option that it comes from, for the error.

    Returns
    -------
    str
        A key of `LANGUAGES`, or the code of the token.

    Raises
    ------
    OptionError
        If no language has that code or name; the message names the nearest ones.
    """
    token = LANGUAGE_TOKEN.fullmatch(language.strip())
    if token and token[1] not in _CODES:
        return token[1]
    code, _ = _split(language)
    if code is None:
        raise OptionError(option, language, _allowed_languages(language))
    return code


def language_of_token(token: str, declared: Collection[str] | None) -> str | None:
    """Return the code of the language that a token of a model stands for; None for another, as the filler ``<|um|>``.

    Parameters
    ----------
    token : str
        As the vocabulary names it.
    declared : collection of str or None
        The tokens that the model says are languages, beside those of Whisper; None for those that may be codes of ISO
        639.
    """
    match = LANGUAGE_TOKEN.fullmatch(token)
    if match is None:
        return None
    code = match[1]
    if code in LANGUAGES:
        is_language = True
    elif declared is not None:
        is_language = token in declared
    elif len(code) == 2:
        is_language = code in TAGS or _OTHER_LANGUAGE.fullmatch(code) is not None
    else:
        is_language = _NO_LANGUAGE.fullmatch(code) is None
    return TAGS.get(code, code) if is_language else None


def script_of(language: str, *, option: str = "language") -> str | None:
    """Find the script that a language is to be written in: ``Hant`` of ``zh-Hant`` and ``zh_TW``.

    Parameters
    ----------
    language : str
        As for `from_language_tag`.
    option : str
        As for `to_language_code`.

    Returns
    -------
    str or None
        A script of `SCRIPTS`; None if it names none, or a language that has one script.

    Raises
    ------
    OptionError
        If it names another script than those of its language.
    """
    code, subtags = _split(language)
    scripts = SCRIPTS.get(code or "", {})
    for subtag in subtags:
        if subtag in scripts:
            return scripts[subtag]
        if scripts and _SCRIPT.fullmatch(subtag):
            tags = [f"{code}-{script}" for script in dict.fromkeys(scripts.values())]
            raise OptionError(option, language, f"{' or '.join(tags)}, or {code} as it comes")
    return None


def from_language_tag(tag: str | None, *, option: str = "language") -> str | None:
    """Find the code of a language in any spelling of other programs: ``en-US``, ``pt_BR``, ``nb``, ``ger``, ``auto``.

    Parameters
    ----------
    tag : str or None
        As for `to_language_code`, or one that `asks_for_detection`.
    option : str
        As for `to_language_code`.

    Returns
    -------
    str or None
        A key of `LANGUAGES`, with the script if one is asked for, such as ``zh-Hant``; None if the language is to be
        detected.

    Raises
    ------
    OptionError
        As for `to_language_code`.
    """
    given = tag or ""
    if asks_for_detection(given):
        return None
    code, script = to_language_code(given, option=option), script_of(given)
    return f"{code}-{script}" if script else code


def asks_for_detection(tag: str) -> bool:
    """Return whether a tag stands for any language: ``auto``, ``und``, ``mul-Latn``, or nothing."""
    return _SEPARATORS.split(tag.strip().lower())[0] in ANY_LANGUAGE


def from_language_tags(tags: Iterable[str], *, option: str = "languages") -> tuple[str, ...]:
    """Find several languages, each once; none if one of the tags stands for any language."""
    codes = dict.fromkeys(from_language_tag(tag, option=option) for tag in tags)
    return () if None in codes else tuple(code for code in codes if code)


def _split(tag: str) -> tuple[str | None, list[str]]:
    """Split a tag into the code of its language, if it has one, and the rest."""
    language, *subtags = _SEPARATORS.split(tag.strip().lower())
    return _CODES.get(TAGS.get(language, language)), subtags


def _allowed_languages(language: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(language.strip().lower(), _CODES, n=3)
    nearest = " or ".join(f"{_CODES[name]} ({LANGUAGES[_CODES[name]]})" for name in close)
    allowed = f"one of {', '.join(LANGUAGES)} or its English name"
    return f"{allowed}; nearest: {nearest}" if close else allowed


# --- scripts -----------------------------------------------------------------------------------------------

_CYRILLIC = dict(zip("абвгдђежзијклмнопрстћуфхцчш", "abvgdđežzijklmnoprstćufhcčš", strict=True)) | {
    **{"љ": "lj", "њ": "nj", "џ": "dž"}
}
_NO_DIGRAPHS = (
    *("injekc", "injekt", "konjekt", "konjug", "konjunk", "tanjug", "vanjezi"),
    *("nadživ", "odžal", "odživ", "podžanr"),
)
"""Parts of Serbian words in which ``nj`` and ``dž`` are two letters."""


class Change(NamedTuple):
    """A part of a text, and what stands for it."""

    start: int
    end: int
    text: str


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

    def changes(self, text: str, *, unfinished: bool = False) -> Iterator[Change]:
        """Yield the parts that are written otherwise; each is within a word.

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
                        yield Change(i, i + 1, letter)
            else:
                yield Change(start, end, written)
            start = end

    @cached_property
    def _longest(self) -> int:
        return max(map(len, (*self.letters, *self.phrases)))


@cache
def script_named(language: str, script: str) -> Script:
    """Return a script of `SCRIPTS`.

    Parameters
    ----------
    language : str
        Code of the language.
    script : {"Hans", "Hant", "Latn", "Cyrl"}
        As ISO 15924 names it.
    """
    if language == "sr":
        return _serbian_latin() if script == "Latn" else _serbian_cyrillic()
    import lzma

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
