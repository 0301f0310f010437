"""Tokens of annotations that nobody spoke: suppressed by default (`suppress_tokens="-1"`)."""

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
    """Find the tokens of ``♪``, ``[`` and their like, keeping the punctuation of ordinary sentences.

    Symbols that are one token, alone or after a space; the first token of the musical signs, however many
    they take; hyphen and apostrophe at the start of a word, though not inside.

    Parameters
    ----------
    encode : callable
        From text to tokens.

    Returns
    -------
    tuple of int
        In ascending order.
    """
    tokens = {encode(start)[0] for start in _WORD_INITIAL_MARKS}
    for symbol in _SYMBOLS + _MUSIC_SYMBOLS:
        for encoded in (encode(symbol), encode(" " + symbol)):
            if len(encoded) == 1 or symbol in _MUSIC_SYMBOLS:
                tokens.add(encoded[0])
    return tuple(sorted(tokens))
