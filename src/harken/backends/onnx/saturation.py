"""The test whether integer products saturate on this machine.

Processors before AVX-VNNI add pairs of 8-bit products in 16 bits, where the sum of two large ones saturates. Instead of
a list of processors, a probe graph computes the largest possible sums in the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harken.backends.onnx.runtimes import Graph

if TYPE_CHECKING:
    from harken.backends.onnx.graph_files import BuiltGraph

DEPTH = 256
"""Products in a sum."""
COLUMNS = 64
ROWS = (1, 2, 5, 16)
"""Numbers of rows to multiply at once: the runtime has different kernels for them."""
LARGEST_ACTIVATION, LARGEST_WEIGHT = 255, 127


def probe_graph() -> BuiltGraph:
    """Build a graph that multiplies as `harken.backends.onnx.linear` does, by `probe_weights`."""
    from harken.backends.onnx.builder import MICROSOFT_DOMAIN, GraphBuilder

    graph = GraphBuilder("probe")
    x = graph.input("x", ("rows", DEPTH), np.uint8)
    one, zero = graph.constant(np.array(1, np.float32)), graph.constant(np.array(0, np.uint8))
    scales = graph.constant(np.ones(COLUMNS, np.float32))
    weights = graph.constant(probe_weights())
    graph.output(
        graph.op("MatMulIntegerToFloat", x, weights, one, scales, zero, domain=MICROSOFT_DOMAIN),
        "sums",
        ("rows", COLUMNS),
    )
    return graph.build()


def probe_weights() -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
    """Return weights of the largest magnitude; the sign alternates after 1, 2, 4 ... 128 rows, by column."""
    signs = np.where(np.arange(DEPTH)[:, None] >> (np.arange(COLUMNS) % 8) & 1, -1, 1)
    return (LARGEST_WEIGHT * signs).astype(np.int8)


def weight_bits(graph: Graph) -> int:
    """Return the bits that weights may have: 8 where the probe graph sums exactly, else 7, which always fit."""
    weights = probe_weights().astype(np.int64)
    for rows in ROWS:
        x = np.full((rows, DEPTH), LARGEST_ACTIVATION, np.uint8)
        sums = np.empty((rows, COLUMNS), np.float32)
        graph({"x": x}, {"sums": sums})
        if not np.array_equal(sums, x.astype(np.int64) @ weights):
            return 7
    return 8
