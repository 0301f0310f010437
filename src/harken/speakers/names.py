"""Names of speakers whom nobody has named."""

from __future__ import annotations

from string import ascii_uppercase


def letters(index: int) -> str:
    """Return the name of an unknown speaker: A to Z, then AA, AB, ..."""
    name = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, len(ascii_uppercase))
        name = ascii_uppercase[letter] + name
    return name
