"""Incremental decoding of tokens to text."""

from __future__ import annotations

import codecs

from harken.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Incremental detokenizer that returns text as soon as its last character is complete.

    The returned texts, including that of `flush`, joined are `Tokenizer.decode` of all tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """Return the text that the next token completes; empty for a special token."""
        return self._decoder.decode(self._tokenizer.decode_bytes((token,)))

    def flush(self) -> str:
        """Return an incomplete character, if any, as U+FFFD, and reset the detokenizer."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
