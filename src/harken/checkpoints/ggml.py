"""Reader of the files of ggml: the single-file format of whisper.cpp, and GGUF.

The layout of the first is that of ``whisper_model_load`` (whisper.cpp, src/whisper.cpp) and of
models/convert-pt-to-ggml.py; weights carry OpenAI's names. That of GGUF is docs/gguf.md of ggml. No programme decides
what such a file of Whisper says of itself beside its weights, under OpenAI's names or those of transformers; what it
says of heads, and a ``config.json`` beside it, are used.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, Vocabulary, assemble, find_vocabulary
from harken.checkpoints.ggml_types import shape_and_type, weight_at
from harken.checkpoints.model_files import Array, Cursor, LazyTensor, StorageDtype, half, open_cursor, watch
from harken.checkpoints.weight_names import dims_beside, openai_name_of, openai_tensors, without_output
from harken.checkpoints.weight_shapes import declared_by, usual_heads
from harken.types import Dims

GGML_MAGIC = b"lmgg"
_HEADER = (
    "n_vocab",
    "n_audio_ctx",
    "n_audio_state",
    "n_audio_head",
    "n_audio_layer",
    "n_text_ctx",
    "n_text_state",
    "n_text_head",
    "n_text_layer",
    "n_mels",
)
_FLOAT32, _FLOAT16 = 0, 1
_OTHER_KIND = re.compile(rb"[a-z]{4,16}")
"""How whisper.cpp's files of other models go on: with the length of a name, and the name, as ``silero-16k``."""
_QUANTISATION_VERSION = 2  # GGML_QNT_VERSION; older blocks have float32 scales


def read_ggml(path: Path) -> Checkpoint:
    """Open a ggml file."""
    file = watch(path)
    with open_cursor(path) as cursor:
        cursor.skip(len(GGML_MAGIC))
        if kind := _OTHER_KIND.match(cursor.data, cursor.position + 4):
            raise cursor.error(f"not a Whisper model: a ggml file of {kind[0].decode()}")
        declared = dict(zip(_HEADER, cursor.read_numbers("10i"), strict=True))
        version = cursor.read_number("i") // 1000
        n_mels, n_bins = cursor.read_numbers("2i")
        cursor.skip(n_mels * n_bins * 4)  # the mel filters, which harken computes itself
        tokens = _read_tokens(cursor)
        stored: list[tuple[str, LazyTensor]] = []
        while cursor.remaining:
            name, dtype, tensor = _read_tensor(cursor)
            if dtype.block_items > 1 and version != _QUANTISATION_VERSION:
                raise cursor.error(f"quantisation version {version}, allowed is {_QUANTISATION_VERSION}")
            stored.append((name, tensor))
    tensors = openai_tensors(path, stored)
    dims = declared_by(path, declared)
    return assemble(path, "ggml", tensors, dims, Vocabulary(tokens=tokens), files=[file])


def serialize(
    dims: Dims, weights: Mapping[str, Array], tokens: Sequence[bytes], mel_filters: Array
) -> Iterator[bytes]:
    """Yield the content of a ggml file: matrices in float16, all else in float32; text tokens are in order of id."""
    yield GGML_MAGIC + struct.pack("<11i", *(getattr(dims, field) for field in _HEADER), _FLOAT16)
    yield struct.pack("<2i", *mel_filters.shape) + np.ascontiguousarray(mel_filters, "<f4").tobytes()
    yield struct.pack("<i", len(tokens))
    yield b"".join(struct.pack("<I", len(token)) + token for token in tokens)
    for name, values in weights.items():
        is_matrix = values.ndim > 1 and not name.endswith(".positional_embedding")
        if ".conv" in name and values.ndim == 1:
            values = values[:, None]
        yield struct.pack("<3i", values.ndim, len(name), _FLOAT16 if is_matrix else _FLOAT32)
        yield struct.pack(f"<{values.ndim}i", *values.shape[::-1]) + name.encode()
        yield half(name, values).tobytes() if is_matrix else np.ascontiguousarray(values, "<f4").tobytes()


def _read_tokens(cursor: Cursor) -> tuple[bytes, ...]:
    """Read the text tokens, which ``<|endoftext|>`` follows in some files."""
    data, position, tokens = cursor.data, cursor.position + 4, []
    try:
        for _ in range(cursor.read_number("I")):  # without the cursor, which would take 70 ms for 50,000 tokens
            (size,) = struct.unpack_from("<I", data, position)
            tokens.append(data[position + 4 : position + 4 + size])
            position += 4 + size
    except struct.error:
        raise cursor.error("truncated in the vocabulary") from None
    cursor.skip(position - cursor.position)
    return tuple(tokens)


def _read_tensor(cursor: Cursor) -> tuple[str, StorageDtype, LazyTensor]:
    n_axes, name_size, code = cursor.read_numbers("3i")
    if not 1 <= n_axes <= 4:
        raise cursor.error(f"a weight with {n_axes} axes, allowed is 1 to 4")
    axes = cursor.read_numbers(f"{n_axes}I")
    name = cursor.read_name(name_size)
    shape, dtype = shape_and_type(cursor, name, axes, code)
    return name, dtype, weight_at(cursor.path, name, cursor.skip(dtype.nbytes_of(shape)), shape, dtype)


# --- GGUF --------------------------------------------------------------------------------------------------

GGUF_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_TEXT, _LIST = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The `struct` layout of each type of a number, by its number in ``enum gguf_type``."""
_ALIGNMENT, _MAX_ALIGNMENT = 32, 1 << 16
_HEADS = {
    "n_audio_head": ("n_audio_head", "encoder.attention.head_count", "audio.attention.head_count"),
    "n_text_head": ("n_text_head", "decoder.attention.head_count", "attention.head_count"),
}
"""How the keys end that say how many heads there are."""


def read_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file with the files beside it."""
    config, config_files = dims_beside(path.parent)
    files = [watch(path), *config_files]
    with open_cursor(path) as cursor:
        cursor.skip(len(GGUF_MAGIC))
        if (version := cursor.read_number("I")) not in _VERSIONS:
            raise cursor.error(f"GGUF version {version}, allowed is 2 or 3")
        n_tensors, n_entries = cursor.read_numbers("2Q")
        metadata: dict[str, Any] = {}
        for _ in range(n_entries):
            key = _read_text(cursor)
            metadata[key] = _read_value(cursor, cursor.read_number("I"))
        if (kind := metadata.get("general.architecture", "whisper")) != "whisper":
            raise cursor.error(
                f"not a Whisper model: general.architecture is {str(kind)[:80]!r}, allowed is 'whisper'"
            )
        infos = [_read_info(cursor) for _ in range(n_tensors)]
        start = cursor.position + -cursor.position % _alignment(cursor, metadata)
        stored: list[tuple[str, LazyTensor]] = []
        for name, axes, code, offset in infos:
            shape, dtype = shape_and_type(cursor, name, axes, code)
            cursor.at(start + offset).skip(dtype.nbytes_of(shape))
            stored.append((name, weight_at(path, openai_name_of(name), start + offset, shape, dtype)))
    tensors = without_output(path, openai_tensors(path, stored))
    declared = {
        heads: value
        for heads, endings in _HEADS.items()
        for name, value in metadata.items()
        if name.endswith(endings) and type(value) is int
    }
    dims = usual_heads(path, tensors) | config | declared_by(path, declared)
    return assemble(path, "gguf", tensors, dims, find_vocabulary(path.parent), files=files)


def _read_value(cursor: Cursor, kind: int) -> Any:
    """Return a value; None for a list, which is skipped."""
    if kind in _NUMBERS:
        return cursor.read_number(_NUMBERS[kind])
    if kind == _TEXT:
        return _read_text(cursor)
    if kind == _LIST:
        item, n_items = cursor.read_numbers("IQ")
        if item in _NUMBERS:
            cursor.skip(n_items * struct.calcsize("<" + _NUMBERS[item]))
            return None
        if item == _TEXT:
            for _ in range(n_items):
                cursor.skip(cursor.read_number("Q"))
            return None
    raise cursor.error(f"a value of type {kind}, allowed are numbers, text, and lists of them")


def _read_text(cursor: Cursor) -> str:
    return cursor.read(cursor.read_number("Q")).decode(errors="replace")


def _read_info(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return name, axes, type and offset of a weight."""
    name = cursor.read_name(cursor.read_number("Q"))
    if not 1 <= (n_axes := cursor.read_number("I")) <= 4:
        raise cursor.error(f"weight {name!r} has {n_axes} axes, allowed is 1 to 4")
    axes = cursor.read_numbers(f"{n_axes}Q")
    code, offset = cursor.read_numbers("IQ")
    return name, axes, code, offset


def _alignment(cursor: Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT:
        raise cursor.error(f"general.alignment is {alignment!r}, allowed is 1 to {_MAX_ALIGNMENT}")
    return alignment
