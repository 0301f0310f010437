"""GPT-2's alphabet: every byte has a printable character, so a token of any bytes is a word of text.

Vocabulary files hold tokens in this form (a space is ``Ġ``), and so does harken until text is asked for:
turning 50,000 tokens into bytes costs more time than reading the file. Source: GPT-2 encoder.py,
`bytes_to_unicode`.
"""

from __future__ import annotations

import re

_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_TO_UNICODE = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(256 + i) for i, byte in enumerate(_UNPRINTABLE)
}
_UNICODE_TO_BYTE = {ord(letter): byte for byte, letter in _BYTE_TO_UNICODE.items()}

#: The 256 letters.
BYTE_ALPHABET = frozenset(_BYTE_TO_UNICODE.values())
_BYTE_LEVEL = re.compile("[!-~¡-¬®-\u0143]*")


def bytes_to_unicode(data: bytes) -> str:
    """Spell bytes in GPT-2's alphabet, one letter a byte."""
    return data.decode("latin-1").translate(_BYTE_TO_UNICODE)


def unicode_to_bytes(letters: str) -> bytes:
    """Give back the bytes that `spell` spelled."""
    return letters.translate(_UNICODE_TO_BYTE).encode("latin-1")


def is_byte_level(letters: str) -> bool:
    """Whether every character belongs to the alphabet."""
    return _BYTE_LEVEL.fullmatch(letters) is not None
