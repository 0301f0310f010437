"""Choice of the dtype of matrix products, by measuring this processor."""

from __future__ import annotations

from functools import cache
from time import perf_counter

import torch

MATRIX_SIZE = 512
REPEATS = 5
MIN_SPEEDUP = 1.2
"""Least speed-up by bfloat16 that is worth its lower precision."""


@cache
def fastest_matmul_dtype() -> torch.dtype:
    """Return bfloat16 where the processor multiplies it in hardware, else float32; takes some 20 ms."""
    use_bfloat16 = _matmul_seconds(torch.float32) > MIN_SPEEDUP * _matmul_seconds(torch.bfloat16)
    return torch.bfloat16 if use_bfloat16 else torch.float32


def _matmul_seconds(dtype: torch.dtype) -> float:
    """Return the shortest time of some products; the first ones include the set-up of libraries."""
    matrix = torch.ones(MATRIX_SIZE, MATRIX_SIZE, dtype=dtype)
    seconds = []
    for _ in range(REPEATS):
        start_s = perf_counter()
        matrix @ matrix
        seconds.append(perf_counter() - start_s)
    return min(seconds)
