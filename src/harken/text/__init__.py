"""Tokenizer: text to tokens and back, word splitting, languages, and the layout of the special tokens."""

from harken.text.frequent_tokens import frequent_token_ids
from harken.text.languages import LANGUAGES, from_language_tag, from_language_tags, to_language_code
from harken.text.tokenizer import IncrementalDetokenizer, Tokenizer, TokenKind

__all__ = [
    "LANGUAGES",
    "IncrementalDetokenizer",
    "TokenKind",
    "Tokenizer",
    "frequent_token_ids",
    "from_language_tag",
    "from_language_tags",
    "to_language_code",
]
