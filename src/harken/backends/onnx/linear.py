"""Linear layers of a graph, and the arithmetics that the engine knows for them.

In 8 bits every row that is multiplied has one scale, as has every row of weights, and what lies between is a sum of
products of integers. Such a sum is exact: how many rows are multiplied at once cannot show in it
(docs/decisions/int8.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harken.backends.onnx.builder import MICROSOFT, GraphBuilder
from harken.contract import Floats

Linear = Callable[[GraphBuilder, str, Floats], str]
"""Multiply ``x`` of shape (..., K) by the transpose of a weight of shape (N, K)."""

SIGNED, AFTER_GELU = 128, 24
"""Zero points: which of the integers 0 to 255 stands for 0. A GELU's output is hardly negative."""
LOWEST_GELU = -0.17
BLOCK = 32
LOUD = 8
"""One in so many units of an MLP is loud; they come first (see `harken.backends.onnx.rotation`)."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How to multiply by a weight, in general and where `x` is what a GELU gives, loud units first."""

    linear: Linear
    after_gelu: Linear


def float_linear(graph: GraphBuilder, x: str, weight: Floats) -> str:
    """Multiply in the precision of the runtime."""
    return graph.op("MatMul", x, graph.constant(weight.T))


def integer_linear(graph: GraphBuilder, x: str, weight: Floats, bits: int) -> str:
    """Multiply rows that are quantised by what is largest in each."""
    peak = graph.op("ReduceMax", graph.op("Abs", x), graph.constant([-1]), keepdims=1)
    return _integer_product(graph, x, peak, weight, bits, SIGNED)


def integer_after_gelu(graph: GraphBuilder, x: str, weight: Floats, bits: int) -> str:
    """Multiply loud units and all others apart, each with a scale of its own: a few loud ones drown the rest."""
    loud = weight.shape[1] // LOUD
    sizes = graph.constant([loud, weight.shape[1] - loud])
    # Of what is this quiet, a finer scale would cut off the negative part.
    quietest = graph.constant(np.array(LOWEST_GELU * (AFTER_GELU - 255) / AFTER_GELU, np.float32))
    sums = []
    for part, its in zip(
        graph.ops("Split", x, sizes, outputs=2, axis=-1), np.split(weight, [loud], 1), strict=True
    ):
        peak = graph.op("Max", graph.op("ReduceMax", part, graph.constant([-1]), keepdims=1), quietest)
        sums.append(_integer_product(graph, part, peak, its, bits, AFTER_GELU))
    return graph.op("Add", *sums)


def _integer_product(graph: GraphBuilder, x: str, peak: str, weight: Floats, bits: int, zero: int) -> str:
    """Multiply integers, of which 255 stands for the `peak` of its row.

    A row of zeros has no scale, and what 0 / 0 becomes as an integer is anybody's guess; but in the end it is
    multiplied by its peak, 0.
    """
    quantised, scales = quantise_rows(weight, bits)
    unit, zero_point = np.float32(1 / (255 - zero)), graph.constant(np.array(zero, np.uint8))
    integers = graph.op("QuantizeLinear", graph.op("Div", x, peak), graph.constant(np.array(unit)), zero_point)
    product = graph.op(
        "MatMulIntegerToFloat",
        integers,
        graph.constant(quantised.T),
        graph.constant(np.array(unit)),
        graph.constant(scales),
        zero_point,
        domain=MICROSOFT,
    )
    return graph.op("Mul", product, peak)


def nibble_linear(graph: GraphBuilder, x: str, weight: Floats) -> str:
    """Multiply by weights of 4 bits, with a scale for every 32 of a row: half of the memory to read, for drafts."""
    quantised, scales = quantise_blocks(weight)
    rows, columns = weight.shape
    return graph.op(
        "MatMulNBits",
        x,
        graph.constant(quantised),
        graph.constant(scales),
        domain=MICROSOFT,
        K=columns,
        N=rows,
        bits=4,
        block_size=BLOCK,
        accuracy_level=4,
    )


def quantise_blocks(weight: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Quantise blocks of rows to 4 bits, to the nearest; what is largest in a block becomes 0, which stands for -8.

    Returns
    -------
    quantised : ndarray of shape (N, blocks, BLOCK / 2), uint8
        Two in a byte, the first in its lower half; 8 stands for 0.
    scales : ndarray of shape (N, blocks), float32
        ``weight = (quantised - 8) * scale``
    """
    rows, columns = weight.shape
    blocks = np.pad(weight, ((0, 0), (0, -columns % BLOCK))).reshape(rows, -1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2, keepdims=True), axis=2)
    scales = largest / np.float32(-8)
    divisors = np.where(scales != 0, scales, np.float32(1))
    quantised = np.clip(np.rint(blocks / divisors) + 8, 0, 15).astype(np.uint8)
    return quantised[:, :, 0::2] | quantised[:, :, 1::2] << 4, scales[:, :, 0].astype(np.float32, copy=False)


def quantise_rows(weight: Floats, bits: int) -> tuple[NDArray[np.int8], Floats]:
    """Quantise each row to integers of so many bits, symmetric about 0, to the nearest.

    Returns
    -------
    quantised : ndarray of shape (N, K), int8
    scales : ndarray of shape (N,), float32
        ``weight = quantised * scale``
    """
    scales = np.abs(weight).max(axis=1) / np.float32(2 ** (bits - 1) - 1)
    divisors = np.where(scales > 0, scales, np.float32(1))
    return np.rint(weight / divisors[:, None]).astype(np.int8), scales.astype(np.float32, copy=False)


FLOAT = Arithmetic(float_linear, float_linear)
INTEGER = {
    f"int{bits}": Arithmetic(partial(integer_linear, bits=bits), partial(integer_after_gelu, bits=bits))
    for bits in (7, 8)
} | {"int4": Arithmetic(nibble_linear, nibble_linear)}
"""By the bits of a weight; activations have 8 in all. With 4, sums are not exact."""
