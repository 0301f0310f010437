"""Cutting a run of tokens into words, never inside a UTF-8 sequence."""

from __future__ import annotations

import string
from collections.abc import Sequence


def split_on_unicode(token_bytes: Sequence[bytes]) -> list[list[int]]:
    """Group tokens into the shortest runs that begin and end between characters.

    The groups of openai-whisper tokenizer.py, `split_tokens_on_unicode`, except that bytes which are no
    valid UTF-8 neither lose tokens nor pull a neighbouring character apart.

    Parameters
    ----------
    pieces : sequence of bytes
        What each token spells.

    Returns
    -------
    list of list of int
        Positions in `pieces`, in order, each exactly once.
    """
    data = b"".join(token_bytes)
    groups: list[list[int]] = []
    group: list[int] = []
    offset = 0
    for position, piece in enumerate(token_bytes):
        group.append(position)
        offset += len(piece)
        if _between_characters(data, offset):
            groups.append(group)
            group = []
    return groups


def split_on_spaces(token_bytes: Sequence[bytes], special: Sequence[bool]) -> list[list[int]]:
    """Group tokens into words that begin with a space, a punctuation mark or a special token.

    Source: openai-whisper tokenizer.py, `split_tokens_on_spaces`.

    Parameters
    ----------
    pieces : sequence of bytes
        What each token spells.
    special : sequence of bool
        Whether each token is a special one.

    Returns
    -------
    list of list of int
        Positions in `pieces`, in order, each exactly once.
    """
    words: list[list[int]] = []
    for group in split_on_unicode(token_bytes):
        subword = join_bytes(token_bytes, group)
        starts_word = special[group[0]] or subword.startswith(" ") or subword.strip() in string.punctuation
        if starts_word or not words:
            words.append(group)
        else:
            words[-1] += group
    return words


def join_bytes(token_bytes: Sequence[bytes], group: Sequence[int]) -> str:
    """Text of one group of tokens."""
    return b"".join(token_bytes[i] for i in group).decode(errors="replace")


def _between_characters(data: bytes, offset: int) -> bool:
    """Whether cutting here leaves the text as it is; the next byte tells, and at most three before it."""
    before, after = data[max(offset - 3, 0) : offset], data[offset : offset + 1]
    whole, cut = (before + after).decode(errors="replace"), before.decode(errors="replace")
    return whole == cut + after.decode(errors="replace")
