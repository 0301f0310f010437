"""Reading of vocabulary files: the text tokens in order of their ids.

Ids of byte-level BPE tokens are in the order of their merges, so the list of tokens suffices to encode and to decode;
``merges.txt`` is not needed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harken.errors import CheckpointError, CheckpointNotFound
from harken.text.bpe import bytes_to_unicode, is_byte_level
from harken.text.languages import LANGUAGE_TOKEN, LANGUAGES, TAGS

#: The token after the last text token, in both vocabularies.
END_OF_TEXT = "<|endoftext|>"
N_TIMESTAMPS = 1501
_ENGLISH_END_OF_TEXT = 50256
_SPECIALS_IN_ORDER = (
    *(END_OF_TEXT, "<|startoftranscript|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>"),
    *("<|startofprev|>", "<|nospeech|> <|nocaptions|>", "<|notimestamps|>"),
)
"""The special tokens beside languages and timestamps, with their other names, in the order of their ids."""
_TIMESTAMP = re.compile(r"<\|\d\d?\.\d\d\|>")

_DATA = Path(__file__).parent / "data"


def read_tokens(path: Path) -> list[str]:
    """Read the text tokens of a vocabulary file.

    Parameters
    ----------
    path : Path
        ``tokenizer.json`` or ``vocab.json`` (Hugging Face), ``vocabulary.txt`` or ``vocabulary.json``
        (CTranslate2).

    Returns
    -------
    list of str
        The tokens before ``<|endoftext|>``, in order of id, in GPT-2's alphabet.

    Raises
    ------
    CheckpointError
        If the file is of unknown kind or does not contain a Whisper vocabulary.
    CheckpointNotFound
        If there is no such file.
    """
    reader = _READERS.get(path.name)
    if reader is None:
        raise CheckpointError(f"{path}: not a vocabulary file; known are {', '.join(_READERS)}")
    try:
        return reader(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointNotFound(f"{path}: no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path}: not a Whisper vocabulary: {reason}") from error


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A vocabulary with tokens of its own, in the order in which `Tokenizer` has the kinds of tokens.

    Models whose vocabulary was extended have their new tokens behind the timestamps, and often rows of padding.

    Attributes
    ----------
    ids : tuple of int
        The model's id for each id of the tokenizer; those of no token are left out.
    tokens : tuple of str
        The text tokens in GPT-2's alphabet.
    languages : tuple of str
        Codes of the languages.
    has_timestamps : bool
    multilingual : bool
    """

    ids: tuple[int, ...] = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    languages: tuple[str, ...]
    has_timestamps: bool
    multilingual: bool


def arrange(path: Path, n_vocab: int) -> Arrangement | None:
    """Arrange the vocabulary of a file; None if the file does not say where its special tokens are.

    Parameters
    ----------
    path : Path
        As for `read_tokens`.
    n_vocab : int
        Number of rows of the model's embedding.
    """
    try:
        everything, added = _all_ids(path)
        ids = {token: i for token, i in everything.items() if 0 <= i < n_vocab}
        specials = [
            next(ids[name] for name in names if name in ids) for names in map(str.split, _SPECIALS_IN_ORDER)
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, StopIteration):
        return None
    named = {i: token for token, i in ids.items()}
    timestamps = [i for token, i in ids.items() if _TIMESTAMP.fullmatch(token)]
    first = specials[-1] + 1
    if not timestamps and not any(i in named for i in range(first, first + N_TIMESTAMPS)):
        timestamps = [*range(first, first + N_TIMESTAMPS)]  # older files do not name them
        if first + N_TIMESTAMPS > n_vocab:
            timestamps = []  # a model without; rows behind are padding
    codes = {i: code[1] for token, i in ids.items() if (code := LANGUAGE_TOKEN.fullmatch(token))}
    languages = {i: code if code in LANGUAGES else TAGS.get(code, code) for i, code in codes.items()}
    if len(timestamps) not in (0, N_TIMESTAMPS) or not languages:
        return None
    others = {*specials, *timestamps, *languages}
    text = [i for i in sorted(named) if i not in others]
    eot, sot, *rest = specials
    return Arrangement(
        ids=(*text, eot, sot, *sorted(languages), *rest, *sorted(timestamps)),
        tokens=tuple(_in_alphabet(named[i], is_text=named[i] in added) for i in text),
        languages=tuple(languages[i] for i in sorted(languages)),
        has_timestamps=bool(timestamps),
        multilingual=len(languages) > 1 and eot != _ENGLISH_END_OF_TEXT,
    )


def _all_ids(path: Path) -> tuple[dict[str, int], Collection[str]]:
    """Return the ids of all tokens that a vocabulary file, or one beside it, names, and those that were added."""
    is_text = path.name == "vocabulary.txt"
    content: Any = path.read_text(encoding="utf-8").splitlines() if is_text else json.loads(path.read_bytes())
    if path.name.startswith("vocabulary."):
        tokens = list(content)
        return {token: i for i, token in enumerate(tokens)}, {*tokens[tokens.index(END_OF_TEXT) :]}
    if path.name == "tokenizer.json":
        added = {each["content"]: int(each["id"]) for each in content["added_tokens"]}
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
    return _from_lines(lzma.decompress((_DATA / f"{name}.txt.xz").read_bytes()))


def _from_lines(data: bytes) -> list[str]:
    return _until_end_of_text(data.decode().replace("\r\n", "\n").split("\n"))


def _by_id(ids: dict[str, int]) -> list[str]:
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("its ids are not 0, 1, 2 ...")
    return _until_end_of_text(tokens)


def _until_end_of_text(tokens: list[str]) -> list[str]:
    if END_OF_TEXT not in tokens:
        raise ValueError(f"it has no {END_OF_TEXT}")
    tokens = tokens[: tokens.index(END_OF_TEXT)]
    if not is_byte_level("".join(tokens)):
        raise ValueError("its tokens are not byte-level")
    return tokens


_READERS: dict[str, Callable[[bytes], list[str]]] = {
    "tokenizer.json": lambda data: _by_id(json.loads(data)["model"]["vocab"]),
    "vocab.json": lambda data: _by_id(json.loads(data)),
    "vocabulary.txt": _from_lines,
    "vocabulary.json": lambda data: _until_end_of_text(list(json.loads(data))),
}
