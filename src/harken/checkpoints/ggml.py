"""Reader of ggml files, the single-file format of whisper.cpp.

The layout is that of ``whisper_model_load`` (whisper.cpp, src/whisper.cpp) and of models/convert-pt-to-ggml.py;
quantised blocks are those of ``dequantize_row_*`` (ggml/src/ggml-quants.c). Weights carry OpenAI's names.
"""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harken.checkpoints.checkpoint import Checkpoint, Vocabulary, assemble
from harken.checkpoints.model_files import (
    FLOAT16,
    FLOAT32,
    Array,
    ByteArray,
    Cursor,
    LazyTensor,
    StorageDtype,
    lazy_tensor,
    open_cursor,
    watch,
)

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
_QUANTISATION_VERSION = 2  # GGML_QNT_VERSION; older blocks have float32 scales


def _decode_4_or_5_bits(bits: int, has_minimum: bool, blocks: ByteArray) -> Array:
    """Decode blocks of [scale f16, minimum f16 if any, fifth bits if any, 16 bytes of nibbles] to 32 values each.

    Low nibbles are the first 16 values, high nibbles the last. Without a minimum, codes are centred on zero.
    """
    codes = np.concatenate([blocks[:, -16:] & 15, blocks[:, -16:] >> 4], axis=1)
    if bits == 5:
        codes |= np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little") << 4
    scale = _float16_column(blocks[:, :2])
    minimum = _float16_column(blocks[:, 2:4]) if has_minimum else -scale * 2.0 ** (bits - 1)
    with np.errstate(invalid="ignore", over="ignore"):
        return codes * scale + minimum


def _decode_8_bits(blocks: ByteArray) -> Array:
    """Decode blocks of [scale f16, 32 signed bytes] to 32 values each."""
    with np.errstate(invalid="ignore"):
        return blocks[:, 2:].view(np.int8) * _float16_column(blocks[:, :2])


def _float16_column(columns: ByteArray) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


_DTYPES = {  # by number in `enum ggml_type`
    0: FLOAT32,
    1: FLOAT16,
    2: StorageDtype("q4_0", 32, 18, partial(_decode_4_or_5_bits, 4, False)),
    3: StorageDtype("q4_1", 32, 20, partial(_decode_4_or_5_bits, 4, True)),
    6: StorageDtype("q5_0", 32, 22, partial(_decode_4_or_5_bits, 5, False)),
    7: StorageDtype("q5_1", 32, 24, partial(_decode_4_or_5_bits, 5, True)),
    8: StorageDtype("q8_0", 32, 34, _decode_8_bits),
}


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
    shape = cursor.read_numbers(f"{n_axes}I")[::-1]  # ggml lists the fastest axis first
    name = cursor.read_name(name_size)
    dtype = _DTYPES.get(code)
    if dtype is None:
        allowed = ", ".join(known.name for known in _DTYPES.values())
        raise cursor.error(f"weight {name!r} has ggml type {code}, allowed is {allowed}")
    if shape[-1] % dtype.block_items:
        raise cursor.error(f"weight {name!r} has rows of {shape[-1]}, {dtype.name} allows multiples of 32")
    offset = cursor.skip(dtype.nbytes_of(shape))
    if name.endswith(".bias") and shape[1:] == (1,):
        shape = shape[:1]  # the biases of the convolutions are stored as columns
    return name, dtype, lazy_tensor(cursor.path, offset, dtype, shape)
