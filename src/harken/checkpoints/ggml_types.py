"""The data types of ggml, in files of whisper.cpp and in GGUF.

Blocks are those of ``dequantize_row_*`` (ggml/src/ggml-quants.c), and so are the values, bit for bit. The types with
tables of thousands of values are decoded by the package ``gguf``, which comes from ggml.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harken.checkpoints.model_files import DTYPES as PLAIN_DTYPES
from harken.checkpoints.model_files import Array, ByteArray, Cursor, LazyTensor, StorageDtype, lazy_tensor
from harken.errors import importing

Float32 = npt.NDArray[np.float32]
Shape = tuple[int, ...]


def _decode_4_or_5_bits(bits: int, has_minimum: bool, blocks: ByteArray) -> Array:
    """Decode blocks of [scale f16, minimum f16 if any, fifth bits if any, 16 bytes of nibbles] to 32 values each.

    Low nibbles are the first 16 values, high nibbles the last. Without a minimum, codes are centred on zero.
    """
    codes = np.concatenate([blocks[:, -16:] & 15, blocks[:, -16:] >> 4], axis=1)
    if bits == 5:
        codes |= np.unpackbits(blocks[:, -20:-16], axis=1, bitorder="little") << 4
    scale = _float16_column(blocks[:, :2])
    minimum = _float16_column(blocks[:, 2:4]) if has_minimum else -scale * 2.0 ** (bits - 1)
    return codes * scale + minimum


def _decode_8_bits(blocks: ByteArray) -> Array:
    """Decode blocks of [scale f16, 32 signed bytes] to 32 values each."""
    return blocks[:, 2:].view(np.int8) * _float16_column(blocks[:, :2])


def _decode_q2_k(blocks: ByteArray) -> Array:
    """Decode blocks of [16 scales and minima of 4 bits, codes, scale f16, minimum f16] to 256 values each."""
    scales, codes = blocks[:, :16], _unpack(blocks[:, 16:80], 2, 32, 16)
    scale, minimum = _float16_column(blocks[:, 80:82]), _float16_column(blocks[:, 82:84])
    return _scaled(codes, scale * (scales & 15)) - (minimum * (scales >> 4))[:, :, None]


def _decode_q3_k(blocks: ByteArray) -> Array:
    """Decode blocks of [third bits, codes of 2 bits, 16 scales of 6 bits, scale f16] to 256 values each."""
    third = _unpack(blocks[:, :32], 1, 32, 16)
    codes = _unpack(blocks[:, 32:96], 2, 32, 16).astype(np.int8) - (4 * (1 - third)).astype(np.int8)
    low, high = _unpack(blocks[:, 96:104], 4, 8, 16), _unpack(blocks[:, 104:108], 2, 4, 16)
    scales = (low | high << 4).reshape(-1, 16).astype(np.int8) - 32
    return _scaled(codes, _float16_column(blocks[:, 108:110]) * scales)


def _decode_q4_or_q5_k(bits: int, blocks: ByteArray) -> Array:
    """Decode blocks of [scale f16, minimum f16, 8 scales and minima of 6 bits, fifth bits if any, nibbles]."""
    codes = _unpack(blocks[:, -128:], 4, 32, 32)
    if bits == 5:
        codes |= _unpack(blocks[:, 16:48], 1, 32, 32) << 4
    first, second, both = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, both & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, both >> 4 | second >> 6 << 4], axis=1)
    scale, minimum = _float16_column(blocks[:, :2]), _float16_column(blocks[:, 2:4])
    values: Float32 = _scaled(codes, scale * scales) - (minimum * minima)[:, :, None]
    return values


def _decode_q6_k(blocks: ByteArray) -> Array:
    """Decode blocks of [nibbles, upper 2 bits, 16 signed scales, scale f16] to 256 values each."""
    codes = _unpack(blocks[:, :128], 4, 64, 16) | _unpack(blocks[:, 128:192], 2, 32, 16) << 4
    scales = _float16_column(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8)
    return _scaled(codes.astype(np.int8) - 32, scales)


def _unpack(packed: ByteArray, bits: int, run: int, width: int) -> ByteArray:
    """Return the codes of packed bytes, (blocks, codes / width, width): `run` bytes hold first their lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    codes: ByteArray = packed.reshape(len(packed), -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), -1, width)


def _scaled(codes: Array, scales: Float32) -> Float32:
    product: Float32 = scales[:, :, None] * codes
    return product


def _float16_column(columns: ByteArray) -> Float32:
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def _decode_by_gguf(name: str, blocks: ByteArray) -> Array:
    """Decode blocks of a type that needs large tables."""
    with importing("gguf", f"a weight of type {name.lower()}"):
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    values: Array = dequantize(blocks, GGMLQuantizationType[name])
    return values


def shape_and_type(cursor: Cursor, name: str, axes: Sequence[int], code: int) -> tuple[Shape, StorageDtype]:
    """Return the shape and the data type of a weight; ggml lists the fastest axis first."""
    shape = tuple(axes[::-1])
    dtype = DTYPES.get(code)
    if dtype is None:
        allowed = ", ".join(known.name for known in DTYPES.values())
        raise cursor.error(f"weight {name!r} has ggml type {code}, allowed is {allowed}")
    if not shape or shape[-1] % dtype.block_items:
        raise cursor.error(
            f"weight {name!r} has shape {shape}, {dtype.name} allows rows of multiples of {dtype.block_items}"
        )
    return shape, dtype


def weight_at(path: Path, name: str, offset: int, shape: Shape, dtype: StorageDtype) -> LazyTensor:
    """Return a weight at an offset of the file: biases of convolutions are stored as columns."""
    if name.endswith(".bias") and shape[1:] == (1,):
        shape = shape[:1]
    return lazy_tensor(path, offset, dtype, shape)


def _of_gguf(name: str, block_items: int, block_bytes: int) -> StorageDtype:
    return StorageDtype(name.lower(), block_items, block_bytes, partial(_decode_by_gguf, name))


DTYPES = {
    0: PLAIN_DTYPES["float32"],
    1: PLAIN_DTYPES["float16"],
    2: StorageDtype("q4_0", 32, 18, partial(_decode_4_or_5_bits, 4, False)),
    3: StorageDtype("q4_1", 32, 20, partial(_decode_4_or_5_bits, 4, True)),
    6: StorageDtype("q5_0", 32, 22, partial(_decode_4_or_5_bits, 5, False)),
    7: StorageDtype("q5_1", 32, 24, partial(_decode_4_or_5_bits, 5, True)),
    8: StorageDtype("q8_0", 32, 34, _decode_8_bits),
    10: StorageDtype("q2_k", 256, 84, _decode_q2_k),
    11: StorageDtype("q3_k", 256, 110, _decode_q3_k),
    12: StorageDtype("q4_k", 256, 144, partial(_decode_q4_or_q5_k, 4)),
    13: StorageDtype("q5_k", 256, 176, partial(_decode_q4_or_q5_k, 5)),
    14: StorageDtype("q6_k", 256, 210, _decode_q6_k),
    16: _of_gguf("IQ2_XXS", 256, 66),
    17: _of_gguf("IQ2_XS", 256, 74),
    18: _of_gguf("IQ3_XXS", 256, 98),
    19: _of_gguf("IQ1_S", 256, 50),
    20: _of_gguf("IQ4_NL", 32, 18),
    21: _of_gguf("IQ3_S", 256, 110),
    22: _of_gguf("IQ2_S", 256, 82),
    23: _of_gguf("IQ4_XS", 256, 136),
    29: _of_gguf("IQ1_M", 256, 56),
    30: PLAIN_DTYPES["bfloat16"],
    34: _of_gguf("TQ1_0", 256, 54),
    35: _of_gguf("TQ2_0", 256, 66),
    39: _of_gguf("MXFP4", 32, 17),
}
"""The data types by their number in `enum ggml_type`."""
