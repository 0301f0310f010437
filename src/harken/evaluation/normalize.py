"""How texts of a language are made comparable: the normalizers of the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from harken.evaluation.extra import require_eval_extra
from harken.text.languages import LANGUAGES_WITHOUT_SPACES

Normalizer = Callable[[str], str]

# The reference's tokenizer cuts Khmer at spaces, but those stand between phrases, not words.
_SCORED_BY_CHARACTER = LANGUAGES_WITHOUT_SPACES | {"km"}


def is_spaced(language: str | None) -> bool:
    """Whether a language has spaces between its words; otherwise only its letters can be counted."""
    return language not in _SCORED_BY_CHARACTER


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
    with require_eval_extra():
        from whisper_normalizer.basic import BasicTextNormalizer
        from whisper_normalizer.english import EnglishTextNormalizer

    split_letters = not is_spaced(language)
    clean: Any = (
        EnglishTextNormalizer() if language == "en" else BasicTextNormalizer(split_letters=split_letters)
    )
    return lambda text: str(clean(text)).strip()
