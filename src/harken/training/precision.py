"""Which number format is fastest for matrices on this processor: asked of the processor, not of a list of names."""

from __future__ import annotations

from functools import cache
from time import perf_counter

import torch

SIZE = 512
TRIES = 5
WORTH_IT = 1.2
"""How many times faster bfloat16 must be, for what it loses."""


@cache
def fastest() -> torch.dtype:
    """bfloat16 where the processor multiplies it in hardware, else float32; takes some 20 ms."""
    worth = _seconds(torch.float32) > WORTH_IT * _seconds(torch.bfloat16)
    return torch.bfloat16 if worth else torch.float32


def _seconds(dtype: torch.dtype) -> float:
    """Shortest of some products; the first ones, in which libraries set themselves up, are not the shortest."""
    matrix = torch.ones(SIZE, SIZE, dtype=dtype)
    took = []
    for _ in range(TRIES):
        began = perf_counter()
        matrix @ matrix
        took.append(perf_counter() - began)
    return min(took)
