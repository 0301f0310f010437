"""The loading of a model's graphs: built from the weights or taken from the store, and compiled by their runtimes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from harken.backends.loading import load_parts
from harken.backends.onnx.runtimes import (
    BuiltGraph,
    Graph,
    OnnxRuntimeGraph,
    OpenVinoGraph,
    make_runtime_plan,
    stored_graph,
)
from harken.backends.rotation import RotatedWeights
from harken.checkpoints import Weights
from harken.checkpoints.alignment_heads import AlignmentHeads
from harken.contract import Arrays, Ints
from harken.types import Dims

GRAPH_FORMAT_VERSION = 13
"""Part of the name of every stored graph; raise it with every change of the graphs."""

DEPTH = 256
"""Products in a sum of the probe graph."""
COLUMNS = 64
ROWS = (1, 2, 5, 16)
"""Numbers of rows to multiply at once: the runtime has different kernels for them."""
LARGEST_ACTIVATION, LARGEST_WEIGHT = 255, 127

_NO_KERNEL = "Supported primitive descriptors list is empty"
"""Part of OpenVINO's error where it has no kernel for an operation; any other error must not change the precision."""


@dataclass(kw_only=True)
class GraphLoader:
    """A loader of the graphs of one model; the fields are those of `harken.backends.onnx.OnnxBackend`."""

    dims: Dims
    weights: Weights
    precision: str
    threads: int
    cache: Path | None
    alignment_heads: AlignmentHeads
    vocab_subset: Ints | None

    def __post_init__(self) -> None:
        """Refuse what cannot be had, or has changed, before anything is built."""
        self.plan = make_runtime_plan(self.precision)
        self.digest = self.weights.digest[:32]
        self._loaded: dict[str, Any] = {}
        self._lock = Lock()

    def load(self, *names: str) -> list[Any]:
        """Return graphs by name, "encoder", "cross_kv", "decoder" or "streaming_encoder", loaded at the first call.

        Loading mostly runs outside of Python: in parallel it takes the time of the slowest graph.

        Returns
        -------
        list of Graph
            "decoder" is an `OnnxRuntimeGraph`.
        """
        with self._lock:
            missing = [name for name in names if name not in self._loaded]
            if missing:
                self._loaded |= zip(missing, self._load(missing), strict=True)
            return [self._loaded[name] for name in names]

    def _load(self, names: Sequence[str]) -> list[Any]:
        loading = [partial(self._load_graph, name) for name in names]
        try:
            return load_parts(self.weights, *loading)
        except RuntimeError as error:
            unsupported = self.plan.encoder[1] == "bf16" and _NO_KERNEL in str(error)
            if not unsupported or self.plan.precision == "bf16":
                raise
        # Nobody asked for bfloat16. OpenVINO reports it, but cannot use it, where it is told to use fewer instructions.
        self.plan = replace(self.plan, encoder=("openvino", "f32"))
        return load_parts(self.weights, *loading)

    def _load_graph(self, name: str, weights: Arrays) -> Graph:
        runtime, precision = self.plan.decoder if name == "decoder" else self.plan.encoder
        path = self._get_or_build(name, precision, weights)
        if runtime == "openvino":
            return OpenVinoGraph(path, self.threads, precision)
        return OnnxRuntimeGraph(path, self.threads)

    def _get_or_build(self, name: str, precision: str, weights: Arrays) -> Path:
        weight_format = precision if precision in ("int8", "int4") else "float"
        if precision == "int8":
            weight_format = _int8_weight_format(self.cache)
        options = ""
        if name == "decoder":
            checksum = zlib.crc32(repr(self.alignment_heads).encode())
            if self.vocab_subset is not None:
                checksum = zlib.crc32(self.vocab_subset.tobytes(), checksum)
            options = f"-{checksum:08x}"
        key = f"{self.digest}-{name}-{weight_format}{options}-v{GRAPH_FORMAT_VERSION}"
        return stored_graph(key, partial(self._build, name, weight_format, weights), self.cache)

    def _build(self, name: str, weight_format: str, weights: Arrays) -> BuiltGraph:
        """Build one graph; only this imports the onnx package, so that a start with stored graphs is fast."""
        from harken.backends.onnx import graphs
        from harken.backends.onnx.linear import FLOAT_SCHEME, INTEGER_SCHEMES

        if name == "decoder":
            scheme = INTEGER_SCHEMES.get(weight_format, FLOAT_SCHEME)
            own = weights if scheme is FLOAT_SCHEME else RotatedWeights(weights, self.dims)
            graph = graphs.decoder(own, self.dims, scheme, self.alignment_heads, self.vocab_subset)
        else:
            parts = {
                "encoder": graphs.encoder,
                "streaming_encoder": graphs.streaming_encoder,
                "cross_kv": graphs.cross_kv,
            }
            graph = parts[name](weights, self.dims)
        self.weights.check_unchanged()
        return graph


def _int8_weight_format(cache: Path | None) -> str:
    """Return the format of 8-bit weights on this machine: "int8", or "int7" where its integer sums saturate.

    Processors before AVX-VNNI add pairs of 8-bit products in 16 bits, where the sum of two large ones saturates.
    Instead of a list of processors, a probe graph computes the largest possible sums in the runtime.
    """
    probe = OnnxRuntimeGraph(stored_graph(f"probe-v{GRAPH_FORMAT_VERSION}", probe_graph, cache), threads=1)
    return f"int{weight_bits(probe)}"


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
