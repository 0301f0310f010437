"""Text: tokens to words and back, the languages, the layout of the special tokens."""

from harken.text.frequent import frequent_ids
from harken.text.languages import LANGUAGES, resolve
from harken.text.stream import TextStream
from harken.text.tokenizer import Tokenizer, TokenKind

__all__ = ["LANGUAGES", "TextStream", "TokenKind", "Tokenizer", "frequent_ids", "resolve"]
