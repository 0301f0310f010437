"""The loading of a model's graphs: built from the weights or taken from the store, and compiled by their runtimes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from harken.backends.onnx.graph_files import BuiltGraph
from harken.backends.onnx.graph_store import GraphStore
from harken.backends.onnx.parallel_loading import ParallelLoading
from harken.backends.onnx.rotation import RotatedWeights
from harken.backends.onnx.runtime_plan import RuntimePlan, make_runtime_plan
from harken.backends.onnx.runtimes import Graph, OnnxRuntimeGraph, OpenVinoGraph
from harken.backends.onnx.saturation import probe_graph, weight_bits
from harken.checkpoints.alignment_heads import AlignmentHeads
from harken.contract import Ints
from harken.types import Dims

GRAPH_FORMAT_VERSION = 13
"""Part of the name of every stored graph; raise it with every change of the graphs."""

_NO_KERNEL = "Supported primitive descriptors list is empty"
"""Part of OpenVINO's error where it has no kernel for an operation; any other error must not change the precision."""

Weights = Mapping[str, NDArray[Any]]
Part = str | Callable[[Weights], Any]
"""The name of a graph, or a function that loads another part of a model from its weights."""


@dataclass(kw_only=True)
class GraphLoader:
    """A loader of the graphs of one model.

    Parameters
    ----------
    dims : Dims
    weights : mapping of str to ndarray
        By the names of the original state dict; read only when a graph has to be built.
    digest : str
        Digest of the weights; stored graphs are reused where it is the same.
    check_unchanged : callable
        Raises an error if the weights may not be those of `digest` any more.
    precision : str
        As `harken.backends.onnx.runtime_plan.make_runtime_plan` takes it.
    threads : int
        Threads of one forward pass.
    store : GraphStore
    alignment_heads : tuple of (layer, head)
    vocab_subset : ndarray of int64, or None
    """

    dims: Dims
    weights: Weights
    digest: str
    check_unchanged: Callable[[], None]
    precision: str
    threads: int
    store: GraphStore
    alignment_heads: AlignmentHeads
    vocab_subset: Ints | None

    @cached_property
    def plan(self) -> RuntimePlan:
        """The runtimes, chosen when the first graph is loaded.

        The encoder's precision changes to float32 where bfloat16 was not asked for and turns out not to work.
        """
        return make_runtime_plan(self.precision)

    def load(self, *parts: Part) -> list[Any]:
        """Load graphs by name: "encoder", "cross_kv", "decoder", "streaming_encoder".

        Loading mostly runs outside of Python: in parallel it takes the time of the slowest graph.

        Parameters
        ----------
        *parts : str or callable
            A function is called with the weights, in parallel to the graphs.

        Returns
        -------
        list
            Graphs, of which "decoder" is a `BindableGraph`, and results of functions.
        """
        if any(isinstance(part, str) for part in parts):
            self.plan  # noqa: B018 - an unknown precision is refused before anything is built
        try:
            return self._load_in_parallel(parts)
        except RuntimeError as error:
            unsupported = self.plan.encoder[1] == "bf16" and _NO_KERNEL in str(error)
            if not unsupported or self.plan.precision == "bf16":
                raise
        # OpenVINO reports bfloat16 arithmetic that it cannot use where it is told to use fewer instruction sets.
        self.plan = replace(self.plan, encoder=("openvino", "f32"))
        return self._load_in_parallel(parts)

    def _load_in_parallel(self, parts: Sequence[Part]) -> list[Any]:
        loading = ParallelLoading()
        weights = _AbandonableWeights(self.weights, loading.check_not_abandoned)
        return loading.run(
            *(
                partial(self._load_graph, part, weights) if isinstance(part, str) else partial(part, weights)
                for part in parts
            )
        )

    def _load_graph(self, name: str, weights: Weights) -> Graph:
        runtime, precision = self.plan.decoder if name == "decoder" else self.plan.encoder
        path = self._get_or_build(name, precision, weights)
        if runtime == "openvino":
            return OpenVinoGraph(path, self.threads, precision)
        return OnnxRuntimeGraph(path, self.threads)

    def _get_or_build(self, name: str, precision: str, weights: Weights) -> Path:
        weight_format = (
            _int8_weight_format(self.store)
            if precision == "int8"
            else precision
            if precision == "int4"
            else "float"
        )
        options_checksum = f"-{self._decoder_options_checksum():08x}" if name == "decoder" else ""
        key = f"{self.digest[:32]}-{name}-{weight_format}{options_checksum}-v{GRAPH_FORMAT_VERSION}"
        return self.store.get_or_build(key, partial(self._build, name, weight_format, weights))

    def _decoder_options_checksum(self) -> int:
        """Return a checksum of the decoder's options beside weights and precision."""
        heads = zlib.crc32(repr(self.alignment_heads).encode())
        return heads if self.vocab_subset is None else zlib.crc32(self.vocab_subset.tobytes(), heads)

    def _build(self, name: str, weight_format: str, weights: Weights) -> BuiltGraph:
        graph = self._build_graph(name, weight_format, weights)
        self.check_unchanged()
        return graph

    def _build_graph(self, name: str, weight_format: str, weights: Weights) -> BuiltGraph:
        """Build one graph; only this imports the onnx package, so that a start with stored graphs is fast."""
        from harken.backends.onnx import graphs
        from harken.backends.onnx.linear import FLOAT_SCHEME, INTEGER_SCHEMES

        if name == "encoder":
            return graphs.encoder(weights, self.dims)
        if name == "streaming_encoder":
            return graphs.streaming_encoder(weights, self.dims)
        if name == "cross_kv":
            return graphs.cross_kv(weights, self.dims)
        scheme = INTEGER_SCHEMES.get(weight_format, FLOAT_SCHEME)
        if scheme is not FLOAT_SCHEME:
            weights = RotatedWeights(weights, self.dims)
        return graphs.decoder(weights, self.dims, scheme, self.alignment_heads, self.vocab_subset)


class _AbandonableWeights(Weights):
    """Weights that are read until loading is abandoned."""

    def __init__(self, weights: Weights, check_not_abandoned: Callable[[], None]) -> None:
        self._weights, self._check_not_abandoned = weights, check_not_abandoned

    def __getitem__(self, name: str) -> NDArray[Any]:
        self._check_not_abandoned()
        return self._weights[name]

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _int8_weight_format(store: GraphStore) -> str:
    """Return the format of 8-bit weights on this machine: "int8", or "int7" where its integer sums saturate."""
    probe = OnnxRuntimeGraph(store.get_or_build(f"probe-v{GRAPH_FORMAT_VERSION}", probe_graph), threads=1)
    return f"int{weight_bits(probe)}"
