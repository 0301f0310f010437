"""Text of tokens that arrive one by one."""

from __future__ import annotations

import codecs

from harken.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Text of a growing run of tokens, given out as soon as its last character is complete.

    The pieces together, `flush` included, are `Tokenizer.decode` of all the tokens pushed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """Add a token and return the text that it completes; nothing for a special token."""
        return self._decoder.decode(self._tokenizer.decode_bytes((token,)))

    def flush(self) -> str:
        """Return what is left of a sequence that never ended, as U+FFFD, and begin anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
