"""ggml: the single-file format of whisper.cpp.

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
from harken.checkpoints.cursor import Cursor, open_cursor
from harken.checkpoints.storage import FLOAT16, FLOAT32, Array, Bytes, Encoding, Tensor, tensor_at

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


def _decode_nibbles(bits: int, has_minimum: bool, blocks: Bytes) -> Array:
    """Blocks of [scale f16, minimum f16 if any, fifth bits if any, 16 bytes of nibbles] -> 32 values each.

    Low nibbles are the first 16 values, high nibbles the last. Without a minimum, codes are centred on zero.
    """
    codes = np.concatenate([blocks[:, -16:] & 15, blocks[:, -16:] >> 4], axis=1)
    if bits == 5:
        codes |= np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little") << 4
    scale = _float16(blocks[:, :2])
    minimum = _float16(blocks[:, 2:4]) if has_minimum else -scale * 2.0 ** (bits - 1)
    with np.errstate(invalid="ignore", over="ignore"):
        return codes * scale + minimum


def _decode_bytes(blocks: Bytes) -> Array:
    """Blocks of [scale f16, 32 signed bytes] -> 32 values each."""
    with np.errstate(invalid="ignore"):
        return blocks[:, 2:].view(np.int8) * _float16(blocks[:, :2])


def _float16(columns: Bytes) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


_ENCODINGS = {  # by the number in `enum ggml_type`
    0: FLOAT32,
    1: FLOAT16,
    2: Encoding("q4_0", 32, 18, partial(_decode_nibbles, 4, False)),
    3: Encoding("q4_1", 32, 20, partial(_decode_nibbles, 4, True)),
    6: Encoding("q5_0", 32, 22, partial(_decode_nibbles, 5, False)),
    7: Encoding("q5_1", 32, 24, partial(_decode_nibbles, 5, True)),
    8: Encoding("q8_0", 32, 34, _decode_bytes),
}


def read(path: Path) -> Checkpoint:
    """Open a ggml file.

    Raises
    ------
    CheckpointError
        The file is damaged, not a Whisper model, or quantised in a way that is not supported.
    """
    with open_cursor(path) as cursor:
        if (magic := cursor.number("I")) != MAGIC:
            raise cursor.error(f"magic number {magic:#x}, allowed is {MAGIC:#x}")
        declared = dict(zip(_HEADER, cursor.numbers("10i"), strict=True))
        version = cursor.number("i") // 1000
        n_mels, n_bins = cursor.numbers("2i")
        cursor.skip(n_mels * n_bins * 4)  # the mel filters: harken computes them
        tokens = _tokens(cursor)
        tensors: dict[str, Tensor] = {}
        while cursor.left:
            name, encoding, tensor = _tensor(cursor)
            if encoding.items > 1 and version != _QUANTISATION_VERSION:
                raise cursor.error(f"quantisation version {version}, allowed is {_QUANTISATION_VERSION}")
            tensors[name] = tensor
    return assemble(path, "ggml", tensors, declared, Vocabulary(tokens=tokens))


def _tokens(cursor: Cursor) -> tuple[bytes, ...]:
    """Read the text tokens; some files list ``<|endoftext|>`` after them."""
    data, position, tokens = cursor.data, cursor.position + 4, []
    try:
        for _ in range(cursor.number("I")):  # by hand: 50,000 tokens through the cursor would take 70 ms
            (size,) = struct.unpack_from("<I", data, position)
            tokens.append(data[position + 4 : position + 4 + size])
            position += 4 + size
    except struct.error:
        raise cursor.error("truncated in the vocabulary") from None
    cursor.skip(position - cursor.position)
    return tuple(tokens)


def _tensor(cursor: Cursor) -> tuple[str, Encoding, Tensor]:
    axes, name_size, code = cursor.numbers("3i")
    if not 1 <= axes <= 4:
        raise cursor.error(f"a weight with {axes} axes, allowed is 1 to 4")
    shape = cursor.numbers(f"{axes}I")[::-1]  # ggml names the fastest axis first
    name = cursor.name(name_size)
    encoding = _ENCODINGS.get(code)
    if encoding is None:
        allowed = ", ".join(known.name for known in _ENCODINGS.values())
        raise cursor.error(f"weight {name!r} has ggml type {code}, allowed is {allowed}")
    if shape[-1] % encoding.items:
        raise cursor.error(f"weight {name!r} has rows of {shape[-1]}, {encoding.name} allows multiples of 32")
    offset = cursor.skip(encoding.size(shape))
    if name.endswith(".bias") and shape[1:] == (1,):
        shape = shape[:1]  # the biases of the convolutions are stored as columns
    return name, encoding, tensor_at(cursor.path, offset, encoding, shape)
