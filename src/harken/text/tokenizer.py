"""The tokenizer: ids to text and back, and the layout of the special tokens.

The layout follows openai-whisper tokenizer.py, `get_encoding`. After the text tokens come, one id each:
``<|endoftext|>``, ``<|startoftranscript|>``, the languages, ``<|translate|>``, ``<|transcribe|>``,
``<|startoflm|>``, ``<|startofprev|>``, ``<|nospeech|>``, ``<|notimestamps|>`` and the 1501 timestamps
``<|0.00|>`` to ``<|30.00|>``. English-only vocabularies hold the language tokens too, unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Protocol

from harken.errors import CheckpointError, OptionError
from harken.text import word_splitting
from harken.text.bpe import BytePairEncoder
from harken.text.byte_level import BYTE_ALPHABET, bytes_to_unicode, unicode_to_bytes
from harken.text.languages import LANGUAGES, LANGUAGES_WITHOUT_SPACES, to_language_code
from harken.text.nonspeech import non_speech_tokens
from harken.text.vocabulary import END_OF_TEXT, builtin_tokens, read_tokens

TIMESTAMPS_PER_S = 50
N_TIMESTAMPS = 30 * TIMESTAMPS_PER_S + 1
_N_SPECIALS_BESIDE_LANGUAGES = 8 + N_TIMESTAMPS
_MIN_MULTILINGUAL_VOCAB = 51865
_TASKS = ("transcribe", "translate")


class TokenKind(StrEnum):
    """What a token id stands for."""

    TEXT = "text"
    EOT = "eot"
    SOT = "sot"
    LANGUAGE = "language"
    TASK = "task"
    CONTROL = "control"
    TIMESTAMP = "timestamp"


class VocabularySource(Protocol):
    """Where a checkpoint has its vocabulary: in tokens of its own, in a file, or (neither) nowhere."""

    @property
    def tokens(self) -> Sequence[bytes]: ...

    @property
    def path(self) -> Path | None: ...


class Tokenizer:
    """Tokenizer of one Whisper vocabulary. Immutable, cheap to build, safe to share between threads.

    Parameters
    ----------
    tokens : sequence of str
        The text tokens in GPT-2's alphabet, in order of id.
    n_vocab : int
        Size of the whole vocabulary, specials and timestamps included (`Dims.n_vocab`); it tells how
        many languages there are.
    multilingual : bool, optional
        Whether prompts name a language and a task. By default as the reference decides it: from 51865
        tokens on.

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
    multilingual : bool
        As given.

    Raises
    ------
    CheckpointError
        If the first 256 tokens are not the single bytes, or `n_vocab` does not leave room for 1 to 100
        languages after the text tokens.
    """

    def __init__(self, tokens: Sequence[str], n_vocab: int, *, multilingual: bool | None = None) -> None:
        if {*tokens[:256]} != BYTE_ALPHABET:
            raise CheckpointError("the first 256 tokens of the vocabulary are not the single bytes")
        n_languages = n_vocab - len(tokens) - _N_SPECIALS_BESIDE_LANGUAGES
        if not 1 <= n_languages <= len(LANGUAGES):
            smallest = len(tokens) + _N_SPECIALS_BESIDE_LANGUAGES + 1
            raise CheckpointError(
                f"a vocabulary of {len(tokens)} text tokens does not fit a model of n_vocab={n_vocab}; "
                f"allowed is {smallest} to {smallest + len(LANGUAGES) - 1}"
            )
        self._tokens = tokens
        self.n_vocab = n_vocab
        self.multilingual = n_vocab >= _MIN_MULTILINGUAL_VOCAB if multilingual is None else multilingual
        self.eot = len(tokens)
        self.sot = self.eot + 1
        self.language_tokens = {
            code: self.sot + 1 + i for i, code in zip(range(n_languages), LANGUAGES, strict=False)
        }
        self.translate = self.sot + 1 + n_languages
        self.transcribe = self.translate + 1
        self.sot_lm = self.translate + 2
        self.sot_prev = self.translate + 3
        self.no_speech = self.translate + 4
        self.no_timestamps = self.translate + 5
        self.timestamp_begin = self.translate + 6

    def has_same_vocabulary(self, other: Tokenizer) -> bool:
        """Whether every id stands for the same in both."""
        return (self.n_vocab, *self._tokens) == (other.n_vocab, *other._tokens)

    @classmethod
    def from_source(cls, source: VocabularySource, n_vocab: int) -> Tokenizer:
        """Build from whatever a checkpoint has: its tokens, its file, or else the built-in vocabulary."""
        if source.tokens:
            return cls.from_tokens(source.tokens, n_vocab)
        if source.path is not None:
            return cls.from_file(source.path, n_vocab)
        return cls.builtin(n_vocab)

    @classmethod
    def from_file(cls, path: Path | str, n_vocab: int) -> Tokenizer:
        """Build from ``tokenizer.json``, ``vocab.json``, ``vocabulary.txt`` or ``vocabulary.json``.

        Raises
        ------
        CheckpointError
            If the file is missing, is of no known kind or does not hold a Whisper vocabulary of that size.
        """
        tokens = read_tokens(Path(path))
        try:
            return cls(tokens, n_vocab)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None

    @classmethod
    def from_tokens(
        cls, tokens: Iterable[bytes], n_vocab: int, *, multilingual: bool | None = None
    ) -> Tokenizer:
        """Build from the bytes of the text tokens in order of id, as ggml files hold them.

        What follows an ``<|endoftext|>`` is left out: some ggml files hold it, some do not.
        """
        byte_level_tokens = [bytes_to_unicode(token) for token in tokens]
        if END_OF_TEXT in byte_level_tokens:
            del byte_level_tokens[byte_level_tokens.index(END_OF_TEXT) :]
        return cls(byte_level_tokens, n_vocab, multilingual=multilingual)

    @classmethod
    def builtin(cls, n_vocab: int) -> Tokenizer:
        """Build from the vocabularies in the package, for checkpoints that bring none (``.pt``)."""
        return cls(builtin_tokens(n_vocab >= _MIN_MULTILINGUAL_VOCAB), n_vocab)

    @classmethod
    def bytes_only(cls, n_languages: int = 99, *, multilingual: bool = True) -> Tokenizer:
        """Build the smallest vocabulary that spells any text, the 256 bytes, for models without training."""
        n_vocab = 256 + _N_SPECIALS_BESIDE_LANGUAGES + n_languages
        return cls.from_tokens((bytes([byte]) for byte in range(256)), n_vocab, multilingual=multilingual)

    def encode(self, text: str) -> list[int]:
        """Encode text into text tokens; ``<|en|>`` in it is spelled out, never taken for a special."""
        return self._encoder.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """Decode the text tokens among `tokens`; bytes that are no valid UTF-8 become U+FFFD."""
        return self.decode_bytes(tokens).decode(errors="replace")

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """Bytes of the text tokens among `tokens`."""
        return unicode_to_bytes("".join(self._tokens[token] for token in tokens if token < self.eot))

    def decode_with_timestamps(self, tokens: Iterable[int]) -> str:
        """Decode every token, the special ones as ``<|1.08|>`` or ``<|en|>``."""
        return b"".join(map(self._token_bytes, tokens)).decode(errors="replace")

    def describe_token(self, token: int) -> str:
        """Human form of one token: ``<|0.40|>``, ``<|en|>`` or its text."""
        return self._token_bytes(token).decode(errors="replace")

    def kind(self, token: int) -> TokenKind:
        """What a token id stands for."""
        self._check_id(token)
        if token < self.eot:
            return TokenKind.TEXT
        if token >= self.timestamp_begin:
            return TokenKind.TIMESTAMP
        return self._specials[token][0]

    def timestamp_s(self, token: int) -> float:
        """Time of a timestamp token in seconds after the start of its window, 0.0 to 30.0."""
        assert token >= self.timestamp_begin, f"token {token} is no timestamp"
        return (token - self.timestamp_begin) / TIMESTAMPS_PER_S

    def sot_sequence(
        self, language: str | None = None, task: str = "transcribe", *, timestamps: bool = True
    ) -> tuple[int, ...]:
        """Tokens that open a transcript (openai-whisper tokenizer.py, `Tokenizer.sot_sequence`).

        Parameters
        ----------
        language : str, optional
            Code, name or alias. A multilingual model needs one; an English-only one takes none but English.
        task : {"transcribe", "translate"}
            An English-only model only transcribes.
        timestamps : bool
            Whether timestamps may follow; otherwise ``<|notimestamps|>`` closes the sequence.

        Returns
        -------
        tuple of int

        Raises
        ------
        OptionError
            If the model does not know that language or task.
        """
        code = None if language is None else to_language_code(language)
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
        """Tokens of annotations that nobody spoke, in ascending order (see `nonspeech`)."""
        return non_speech_tokens(self.encode)

    @cached_property
    def blank_tokens(self) -> tuple[int, ...]:
        """What must not open a transcript: the space and the end (openai-whisper, `SuppressBlank`)."""
        return (*self.encode(" "), self.eot)

    def split_words(self, tokens: Sequence[int], language: str) -> tuple[list[str], list[list[int]]]:
        """Cut tokens into words, never inside a UTF-8 sequence.

        Between characters for the languages written without spaces, at spaces and punctuation for all
        others; a special token is a word of its own or the start of one
        (openai-whisper tokenizer.py, `split_to_word_tokens`).

        Parameters
        ----------
        tokens : sequence of int
            Text and special tokens.
        language : str
            Code of the language spoken.

        Returns
        -------
        words : list of str
            Together they are `decode_with_timestamps` of the tokens.
        word_tokens : list of list of int
            The tokens of each word; together they are the tokens.
        """
        token_bytes = [self._token_bytes(token) for token in tokens]
        if language in LANGUAGES_WITHOUT_SPACES:
            groups = word_splitting.split_on_unicode(token_bytes)
        else:
            groups = word_splitting.split_on_spaces(token_bytes, [token >= self.eot for token in tokens])
        return [word_splitting.join_bytes(token_bytes, group) for group in groups], [
            [tokens[i] for i in group] for group in groups
        ]

    @cached_property
    def _encoder(self) -> BytePairEncoder:
        return BytePairEncoder(self._tokens)

    @cached_property
    def _specials(self) -> dict[int, tuple[TokenKind, str]]:
        """Kind and name of each special token but the timestamps."""
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
