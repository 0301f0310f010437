"""The tokenizer: token ids to text and back, and the layout of the special tokens.

The layout follows openai-whisper tokenizer.py, `get_encoding`. After the text tokens come, one id each:
``<|endoftext|>``, ``<|startoftranscript|>``, the languages, ``<|translate|>``, ``<|transcribe|>``,
``<|startoflm|>``, ``<|startofprev|>``, ``<|nospeech|>``, ``<|notimestamps|>`` and the 1501 timestamps
``<|0.00|>`` to ``<|30.00|>``. English-only vocabularies contain the language tokens too, unused.
"""

from __future__ import annotations

import codecs
import string
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from harken.errors import CheckpointError, OptionError
from harken.text.languages import LANGUAGES, LANGUAGES_WITHOUT_SPACES, to_language_code
from harken.text.vocabulary import (
    BYTE_ALPHABET,
    END_OF_TEXT,
    MIN_MULTILINGUAL_VOCAB,
    N_ENGLISH_TOKENS,
    N_TIMESTAMPS,
    BytePairEncoder,
    builtin_tokens,
    bytes_to_unicode,
    read_tokens,
    unicode_to_bytes,
)

TIMESTAMPS_PER_S = 50
_N_SPECIALS_BESIDE_LANGUAGES = 8 + N_TIMESTAMPS
_TASKS = ("transcribe", "translate")
# The lists of openai-whisper tokenizer.py, `non_speech_tokens`.
_SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
_MUSIC_SYMBOLS = (*"♩♪♫♬♭♮♯",)
_WORD_INITIAL_MARKS = (" -", " '")


class TokenKind(StrEnum):
    """The kind of a token."""

    TEXT = "text"
    EOT = "eot"
    SOT = "sot"
    LANGUAGE = "language"
    TASK = "task"
    CONTROL = "control"
    TIMESTAMP = "timestamp"


class Tokenizer:
    """Tokenizer of one Whisper vocabulary. Immutable, cheap to build, safe to share between threads.

    Parameters
    ----------
    tokens : sequence of str
        The text tokens in GPT-2's alphabet, in order of id.
    n_vocab : int
        Size of the whole vocabulary, including special tokens and timestamps (`Dims.n_vocab`); the number of languages
        follows from it.
    multilingual : bool, optional
        True if prompts contain a language and a task. The default is that of the reference: True from 51865 tokens on.
    languages : sequence of str, optional
        Codes of the languages in order of id; by default as many of `LANGUAGES` as `n_vocab` has room for.
    has_timestamps : bool
        False for a vocabulary from which the timestamps were removed.

    Attributes
    ----------
    eot, sot, translate, transcribe, sot_lm, sot_prev, no_speech, no_timestamps : int
        Ids of the special tokens.
    timestamp_begin : int
        Id of ``<|0.00|>``; later timestamps follow in steps of 0.02 s.
    language_tokens : dict of str to int
        Id of the token of each language code.
    n_vocab : int
        As given.
    multilingual, has_timestamps : bool
        As given.
    model_ids : sequence of int
        The id of each token in the files of the model, which are others if its vocabulary has tokens of its own.

    Raises
    ------
    CheckpointError
        If the first 256 tokens are not the single bytes, or `n_vocab` does not leave room for 1 to 100
        languages after the text tokens.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        n_vocab: int,
        *,
        multilingual: bool | None = None,
        languages: Sequence[str] | None = None,
        has_timestamps: bool = True,
    ) -> None:
        if {*tokens[:256]} != BYTE_ALPHABET:
            raise CheckpointError("the first 256 tokens of the vocabulary are not the single bytes")
        n_languages = len(languages or ()) or n_vocab - len(tokens) - _N_SPECIALS_BESIDE_LANGUAGES
        if languages is None and not 1 <= n_languages <= len(LANGUAGES):
            smallest = len(tokens) + _N_SPECIALS_BESIDE_LANGUAGES + 1
            raise CheckpointError(
                f"a vocabulary of {len(tokens)} text tokens does not fit a model of n_vocab={n_vocab}; "
                f"allowed is {smallest} to {smallest + len(LANGUAGES) - 1}"
            )
        self._tokens = tokens
        self.n_vocab = n_vocab
        self.multilingual = n_vocab >= MIN_MULTILINGUAL_VOCAB if multilingual is None else multilingual
        self.eot = len(tokens)
        self.sot = self.eot + 1
        self.language_tokens = {
            code: self.sot + 1 + i for i, code in zip(range(n_languages), languages or LANGUAGES, strict=False)
        }
        self.translate = self.sot + 1 + n_languages
        self.transcribe = self.translate + 1
        self.sot_lm = self.translate + 2
        self.sot_prev = self.translate + 3
        self.no_speech = self.translate + 4
        self.no_timestamps = self.translate + 5
        self.timestamp_begin = self.translate + 6
        self.has_timestamps = has_timestamps
        self.model_ids: Sequence[int] = range(n_vocab)

    def has_same_vocabulary(self, other: Tokenizer) -> bool:
        """Return True if both have the same token for every id."""
        return (self.n_vocab, *self._tokens) == (other.n_vocab, *other._tokens)

    @classmethod
    def from_file(cls, path: Path, n_vocab: int) -> Tokenizer:
        """Build from ``tokenizer.json``, ``vocab.json``, ``vocabulary.txt`` or ``vocabulary.json``.

        Raises
        ------
        CheckpointError
            If the file cannot be read, or is not a Whisper vocabulary of that size.
        """
        tokens = read_tokens(path)
        published = {N_ENGLISH_TOKENS: "English", N_ENGLISH_TOKENS + 1: "multilingual"}.get(len(tokens))
        if published and (published == "English") == (n_vocab >= MIN_MULTILINGUAL_VOCAB):
            raise CheckpointError(f"the {published} vocabulary, which does not fit a model of {n_vocab=}")
        return cls(tokens, n_vocab)

    @classmethod
    def from_tokens(cls, tokens: Iterable[bytes], n_vocab: int) -> Tokenizer:
        """Build from the bytes of the text tokens in order of id, as in ggml files.

        ``<|endoftext|>``, which only some ggml files contain, and all tokens after it are ignored.
        """
        byte_level_tokens = [bytes_to_unicode(token) for token in tokens]
        if END_OF_TEXT in byte_level_tokens:
            del byte_level_tokens[byte_level_tokens.index(END_OF_TEXT) :]
        return cls(byte_level_tokens, n_vocab)

    @classmethod
    def builtin(cls, n_vocab: int) -> Tokenizer:
        """Build from a vocabulary in the package, for checkpoints without one (``.pt``)."""
        return cls(builtin_tokens(n_vocab >= MIN_MULTILINGUAL_VOCAB), n_vocab)

    def vocabulary(self) -> list[str]:
        """Return all tokens in order of id: the text tokens in GPT-2's alphabet, then names as ``<|en|>``."""
        return [*self._tokens, *map(self.describe_token, range(self.eot, self.n_vocab))]

    def text_bytes(self) -> list[bytes]:
        """Return the bytes of each text token in order of id."""
        return [*map(unicode_to_bytes, self._tokens)]

    def encode(self, text: str) -> list[int]:
        """Encode text into text tokens; a special token such as ``<|en|>`` in it is encoded as ordinary text."""
        return self._encoder.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode the text tokens among `tokens`; invalid UTF-8 becomes U+FFFD."""
        return self.decode_bytes(tokens).decode(errors="replace")

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of the text tokens among `tokens`."""
        return unicode_to_bytes("".join(self._tokens[token] for token in tokens if token < self.eot))

    def decode_with_timestamps(self, tokens: Iterable[int]) -> str:
        """Decode all tokens, special ones as ``<|1.08|>`` or ``<|en|>``."""
        return b"".join(map(self._token_bytes, tokens)).decode(errors="replace")

    def describe_token(self, token: int) -> str:
        """Return one token in readable form: ``<|0.40|>``, ``<|en|>`` or its text."""
        return self._token_bytes(token).decode(errors="replace")

    def kind(self, token: int) -> TokenKind:
        """Return the kind of a token."""
        self._check_id(token)
        if token < self.eot:
            return TokenKind.TEXT
        if token >= self.timestamp_begin:
            return TokenKind.TIMESTAMP
        return self._specials[token][0]

    def timestamp_s(self, token: int) -> float:
        """Return the time of a timestamp token in seconds from the start of its window, 0.0 to 30.0."""
        assert token >= self.timestamp_begin, f"token {token} is no timestamp"
        return (token - self.timestamp_begin) / TIMESTAMPS_PER_S

    def language_code(self, language: str) -> str:
        """Return the code of a language: a code, name or alias, or a language of this model alone.

        Raises
        ------
        OptionError
            If there is no such language.
        """
        return language if language in self.language_tokens else to_language_code(language)

    def sot_sequence(
        self, language: str | None = None, task: str = "transcribe", *, timestamps: bool = True
    ) -> tuple[int, ...]:
        """Return the start-of-transcript sequence (openai-whisper tokenizer.py, `Tokenizer.sot_sequence`).

        Parameters
        ----------
        language : str, optional
            Code, name or alias. Required by a multilingual model; an English-only model allows only English.
        task : {"transcribe", "translate"}
            An English-only model can only transcribe.
        timestamps : bool
            If False, ``<|notimestamps|>`` ends the sequence.

        Returns
        -------
        tuple of int

        Raises
        ------
        OptionError
            If the model does not support that language or task.
        """
        code = None if language is None else self.language_code(language)
        if self.multilingual:
            if code not in self.language_tokens:
                raise OptionError("language", language, f"one of {', '.join(self.language_tokens)}")
            if task not in _TASKS:
                raise OptionError("task", task, " or ".join(_TASKS))
            tasks = {"transcribe": self.transcribe, "translate": self.translate}
            start: tuple[int, ...] = (self.sot, self.language_tokens[code], tasks[task])
        else:
            if code not in (None, "en"):
                raise OptionError("language", language, "en, as this model is English-only")
            if task != "transcribe":
                raise OptionError("task", task, "transcribe, as this model is English-only")
            start = (self.sot,)
        return start if timestamps else (*start, self.no_timestamps)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """Tokens of non-speech annotations, ascending, which are suppressed by default (`suppress_tokens="-1"`).

        They are of symbols such as ``♪`` and ``[``, not of ordinary punctuation: all symbols that are a single token,
        alone or after a space; the first token of each musical symbol, however many tokens it has; and hyphen and
        apostrophe at the start of a word, but not inside.
        """
        tokens = {self.encode(mark)[0] for mark in _WORD_INITIAL_MARKS}
        for symbol in _SYMBOLS + _MUSIC_SYMBOLS:
            for encoded in (self.encode(symbol), self.encode(" " + symbol)):
                if len(encoded) == 1 or symbol in _MUSIC_SYMBOLS:
                    tokens.add(encoded[0])
        return tuple(sorted(tokens))

    @cached_property
    def blank_tokens(self) -> tuple[int, ...]:
        """Tokens that must not begin a transcript: space and end of text (openai-whisper, `SuppressBlank`)."""
        return (*self.encode(" "), self.eot)

    def split_words(self, tokens: Sequence[int], language: str) -> tuple[list[str], list[list[int]]]:
        """Split tokens into words, never inside a UTF-8 sequence.

        Languages written without spaces are split between characters, all others at spaces and punctuation. A special
        token starts a word (openai-whisper tokenizer.py, `split_to_word_tokens`).

        Parameters
        ----------
        tokens : sequence of int
            Text and special tokens.
        language : str
            Code of the language.

        Returns
        -------
        words : list of str
            Joined they are `decode_with_timestamps` of the tokens.
        word_tokens : list of list of int
            The tokens of each word.
        """
        token_bytes = [self._token_bytes(token) for token in tokens]
        if language in LANGUAGES_WITHOUT_SPACES:
            groups = _split_on_unicode(token_bytes)
        else:
            groups = _split_on_spaces(token_bytes, [token >= self.eot for token in tokens])
        return [_join_bytes(token_bytes, group) for group in groups], [
            [tokens[i] for i in group] for group in groups
        ]

    @cached_property
    def _encoder(self) -> BytePairEncoder:
        return BytePairEncoder(self._tokens)

    @cached_property
    def _specials(self) -> dict[int, tuple[TokenKind, str]]:
        """Kind and name of each special token except the timestamps."""
        languages = {token: (TokenKind.LANGUAGE, code) for code, token in self.language_tokens.items()}
        return languages | {
            self.eot: (TokenKind.EOT, "endoftext"),
            self.sot: (TokenKind.SOT, "startoftranscript"),
            self.translate: (TokenKind.TASK, "translate"),
            self.transcribe: (TokenKind.TASK, "transcribe"),
            self.sot_lm: (TokenKind.CONTROL, "startoflm"),
            self.sot_prev: (TokenKind.CONTROL, "startofprev"),
            self.no_speech: (TokenKind.CONTROL, "nospeech"),
            self.no_timestamps: (TokenKind.CONTROL, "notimestamps"),
        }

    def _token_bytes(self, token: int) -> bytes:
        self._check_id(token)
        if token < self.eot:
            return unicode_to_bytes(self._tokens[token])
        if token >= self.timestamp_begin:
            return b"<|%.2f|>" % self.timestamp_s(token)
        return f"<|{self._specials[token][1]}|>".encode()

    def _check_id(self, token: int) -> None:
        assert 0 <= token < self.n_vocab, f"token {token} is outside the vocabulary of {self.n_vocab}"


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
        """Return an incomplete character, if any, as U+FFFD; what is fed next is another text."""
        return self._decoder.decode(b"", final=True)


# --- words -------------------------------------------------------------------------------------------------


def _split_on_unicode(token_bytes: Sequence[bytes]) -> list[list[int]]:
    """Group tokens, by their indices in order, into the shortest runs that begin and end between characters.

    Source: openai-whisper tokenizer.py, `split_tokens_on_unicode`, except that invalid UTF-8 neither loses tokens nor
    splits a neighbouring character.
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


def _split_on_spaces(token_bytes: Sequence[bytes], special: Sequence[bool]) -> list[list[int]]:
    """Group tokens, by their indices in order, into words that begin with a space, punctuation or a special token.

    Source: openai-whisper tokenizer.py, `split_tokens_on_spaces`.
    """
    words: list[list[int]] = []
    for group in _split_on_unicode(token_bytes):
        subword = _join_bytes(token_bytes, group)
        starts_word = special[group[0]] or subword.startswith(" ") or subword.strip() in string.punctuation
        if starts_word or not words:
            words.append(group)
        else:
            words[-1] += group
    return words


def _join_bytes(token_bytes: Sequence[bytes], group: Sequence[int]) -> str:
    """Decode one group of tokens."""
    return b"".join(token_bytes[i] for i in group).decode(errors="replace")


def _between_characters(data: bytes, offset: int) -> bool:
    """Return True if a split at `offset` does not change the decoded text; only adjacent bytes matter."""
    before, after = data[max(offset - 3, 0) : offset], data[offset : offset + 1]
    joined = (before + after).decode(errors="replace")
    return joined == before.decode(errors="replace") + after.decode(errors="replace")
