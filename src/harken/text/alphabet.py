"""GPT-2's alphabet: every byte has a printable character, so a token of any bytes is a word of text.

Vocabulary files hold tokens in this form (a space is ``Ġ``), and so does harken until text is asked for:
turning 50,000 tokens into bytes costs more time than reading the file. Source: GPT-2 encoder.py,
`bytes_to_unicode`.
"""

from __future__ import annotations

import re

_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTABLE]
_LETTERS = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_HIDDEN)}
_BYTES = {ord(letter): byte for byte, letter in _LETTERS.items()}

#: The 256 letters.
ALPHABET = frozenset(_LETTERS.values())
_SPELLED = re.compile("[!-~¡-¬®-\u0143]*")


def spell(data: bytes) -> str:
    """Spell bytes in GPT-2's alphabet, one letter a byte."""
    return data.decode("latin-1").translate(_LETTERS)


def unspell(letters: str) -> bytes:
    """Give back the bytes that `spell` spelled."""
    return letters.translate(_BYTES).encode("latin-1")


def is_spelled(letters: str) -> bool:
    """Whether every character belongs to the alphabet."""
    return _SPELLED.fullmatch(letters) is not None
