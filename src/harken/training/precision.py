"""Which number format is fastest for matrices on this processor: asked of the processor, not of a list of names."""

from __future__ import annotations

from functools import cache
from time import perf_counter

import torch

MATRIX_SIZE = 512
REPEATS = 5
MIN_SPEEDUP = 1.2
"""How many times faster bfloat16 must be, for what it loses."""


@cache
def fastest_matmul_dtype() -> torch.dtype:
    """bfloat16 where the processor multiplies it in hardware, else float32; takes some 20 ms."""
    use_bfloat16 = _matmul_seconds(torch.float32) > MIN_SPEEDUP * _matmul_seconds(torch.bfloat16)
    return torch.bfloat16 if use_bfloat16 else torch.float32


def _matmul_seconds(dtype: torch.dtype) -> float:
    """Shortest of some products; the first ones, in which libraries set themselves up, are not the shortest."""
    matrix = torch.ones(MATRIX_SIZE, MATRIX_SIZE, dtype=dtype)
    seconds = []
    for _ in range(REPEATS):
        started = perf_counter()
        matrix @ matrix
        seconds.append(perf_counter() - started)
    return min(seconds)
