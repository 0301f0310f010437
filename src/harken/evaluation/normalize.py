"""How texts of a language are made comparable: the normalizers of the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from harken.evaluation.extra import extra
from harken.text.languages import UNSPACED

Normalizer = Callable[[str], str]

# The reference's tokenizer cuts Khmer at spaces, but those stand between phrases, not words.
_LETTERS_COUNT = UNSPACED | {"km"}


def has_words(language: str | None) -> bool:
    """Whether a language has spaces between its words; otherwise only its letters can be counted."""
    return language not in _LETTERS_COUNT


@cache
def normalizer(language: str | None) -> Normalizer:
    """What makes texts of a language comparable.

    Source: the Whisper paper, appendix C, and openai/whisper, normalizers/. English has rules of its own for
    spelling, numbers and contractions; all other languages lose only case, punctuation and marks. In a language
    without spaces every letter (grapheme cluster) is made a word.

    Parameters
    ----------
    language : str or None
        Code; None for a language that is not known.

    Returns
    -------
    callable
        From a text to its words with single spaces between them.

    Raises
    ------
    BackendUnavailable
        If the extra ``harken[eval]`` is not installed.
    """
    with extra():
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer

    letters = not has_words(language)
    clean: Any = EnglishTextNormalizer() if language == "en" else BasicTextNormalizer(split_letters=letters)
    return lambda text: str(clean(text)).strip()
