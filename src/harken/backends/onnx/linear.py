"""Linear layers of a graph, in the precisions that the engine knows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from harken.backends.onnx.builder import MICROSOFT, GraphBuilder
from harken.contract import Floats

BLOCK = 32
Linear = Callable[[GraphBuilder, str, Floats], str]
"""Multiply ``x`` of shape (..., K) by the transpose of a weight of shape (N, K)."""


def float_linear(graph: GraphBuilder, x: str, weight: Floats) -> str:
    """Multiply in the precision of the runtime."""
    return graph.op("MatMul", x, graph.constant(weight.T))


def int8_linear(graph: GraphBuilder, x: str, weight: Floats, block: int = BLOCK) -> str:
    """Multiply 8-bit weights, one scale per 32 of a row, with activations quantised as finely on the fly.

    Scales this fine are why int8 costs no accuracy here, and they cost no time either (docs/decisions/int8.md).
    """
    rows, columns = weight.shape
    quantised, scales = quantise_blocks(weight, block)
    return graph.op(
        "MatMulNBits",
        x,
        graph.constant(quantised),
        graph.constant(scales),
        domain=MICROSOFT,
        K=columns,
        N=rows,
        bits=8,
        block_size=block,
        accuracy_level=4,
    )


def quantise_blocks(weight: Floats, block: int) -> tuple[NDArray[np.uint8], Floats]:
    """Quantise rows in blocks, symmetric about 128, to the nearest.

    Returns
    -------
    quantised : ndarray of shape (N, blocks, block), uint8
    scales : ndarray of shape (N, blocks), float32
        ``weight = (quantised - 128) * scale``
    """
    rows, columns = weight.shape
    blocks = -(-columns // block)
    padded = np.zeros((rows, blocks * block), np.float32)
    padded[:, :columns] = weight
    grouped = padded.reshape(rows, blocks, block)
    scales = np.abs(grouped).max(axis=2) / np.float32(127)
    divisors = np.where(scales > 0, scales, np.float32(1))
    quantised = np.rint(grouped / divisors[:, :, None]) + 128
    return quantised.astype(np.uint8), scales.astype(np.float32, copy=False)
