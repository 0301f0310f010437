"""GPT-2's byte-level alphabet, which has one printable character for each byte.

Vocabulary files contain tokens in this form (a space is ``Ġ``). harken converts them to bytes only when it decodes
them: converting all 50,000 tokens takes longer than reading the file. Source: GPT-2 encoder.py, `bytes_to_unicode`.
"""

from __future__ import annotations

import re

_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_TO_UNICODE = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(256 + i) for i, byte in enumerate(_UNPRINTABLE)
}
_UNICODE_TO_BYTE = {ord(letter): byte for byte, letter in _BYTE_TO_UNICODE.items()}

#: The 256 characters of the alphabet.
BYTE_ALPHABET = frozenset(_BYTE_TO_UNICODE.values())
_BYTE_LEVEL = re.compile("[!-~¡-¬®-\u0143]*")


def bytes_to_unicode(data: bytes) -> str:
    """Convert bytes to GPT-2's alphabet, one character per byte."""
    return data.decode("latin-1").translate(_BYTE_TO_UNICODE)


def unicode_to_bytes(letters: str) -> bytes:
    """Convert text in GPT-2's alphabet back to bytes."""
    return letters.translate(_UNICODE_TO_BYTE).encode("latin-1")


def is_byte_level(letters: str) -> bool:
    """Return True if every character belongs to the alphabet."""
    return _BYTE_LEVEL.fullmatch(letters) is not None
