"""Reader of ggml files, the single-file format of whisper.cpp.

The layout is that of ``whisper_model_load`` (whisper.cpp, src/whisper.cpp) and of models/convert-pt-to-ggml.py.
Weights carry OpenAI's names.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, Vocabulary, assemble
from harken.checkpoints.ggml_types import shape_and_type, weight_at
from harken.checkpoints.model_files import Array, Cursor, LazyTensor, StorageDtype, half, open_cursor, watch
from harken.types import Dims

MAGIC = 0x67676D6C
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


def read(path: Path) -> Checkpoint:
    """Open a ggml file.

    Raises
    ------
    CheckpointError
        If the file is damaged, not a Whisper model, or of an unsupported quantisation.
    """
    file = watch(path)
    with open_cursor(path) as cursor:
        if (magic := cursor.read_number("I")) != MAGIC:
            raise cursor.error(f"magic number {magic:#x}, allowed is {MAGIC:#x}")
        if kind := _OTHER_KIND.match(cursor.data, cursor.position + 4):
            raise cursor.error(f"not a Whisper model: a ggml file of {kind[0].decode()}")
        declared = dict(zip(_HEADER, cursor.read_numbers("10i"), strict=True))
        version = cursor.read_number("i") // 1000
        n_mels, n_bins = cursor.read_numbers("2i")
        cursor.skip(n_mels * n_bins * 4)  # the mel filters, which harken computes itself
        tokens = _read_tokens(cursor)
        tensors: dict[str, LazyTensor] = {}
        while cursor.remaining:
            name, dtype, tensor = _read_tensor(cursor)
            if dtype.block_items > 1 and version != _QUANTISATION_VERSION:
                raise cursor.error(f"quantisation version {version}, allowed is {_QUANTISATION_VERSION}")
            tensors[name] = tensor
    return assemble(path, "ggml", tensors, declared, Vocabulary(tokens=tokens), files=[file])


def serialize(
    dims: Dims, weights: Mapping[str, Array], tokens: Sequence[bytes], mel_filters: Array
) -> Iterator[bytes]:
    """Yield the content of a ggml file: matrices in float16, all else in float32.

    Parameters
    ----------
    dims : Dims
    weights : mapping of str to ndarray
    tokens : sequence of bytes
        The text tokens in order of id.
    mel_filters : ndarray of shape (n_mels, n_bins), float32
    """
    yield struct.pack("<I11i", MAGIC, *(getattr(dims, field) for field in _HEADER), _FLOAT16)
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
