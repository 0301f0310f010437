"""Tokens of non-speech annotations, which are suppressed by default (`suppress_tokens="-1"`)."""

from __future__ import annotations

from collections.abc import Callable

# The lists of openai-whisper tokenizer.py, `non_speech_tokens`.
_SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
_MUSIC_SYMBOLS = (*"♩♪♫♬♭♮♯",)
_WORD_INITIAL_MARKS = (" -", " '")


def non_speech_tokens(encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    """Return the tokens of symbols such as ``♪`` and ``[``, but not of ordinary punctuation.

    These are all symbols that are a single token, alone or after a space; the first token of each musical symbol,
    however many tokens it has; and hyphen and apostrophe at the start of a word, but not inside.

    Parameters
    ----------
    encode : callable
        Converts text to tokens.

    Returns
    -------
    tuple of int
        In ascending order.
    """
    tokens = {encode(mark)[0] for mark in _WORD_INITIAL_MARKS}
    for symbol in _SYMBOLS + _MUSIC_SYMBOLS:
        for encoded in (encode(symbol), encode(" " + symbol)):
            if len(encoded) == 1 or symbol in _MUSIC_SYMBOLS:
                tokens.add(encoded[0])
    return tuple(sorted(tokens))
