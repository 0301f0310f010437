"""The linear layers of a graph, in float and in quantised arithmetic.

In 8 bits every input row and every row of weights has one scale, and their product is a sum of products of integers.
Such a sum is exact, so a result does not depend on the number of rows that are multiplied at once
(docs/decisions/int8.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from harken.backends.onnx.builder import MICROSOFT_DOMAIN, GraphBuilder
from harken.contract import Floats

Linear = Callable[[GraphBuilder, str, Floats], str]
"""A function that multiplies ``x`` of shape (..., K) by the transpose of a weight of shape (N, K)."""

SYMMETRIC_ZERO_POINT, GELU_ZERO_POINT = 128, 24
"""Zero points: the integer of 0 to 255 that stands for 0. The output of a GELU is hardly negative."""
GELU_MINIMUM = -0.17
INT4_BLOCK = 32
UNITS_PER_OUTLIER = 8
"""Hidden units of an MLP per outlier channel; outliers come first (see `harken.backends.rotation`)."""


@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """The ways to multiply by a weight: in general, and behind a GELU with its outlier channels first."""

    linear: Linear
    after_gelu: Linear


def float_linear(graph: GraphBuilder, x: str, weight: Floats) -> str:
    """Multiply in the precision of the runtime."""
    return graph.op("MatMul", x, graph.constant(weight.T))


def integer_linear(graph: GraphBuilder, x: str, weight: Floats, bits: int) -> str:
    """Multiply in integers; each row of `x` is scaled by its largest absolute value."""
    peak = graph.op("ReduceMax", graph.op("Abs", x), graph.constant([-1]), keepdims=1)
    return _integer_matmul(graph, x, peak, weight, bits, SYMMETRIC_ZERO_POINT)


def integer_linear_after_gelu(graph: GraphBuilder, x: str, weight: Floats, bits: int) -> str:
    """Multiply in integers with one scale for the outlier channels of a row and one for all others."""
    n_outliers = weight.shape[1] // UNITS_PER_OUTLIER
    sizes = graph.constant([n_outliers, weight.shape[1] - n_outliers])
    # With a smaller peak than this, the scale would clip the negative values of the GELU.
    smallest_peak = graph.constant(
        np.array(GELU_MINIMUM * (GELU_ZERO_POINT - 255) / GELU_ZERO_POINT, np.float32)
    )
    products = []
    for x_part, weight_part in zip(
        graph.ops("Split", x, sizes, outputs=2, axis=-1), np.split(weight, [n_outliers], 1), strict=True
    ):
        peak = graph.op("Max", graph.op("ReduceMax", x_part, graph.constant([-1]), keepdims=1), smallest_peak)
        products.append(_integer_matmul(graph, x_part, peak, weight_part, bits, GELU_ZERO_POINT))
    return graph.op("Add", *products)


def _integer_matmul(graph: GraphBuilder, x: str, peak: str, weight: Floats, bits: int, zero: int) -> str:
    """Multiply in integers, where 255 stands for the `peak` of a row.

    In a row of zeros 0 / 0 becomes an undefined integer, but the product is multiplied by the peak, 0.
    """
    quantised, scales = quantise_rows(weight, bits)
    scale, zero_point = np.float32(1 / (255 - zero)), graph.constant(np.array(zero, np.uint8))
    integers = graph.op("QuantizeLinear", graph.op("Div", x, peak), graph.constant(np.array(scale)), zero_point)
    product = graph.op(
        "MatMulIntegerToFloat",
        integers,
        graph.constant(quantised.T),
        graph.constant(np.array(scale)),
        graph.constant(scales),
        zero_point,
        domain=MICROSOFT_DOMAIN,
    )
    return graph.op("Mul", product, peak)


def int4_linear(graph: GraphBuilder, x: str, weight: Floats) -> str:
    """Multiply by weights of 4 bits with a scale for every 32 of a row, which halves the memory to read."""
    quantised, scales = quantise_blocks(weight)
    rows, columns = weight.shape
    return graph.op(
        "MatMulNBits",
        x,
        graph.constant(quantised),
        graph.constant(scales),
        domain=MICROSOFT_DOMAIN,
        K=columns,
        N=rows,
        bits=4,
        block_size=INT4_BLOCK,
        accuracy_level=4,
    )


def quantise_blocks(weight: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Quantise blocks of rows to 4 bits, to the nearest; the largest magnitude of a block becomes 0, which is -8.

    Returns
    -------
    quantised : ndarray of shape (N, blocks, INT4_BLOCK / 2), uint8
        Two in a byte, the first in its lower half; 8 stands for 0.
    scales : ndarray of shape (N, blocks), float32
        ``weight = (quantised - 8) * scale``
    """
    rows, columns = weight.shape
    blocks = np.pad(weight, ((0, 0), (0, -columns % INT4_BLOCK))).reshape(rows, -1, INT4_BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2, keepdims=True), axis=2)
    scales = largest / np.float32(-8)
    divisors = np.where(scales != 0, scales, np.float32(1))
    quantised = np.clip(np.rint(blocks / divisors) + 8, 0, 15).astype(np.uint8)
    return quantised[:, :, 0::2] | quantised[:, :, 1::2] << 4, scales[:, :, 0].astype(np.float32, copy=False)


def quantise_rows(weight: Floats, bits: int) -> tuple[NDArray[np.int8], Floats]:
    """Quantise each row to integers of `bits` bits, symmetric about 0, to the nearest.

    Returns
    -------
    quantised : ndarray of shape (N, K), int8
    scales : ndarray of shape (N,), float32
        ``weight = quantised * scale``
    """
    scales = np.abs(weight).max(axis=1) / np.float32(2 ** (bits - 1) - 1)
    divisors = np.where(scales > 0, scales, np.float32(1))
    return np.rint(weight / divisors[:, None]).astype(np.int8), scales.astype(np.float32, copy=False)


FLOAT_SCHEME = QuantizationScheme(float_linear, float_linear)
INTEGER_SCHEMES = {
    f"int{bits}": QuantizationScheme(
        partial(integer_linear, bits=bits), partial(integer_linear_after_gelu, bits=bits)
    )
    for bits in (7, 8)
} | {"int4": QuantizationScheme(int4_linear, int4_linear)}
"""Schemes by the bits of a weight; activations always have 8. With int4, sums are not exact."""
