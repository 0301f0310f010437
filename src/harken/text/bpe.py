"""Byte-pair encoding of text, as `tiktoken` does it for openai-whisper, and GPT-2's byte-level alphabet.

The alphabet has one printable character for each byte (a space is ``Ġ``), and vocabulary files contain tokens in it.
They are converted to bytes only when they are decoded: converting all 50,000 takes longer than reading the file.

Only prompts of a few hundred characters are encoded, so plain Python is fast enough, and it costs nothing at start-up.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

# GPT-2 encoder.py, `bytes_to_unicode`.
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


# The pattern of GPT-2 (openai-whisper tokenizer.py, `get_encoding`, pat_str). Its Unicode classes \p{L}, \p{N} and \s
# do not exist in `re`. It is therefore matched against a copy of the text in which every character beyond ASCII is
# replaced by an ASCII character of the same class.
_PRETOKEN = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", flags=re.ASCII
)
_ASCII_OF_CATEGORY = {"L": "a", "N": "0", "Z": "\n"}
_NEXT_LINE = 0x85  # white space by property, although its category is control


class _AsciiOfCharacter(dict[int, str]):
    def __missing__(self, code: int) -> str:
        category = "Z" if code == _NEXT_LINE else unicodedata.category(chr(code))[0]
        ascii_character = chr(code) if code < 0x80 else _ASCII_OF_CATEGORY.get(category, "!")
        self[code] = ascii_character
        return ascii_character


_ascii_of_character = _AsciiOfCharacter()


def pretokenize(text: str) -> list[str]:
    """Split text into pretokens, which merges never cross; joined they are the text."""
    return [
        text[match.start() : match.end()] for match in _PRETOKEN.finditer(text.translate(_ascii_of_character))
    ]


def merges_of(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Return the two parts that each token of more than a byte was merged of, in order of id.

    Tokens that no merge of earlier ones makes, as those that were added later, are left out.
    """
    ranks = {token: i for i, token in enumerate(tokens)}
    merges = []
    for rank, token in enumerate(tokens):
        parts = [*token]
        while len(parts) > 2:
            candidates = [
                (earlier, i)
                for i, (left, right) in enumerate(pairwise(parts))
                if (earlier := ranks.get(left + right, rank)) < rank
            ]
            if not candidates:
                break
            _, i = min(candidates)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2 and all(ranks.get(part, rank) < rank for part in parts):
            merges.append((parts[0], parts[1]))
    return merges


class BytePairEncoder:
    """Byte-pair encoder over tokens in GPT-2's alphabet, whose ids are the ranks of their merges.

    The tokens must include each of the 256 bytes.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._ids = {token: i for i, token in enumerate(tokens)}

    def encode(self, text: str) -> list[int]:
        """Encode text; a special token such as ``<|en|>`` in it is encoded as ordinary text."""
        pretokens = (bytes_to_unicode(part.encode(errors="replace")) for part in pretokenize(text))
        return [token for pretoken in pretokens for token in self._merge(pretoken)]

    def _merge(self, pretoken: str) -> list[int]:
        """Merge the neighbours of lowest rank, leftmost first, until no two neighbours form a token."""
        if pretoken in self._ids:
            return [self._ids[pretoken]]
        end = len(pretoken)
        after = [*range(1, end + 1), -1]  # end of the part that starts here; -1: no part starts here
        before = list(range(-1, end))
        pairs = [
            pair for start in range(end - 1) if (pair := self._pair(pretoken, start, start + 1, start + 2))
        ]
        heapify(pairs)
        while pairs:
            _, left, middle, right = heappop(pairs)
            if after[left] != middle or after[middle] != right:
                continue
            after[left], after[middle], before[right] = right, -1, left
            if left and (pair := self._pair(pretoken, before[left], left, right)):
                heappush(pairs, pair)
            if right < end and (pair := self._pair(pretoken, left, right, after[right])):
                heappush(pairs, pair)
        boundaries = [start for start in range(end) if after[start] >= 0] + [end]
        return [self._ids[pretoken[a:b]] for a, b in pairwise(boundaries)]

    def _pair(self, pretoken: str, left: int, middle: int, right: int) -> tuple[int, int, int, int] | None:
        rank = self._ids.get(pretoken[left:right])
        return None if rank is None else (rank, left, middle, right)
