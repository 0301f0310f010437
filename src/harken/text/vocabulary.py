"""Vocabularies: tokens in GPT-2's byte-level alphabet, the files that list them, and byte-pair encoding.

The alphabet has one printable character for each byte (a space is ``Ġ``). Tokens are converted to bytes only when they
are decoded: converting all 50,000 takes longer than reading the file. Ids of byte-level BPE tokens are in the order of
their merges, so the list of tokens suffices to encode and to decode; ``merges.txt`` is not needed.

Text is encoded as `tiktoken` does it for openai-whisper. Only prompts of a few hundred characters are, so plain Python
is fast enough, and it costs nothing at start-up.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import dropwhile, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from harken.errors import CheckpointError
from harken.text.languages import LANGUAGES, language_of_token

# GPT-2 encoder.py, `bytes_to_unicode`.
_PRINTABLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_TO_UNICODE = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(256 + i) for i, byte in enumerate(_UNPRINTABLE)
}
_UNICODE_TO_BYTE = {ord(letter): byte for byte, letter in _BYTE_TO_UNICODE.items()}

#: The 256 characters of the alphabet.
BYTE_ALPHABET = frozenset(_BYTE_TO_UNICODE.values())
_BYTE_LEVEL = re.compile("[!-~¡-¬®-\u0143]*")


def bytes_to_unicode(data: bytes) -> str:
    """Convert bytes to GPT-2's alphabet, one character per byte."""
    return data.decode("latin-1").translate(_BYTE_TO_UNICODE)


def unicode_to_bytes(letters: str) -> bytes:
    """Convert text in GPT-2's alphabet back to bytes."""
    return letters.translate(_UNICODE_TO_BYTE).encode("latin-1")


def is_byte_level(letters: str) -> bool:
    """Return True if every character belongs to the alphabet."""
    return _BYTE_LEVEL.fullmatch(letters) is not None


# --- files -------------------------------------------------------------------------------------------------

#: The token after the last text token, in both vocabularies.
END_OF_TEXT = "<|endoftext|>"
N_TIMESTAMPS = 1501
MIN_MULTILINGUAL_VOCAB = 51865
_PUBLISHED_SIZES = {51864, 51865, 51866}
"""Of the English and multilingual vocabularies, and that of large-v3."""
MOST_PADDING_ROWS = 256
"""Behind a vocabulary without timestamps; more are timestamps of a model whose vocabulary is another."""
N_ENGLISH_TOKENS = 50256
"""Text tokens of the English vocabulary; the multilingual one has one more."""
_SPECIALS_IN_ORDER = (
    *(END_OF_TEXT, "<|startoftranscript|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>"),
    *("<|startofprev|>", "<|nospeech|> <|nocaptions|>", "<|notimestamps|>"),
)
"""The special tokens beside languages and timestamps, with their other names, in the order of their ids."""
_TIMESTAMP = re.compile(r"<\|(?:[12]?\d\.\d[02468]|30\.00)\|>")

_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Errors that reading a file of another structure ends in."""
_DATA = Path(__file__).parent / "data"


def read_tokens(path: Path) -> list[str]:
    """Read the text tokens of a vocabulary file, those before ``<|endoftext|>``, in order of id, in GPT-2's alphabet.

    It is a ``tokenizer.json`` or ``vocab.json`` (Hugging Face), or a ``vocabulary.txt`` or ``vocabulary.json``
    (CTranslate2).

    Raises
    ------
    CheckpointError
        If the file cannot be read or does not contain a Whisper vocabulary.
    """
    try:
        ids, _ = all_ids(path)
        tokens = _until_end_of_text(sorted(ids, key=ids.__getitem__))
        if [ids[token] for token in (*tokens, END_OF_TEXT)] != [*range(len(tokens) + 1)]:
            raise ValueError("its ids are not 0, 1, 2 ...")
        return tokens
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}") from error
    except _MALFORMED as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"not a Whisper vocabulary: {reason}") from error


class GenerationConfig(NamedTuple):
    """A ``generation_config.json`` of transformers, with what it says of tokens; its entries are not checked.

    Attributes
    ----------
    path : Path
    entries : mapping
        Empty if there is no such file.
    """

    path: Path
    entries: Mapping[str, object]

    @property
    def special_ids(self) -> dict[str, int]:
        """The model's ids of special tokens, by their names."""
        tasks = self.entries.get("task_to_id")
        found = {
            "<|notimestamps|>": self.entries.get("no_timestamps_token_id"),
            **({f"<|{task}|>": i for task, i in tasks.items()} if isinstance(tasks, dict) else {}),
        }
        return {name: i for name, i in found.items() if type(i) is int}

    @property
    def languages(self) -> Collection[str] | None:
        """The tokens of languages; None if they are not listed."""
        listed = self.entries.get("lang_to_id")
        return listed if isinstance(listed, dict) and listed else None

    @property
    def is_multilingual(self) -> bool | None:
        """True if prompts contain a language and a task; None if it does not say."""
        value = self.entries.get("is_multilingual")
        return value if isinstance(value, bool) else None


NO_CONFIG = GenerationConfig(Path("generation_config.json"), {})


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The vocabulary of a file, in the order in which `Tokenizer` has the kinds of tokens.

    Models whose vocabulary was extended have their new tokens behind the timestamps, and often rows of padding.

    Attributes
    ----------
    ids : sequence of int
        The model's id for each id of the tokenizer, those of no token left out; a range if the two are the same.
    tokens : tuple of str
        The text tokens in GPT-2's alphabet.
    languages : tuple of str
        Codes of the languages.
    has_timestamps : bool
    multilingual : bool
    """

    ids: Sequence[int] = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    languages: tuple[str, ...]
    has_timestamps: bool
    multilingual: bool

    @property
    def is_standard(self) -> bool:
        """True if a `Tokenizer` of the tokens and their number alone would have the same tokens for all ids."""
        n_vocab = len(self.ids)
        return (
            self.has_timestamps
            and isinstance(self.ids, range)
            and self.languages == (*LANGUAGES,)[: len(self.languages)]
            and self.multilingual == (n_vocab >= MIN_MULTILINGUAL_VOCAB)
        )

    @property
    def published_size(self) -> int:
        """Size of the published vocabulary in which text ends at the same id, whatever was added behind it."""
        end_of_text = self.ids[len(self.tokens)]
        return end_of_text + min(_PUBLISHED_SIZES) - N_ENGLISH_TOKENS + ("yue" in self.languages)


def arrange(path: Path, n_vocab: int, config: GenerationConfig) -> Arrangement | None:
    """Arrange the vocabulary of a file; None if the file does not say where its special tokens are.

    Parameters
    ----------
    path : Path
        As for `read_tokens`.
    n_vocab : int
        Number of rows of the model's embedding.
    config : GenerationConfig
        Says which added tokens are languages, and whether the model is multilingual; otherwise that is guessed.

    Raises
    ------
    CheckpointError
        If the file is that of another published model.
    """
    try:
        everything, added = all_ids(path)
        ids = everything
        if max(ids.values()) >= n_vocab:
            ids = {token: i for token, i in everything.items() if i < n_vocab}
        marked = {token: i for token, i in ids.items() if token.startswith("<|")}
        specials = [
            next(ids[name] for name in names if name in ids) for names in map(str.split, _SPECIALS_IN_ORDER)
        ]
        size = max(*everything.values(), specials[-1] + N_TIMESTAMPS) + 1
    except (OSError, StopIteration, *_MALFORMED):
        return None
    is_known_to_fit = config.special_ids.get("<|notimestamps|>") == specials[-1]
    if size != n_vocab and {size, n_vocab} <= _PUBLISHED_SIZES and not is_known_to_fit:
        raise CheckpointError(
            f"{path}: a vocabulary of {size} tokens, which does not fit a model of {n_vocab=}"
        )
    named = {i: token for token, i in ids.items()}
    timestamps = [i for token, i in marked.items() if _TIMESTAMP.fullmatch(token)]
    first = specials[-1] + 1
    if not timestamps and not any(i in named for i in range(first, first + N_TIMESTAMPS)):
        timestamps = [*range(first, first + N_TIMESTAMPS)]  # older files do not name them
        if first + N_TIMESTAMPS > n_vocab:
            timestamps = []  # a model without; rows behind are padding
            if n_vocab - first > MOST_PADDING_ROWS:
                return None
    codes = {i: language_of_token(token, config.languages) for token, i in marked.items()}
    languages = {i: code for i, code in codes.items() if code}
    if len(timestamps) not in (0, N_TIMESTAMPS) or not languages:
        return None
    others = {*specials, *timestamps, *languages}
    text = [i for i in sorted(named) if i not in others]
    eot, sot, *rest = specials
    in_order = (*text, eot, sot, *sorted(languages), *rest, *sorted(timestamps))
    multilingual = config.is_multilingual
    if multilingual is None:
        multilingual = len(languages) > 1 or eot == N_ENGLISH_TOKENS + 1
    tokens = tuple([named[i] for i in text])
    if not (added.keys().isdisjoint(tokens) and is_byte_level("".join(tokens))):
        tokens = tuple(_in_alphabet(token, is_text=token in added) for token in tokens)
    return Arrangement(
        ids=range(n_vocab) if in_order == (*range(n_vocab),) else in_order,
        tokens=tokens,
        languages=tuple(languages[i] for i in sorted(languages)),
        has_timestamps=bool(timestamps),
        multilingual=multilingual and eot != N_ENGLISH_TOKENS,
    )


def all_ids(path: Path) -> tuple[dict[str, int], Mapping[str, int]]:
    """Return the ids of all tokens that a vocabulary file, or one beside it, names, and those that were added."""
    is_text = path.name == "vocabulary.txt"
    content: Any = path.read_text(encoding="utf-8").splitlines() if is_text else json.loads(path.read_bytes())
    if path.name.startswith("vocabulary."):
        tokens = list(content)
        ids = {token: i for i, token in enumerate(tokens)}
        return ids, {token: ids[token] for token in dropwhile(lambda token: token != END_OF_TEXT, tokens)}
    if path.name == "tokenizer.json":
        added = {each["content"]: int(each["id"]) for each in content.get("added_tokens", ())}
        return content["model"]["vocab"] | added, added
    file = path.with_name("added_tokens.json")
    added = json.loads(file.read_bytes()) if file.is_file() else {}
    return {**content, **added}, added


def _in_alphabet(token: str, *, is_text: bool) -> str:
    """Return a token in GPT-2's alphabet; one that was added is written as it is read."""
    return token if is_byte_level(token) and not is_text else bytes_to_unicode(token.encode())


def builtin_tokens(multilingual: bool) -> list[str]:
    """Read one of the two vocabularies in the package (see data/NOTICE)."""
    import lzma

    name = "multilingual" if multilingual else "english"
    return _until_end_of_text(lzma.decompress((_DATA / f"{name}.txt.xz").read_bytes()).decode().splitlines())


def _until_end_of_text(tokens: list[str]) -> list[str]:
    if END_OF_TEXT not in tokens:
        raise ValueError(f"it has no {END_OF_TEXT}")
    tokens = tokens[: tokens.index(END_OF_TEXT)]
    if not is_byte_level("".join(tokens)):
        raise ValueError("its tokens are not byte-level")
    return tokens


# --- byte-pair encoding ------------------------------------------------------------------------------------

# The pattern of GPT-2 (openai-whisper tokenizer.py, `get_encoding`, pat_str). Its Unicode classes \p{L}, \p{N} and \s
# do not exist in `re`. It is therefore matched against a copy of the text in which every character beyond ASCII is
# replaced by an ASCII character of the same class.
_PRETOKEN = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", flags=re.ASCII
)
_ASCII_OF_CATEGORY = {"L": "a", "N": "0", "Z": "\n"}
_NEXT_LINE = 0x85  # white space by property, although its category is control


class _AsciiOfCharacter(dict[int, str]):
    def __missing__(self, code: int) -> str:
        category = "Z" if code == _NEXT_LINE else unicodedata.category(chr(code))[0]
        ascii_character = chr(code) if code < 0x80 else _ASCII_OF_CATEGORY.get(category, "!")
        self[code] = ascii_character
        return ascii_character


_ascii_of_character = _AsciiOfCharacter()


def pretokenize(text: str) -> list[str]:
    """Split text into pretokens, which merges never cross; joined they are the text."""
    return [
        text[match.start() : match.end()] for match in _PRETOKEN.finditer(text.translate(_ascii_of_character))
    ]


def merges_of(tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Return the two parts that each token of more than a byte was merged of, in order of id.

    Tokens that no merge of earlier ones makes, as those that were added later, are left out.
    """
    ranks = {token: i for i, token in enumerate(tokens)}
    merges = []
    for rank, token in enumerate(tokens):
        parts = [*token]
        while len(parts) > 2:
            candidates = [
                (earlier, i)
                for i, (left, right) in enumerate(pairwise(parts))
                if (earlier := ranks.get(left + right, rank)) < rank
            ]
            if not candidates:
                break
            _, i = min(candidates)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2 and all(ranks.get(part, rank) < rank for part in parts):
            merges.append((parts[0], parts[1]))
    return merges


class BytePairEncoder:
    """Byte-pair encoder over tokens in GPT-2's alphabet, whose ids are the ranks of their merges.

    The tokens must include each of the 256 bytes.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._ids = {token: i for i, token in enumerate(tokens)}

    def encode(self, text: str) -> list[int]:
        """Encode text; a special token such as ``<|en|>`` in it is encoded as ordinary text."""
        pretokens = (bytes_to_unicode(part.encode(errors="replace")) for part in pretokenize(text))
        return [token for pretoken in pretokens for token in self._merge(pretoken)]

    def _merge(self, pretoken: str) -> list[int]:
        """Merge the neighbours of lowest rank, leftmost first, until no two neighbours form a token."""
        if pretoken in self._ids:
            return [self._ids[pretoken]]
        end = len(pretoken)
        after = [*range(1, end + 1), -1]  # end of the part that starts here; -1: no part starts here
        before = list(range(-1, end))
        pairs = [
            pair for start in range(end - 1) if (pair := self._pair(pretoken, start, start + 1, start + 2))
        ]
        heapify(pairs)
        while pairs:
            _, left, middle, right = heappop(pairs)
            if after[left] != middle or after[middle] != right:
                continue
            after[left], after[middle], before[right] = right, -1, left
            if left and (pair := self._pair(pretoken, before[left], left, right)):
                heappush(pairs, pair)
            if right < end and (pair := self._pair(pretoken, left, right, after[right])):
                heappush(pairs, pair)
        boundaries = [start for start in range(end) if after[start] >= 0] + [end]
        return [self._ids[pretoken[a:b]] for a, b in pairwise(boundaries)]

    def _pair(self, pretoken: str, left: int, middle: int, right: int) -> tuple[int, int, int, int] | None:
        rank = self._ids.get(pretoken[left:right])
        return None if rank is None else (rank, left, middle, right)
