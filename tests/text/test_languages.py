"""Tests of the resolution of languages by code, name and alias."""

from __future__ import annotations

import pytest

from harken.errors import OptionError
from harken.text import LANGUAGES, to_language_code


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("de", "de"),
        ("German", "de"),
        (" ENGLISH ", "en"),
        ("castilian", "es"),
        ("Burmese", "my"),
        ("mandarin", "zh"),
        ("Haitian Creole", "ht"),
        ("haw", "haw"),
        ("jv", "jw"),
        ("yue", "yue"),
    ],
)
def test_language_code_of_codes_names_and_aliases(given: str, code: str) -> None:
    assert to_language_code(given) == code


def test_every_code_and_name_resolves_to_its_code() -> None:
    assert len(LANGUAGES) == 100
    assert [to_language_code(code) for code in LANGUAGES] == list(LANGUAGES)
    assert [to_language_code(name) for name in LANGUAGES.values()] == list(LANGUAGES)


def test_unknown_language_is_rejected_with_the_nearest_and_the_allowed() -> None:
    with pytest.raises(OptionError, match=r"language='Germn': .*\byue\b.*nearest: de \(german\)") as caught:
        to_language_code("Germn")
    assert caught.value.field == "language"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["", "klingon", "xx", "<|en|>", "en-US"])
def test_text_that_is_no_language_is_rejected(given: str) -> None:
    with pytest.raises(OptionError):
        to_language_code(given)
