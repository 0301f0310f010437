"""Colours of the HTML page and the PNG, and palette images."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats

# Nine colours of matplotlib's "magma", dark to light; those in between are interpolated.
_MAGMA = (
    (0, 0, 4), (29, 17, 71), (81, 18, 124), (131, 38, 129), (183, 55, 121), (231, 82, 99), (252, 137, 97),
    (254, 196, 136), (252, 253, 191),
)  # fmt: skip
_PROBABLE, _IMPROBABLE = (198, 219, 239), (240, 110, 60)

INK, DTW_PATH, SPEECH, ACCEPTED, REJECTED = "#222222", "#00c2d1", "#2a6fbb", "#3c9d5d", "#c9463d"

PALETTE: NDArray[np.uint8] = np.stack(
    [np.interp(np.linspace(0, 8, 256), range(9), channel) for channel in zip(*_MAGMA, strict=True)], axis=1
).astype(np.uint8)


def palette_indices(values: Floats, low: float, high: float) -> NDArray[np.uint8]:
    """Map values to indices of `PALETTE`: 1 for `low` to 255 for `high`, and 0, which is transparent, for nan."""
    scaled = 1 + np.clip((values - low) / max(high - low, 1e-9), 0, 1) * 254
    indices: NDArray[np.uint8] = np.nan_to_num(scaled, nan=0).astype(np.uint8)
    return indices


def probability_colour(probability: float) -> str:
    """Return the colour of a probability as ``#rrggbb``."""
    mixed = (
        round(low + (high - low) * min(1.0, max(0.0, probability)))
        for high, low in zip(_PROBABLE, _IMPROBABLE, strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode indices of `PALETTE`, shape (rows, columns), as a PNG (W3C, Portable Network Graphics, 11.2 and 11.3)."""
    height, width = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)  # 0: no filter on this line
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", PALETTE.tobytes()),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, data) for kind, data in chunks)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
