"""Reading of vocabulary files: the text tokens in order of their ids.

Ids of byte-level BPE tokens are in the order of their merges, so the list of tokens suffices to encode and to decode;
``merges.txt`` is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from harken.errors import CheckpointError, CheckpointNotFound
from harken.text.bpe import is_byte_level

#: The token after the last text token, in both vocabularies.
END_OF_TEXT = "<|endoftext|>"

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
        raise CheckpointError(f"{path}: not a Whisper vocabulary: {_reason(error)}") from error


def builtin_tokens(multilingual: bool) -> list[str]:
    """Read one of the two vocabularies in the package (see data/NOTICE)."""
    import lzma

    name = "multilingual" if multilingual else "english"
    return _from_lines(lzma.decompress((_DATA / f"{name}.txt.xz").read_bytes()))


def _from_lines(data: bytes) -> list[str]:
    return _until_end_of_text(data.decode().replace("\r\n", "\n").split("\n"))


def _from_list(data: bytes) -> list[str]:
    return _until_end_of_text(list(json.loads(data)))


def _from_ids(data: bytes) -> list[str]:
    return _by_id(json.loads(data))


def _from_tokenizer(data: bytes) -> list[str]:
    return _by_id(json.loads(data)["model"]["vocab"])


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


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


_READERS: dict[str, Callable[[bytes], list[str]]] = {
    "tokenizer.json": _from_tokenizer,
    "vocab.json": _from_ids,
    "vocabulary.txt": _from_lines,
    "vocabulary.json": _from_list,
}
