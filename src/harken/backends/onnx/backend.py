"""The CPU engine: the contract over ONNX graphs, each in the runtime that was measured to be fastest for it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harken.backends.onnx.plan import make_plan
from harken.backends.onnx.runtimes import Graph, InPlaceGraph, OnnxRuntimeGraph, OpenVinoGraph
from harken.backends.onnx.session import OnnxFeatures, OnnxSession
from harken.backends.onnx.store import GraphStore, default_root
from harken.checkpoints.alignment import Heads, default_heads
from harken.contract import Capabilities, Features, Floats
from harken.types import Dims

if TYPE_CHECKING:
    from onnx import ModelProto

FORMAT = 7
"""Part of the name of every kept graph; raise it when the builder changes what it builds."""


class OnnxBackend:
    """`harken.contract.Backend` on ONNX Runtime and OpenVINO.

    Parameters
    ----------
    dims : Dims
    weights : mapping of str to ndarray
        By the names of the original state dict; read only when a graph has to be built.
    digest : str
        Names the weights on disk: the same digest, the same graphs.
    precision : {"auto", "fp32", "bf16", "int8"}
        "auto" is int8.
    threads : int or None
        Threads of one forward pass; by default the processors that this process may use.
    cache : Path or None
        Where built graphs are kept; by default the user's cache directory.
    alignment_heads : tuple of (layer, head), or None
        Whose cross-attention sessions keep if they are asked to; None stands for all of the upper half of the
        decoder.

    Raises
    ------
    OptionError
        If this machine cannot compute in that precision.
    BackendUnavailable
        If a runtime is not installed.
    """

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, NDArray[Any]],
        digest: str,
        *,
        precision: str = "auto",
        threads: int | None = None,
        cache: Path | None = None,
        alignment_heads: Heads | None = None,
    ) -> None:
        self.dims = dims
        self.alignment_heads = tuple(sorted(alignment_heads or default_heads(dims)))
        self.threads = threads or usable_processors()
        self.plan = make_plan(precision)
        store = GraphStore(cache or default_root())
        # Each loads mostly outside of Python, so together they take the time of the slower one.
        with ThreadPoolExecutor(2) as pool:
            encoder = pool.submit(self._load_encoder, partial(self._path, store, digest, weights))
            decoder = pool.submit(self._load_decoder, partial(self._path, store, digest, weights))
            self._encoder, self._decoder = encoder.result(), decoder.result()
        self.capabilities = Capabilities(
            name="onnx",
            precision=self.plan.precision,
            device="cpu",
            detail=f"{self.plan}, {self.threads} threads",
        )

    def encode(self, mel: Floats) -> OnnxFeatures:
        dims, (audios, _, frames) = self.dims, mel.shape
        shape = (audios, dims.n_text_head, frames // 2, dims.n_text_state // dims.n_text_head)
        cross = {
            f"cross_{part}.{i}": np.empty(shape, np.float32) for i in range(dims.n_text_layer) for part in "kv"
        }
        for audio in range(audios):
            one = slice(audio, audio + 1)
            self._encoder({"mel": np.ascontiguousarray(mel[one])}, {name: cross[name][one] for name in cross})
        return OnnxFeatures(cross)

    def open(
        self, features: Features, rows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> OnnxSession:
        assert isinstance(features, OnnxFeatures), "features come from this backend's own encode"
        heads = len(self.alignment_heads) if attention else 0
        return OnnxSession(self._decoder, self.dims, features, rows, capacity, alignment_heads=heads)

    def _load_encoder(self, path: Callable[[str, str], Path]) -> InPlaceGraph:
        runtime, precision = self.plan.encoder
        if runtime == "openvino":
            return OpenVinoGraph(path("encoder", precision), self.threads, precision)
        return OnnxRuntimeGraph(path("encoder", precision), self.threads)

    def _load_decoder(self, path: Callable[[str, str], Path]) -> Graph:
        _, precision = self.plan.decoder
        return OnnxRuntimeGraph(path("decoder", precision), self.threads)

    def _path(
        self, store: GraphStore, digest: str, weights: Mapping[str, NDArray[Any]], half: str, precision: str
    ) -> Path:
        kind = "int8" if precision == "int8" else "float"
        build = partial(_build, half, kind, weights, self.dims, self.alignment_heads)
        heads = f"-{zlib.crc32(repr(self.alignment_heads).encode()):08x}" if half == "decoder" else ""
        return store.get(f"{digest[:32]}-{half}-{kind}{heads}-v{FORMAT}", build)


def usable_processors() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _build(
    half: str, kind: str, weights: Mapping[str, NDArray[Any]], dims: Dims, alignment_heads: Heads
) -> ModelProto:
    """Build the graph of one half; only this needs the onnx package, so a warm start does not wait for it."""
    from harken.backends.onnx import graphs
    from harken.backends.onnx.linear import float_linear, int8_linear

    if half == "encoder":
        return graphs.encoder(weights, dims)
    linear = int8_linear if kind == "int8" else float_linear
    return graphs.decoder(weights, dims, linear, alignment_heads)
