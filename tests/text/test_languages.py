"""Tests of the resolution of languages by code, name and alias."""

from __future__ import annotations

import pytest

from harken.errors import OptionError
from harken.text import LANGUAGES, to_language_code


def test_every_code_and_name_resolves_to_its_code() -> None:
    assert len(LANGUAGES) == 100
    given = {" ENGLISH ": "en", "German": "de", "castilian": "es", "Haitian Creole": "ht", "jv": "jw"}
    assert {name: to_language_code(name) for name in given} == given
    assert [to_language_code(code) for code in LANGUAGES] == list(LANGUAGES)
    assert [to_language_code(name) for name in LANGUAGES.values()] == list(LANGUAGES)


def test_unknown_language_is_rejected_with_the_nearest_and_the_allowed() -> None:
    with pytest.raises(OptionError, match=r"language='Germn': .*\byue\b.*nearest: de \(german\)") as caught:
        to_language_code("Germn")
    assert caught.value.field == "language"
    assert "\n" not in str(caught.value)
    for given in ("", "klingon", "xx", "<|en|>", "en-US"):
        with pytest.raises(OptionError):
            to_language_code(given)
