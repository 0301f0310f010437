"""Tokenizer: text to tokens and back, word splitting, languages, and the layout of the special tokens."""

from harken.text.languages import (
    LANGUAGES,
    Script,
    asks_for_detection,
    from_language_tag,
    from_language_tags,
    script_named,
    script_of,
    to_language_code,
)
from harken.text.tokenizer import IncrementalDetokenizer, Tokenizer, TokenKind

__all__ = [
    "LANGUAGES",
    "IncrementalDetokenizer",
    "Script",
    "TokenKind",
    "Tokenizer",
    "asks_for_detection",
    "from_language_tag",
    "from_language_tags",
    "script_named",
    "script_of",
    "to_language_code",
]
