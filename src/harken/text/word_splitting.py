"""Splitting of tokens into words, never inside a UTF-8 sequence."""

from __future__ import annotations

import string
from collections.abc import Sequence


def split_on_unicode(token_bytes: Sequence[bytes]) -> list[list[int]]:
    """Group tokens into the shortest runs that begin and end between characters.

    Source: openai-whisper tokenizer.py, `split_tokens_on_unicode`, except that invalid UTF-8 neither loses tokens nor
    splits a neighbouring character.

    Parameters
    ----------
    token_bytes : sequence of bytes
        The bytes of each token.

    Returns
    -------
    list of list of int
        Indices into `token_bytes`, in order, each exactly once.
    """
    data = b"".join(token_bytes)
    groups: list[list[int]] = []
    group: list[int] = []
    offset = 0
    for index, data_of_token in enumerate(token_bytes):
        group.append(index)
        offset += len(data_of_token)
        if _between_characters(data, offset):
            groups.append(group)
            group = []
    return groups


def split_on_spaces(token_bytes: Sequence[bytes], special: Sequence[bool]) -> list[list[int]]:
    """Group tokens into words that begin with a space, a punctuation mark or a special token.

    Source: openai-whisper tokenizer.py, `split_tokens_on_spaces`.

    Parameters
    ----------
    token_bytes : sequence of bytes
        The bytes of each token.
    special : sequence of bool
        True for each special token.

    Returns
    -------
    list of list of int
        Indices into `token_bytes`, in order, each exactly once.
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
    """Decode one group of tokens."""
    return b"".join(token_bytes[i] for i in group).decode(errors="replace")


def _between_characters(data: bytes, offset: int) -> bool:
    """Return True if a split at `offset` does not change the decoded text; only adjacent bytes matter."""
    before, after = data[max(offset - 3, 0) : offset], data[offset : offset + 1]
    joined = (before + after).decode(errors="replace")
    return joined == before.decode(errors="replace") + after.decode(errors="replace")
