"""Random damage of files, reproducible by the seed of its generator."""

from __future__ import annotations

import random
from collections.abc import Sequence

_SIZES = (b"\xff" * 4, b"\xff" * 8, bytes(4), b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\x7f" + b"\xff" * 7)


def damaged(data: bytes, positions: Sequence[int], rng: random.Random, longest: int = 8) -> bytes:
    """Cut, flip, overwrite, insert, remove or repeat bytes up to a number, most of them at some positions."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.choice(positions) if rng.random() < 0.8 else rng.randrange(len(data))
        at = min(at, len(changed) - 1)
        end = at + rng.randint(1, longest)
        match rng.randrange(7):
            case 0:
                del changed[max(at, 1) :]
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at:end] = rng.randbytes(end - at)
            case 3:
                size = rng.choice(_SIZES)
                changed[at : at + len(size)] = size
            case 4:
                changed[at:at] = rng.randbytes(end - at)
            case 5:
                del changed[at:end]
            case 6:
                start = rng.choice(positions)
                changed[at:at] = data[start : start + rng.randrange(1, 200)]
        if not changed:
            break
    return bytes(changed)
