"""The CPU engine: the contract over ONNX graphs, each in the runtime that was measured to be fastest for it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harken.backends.onnx.encoder import OnnxEncoder
from harken.backends.onnx.plan import make_plan
from harken.backends.onnx.rotation import Rotated
from harken.backends.onnx.runtimes import BindableGraph, Graph, OnnxRuntimeGraph, OpenVinoGraph
from harken.backends.onnx.saturation import probe, weight_bits
from harken.backends.onnx.session import OnnxFeatures, OnnxSession
from harken.backends.onnx.store import GraphStore, default_root
from harken.checkpoints.alignment import Heads, default_heads
from harken.contract import Capabilities, Encoder, Features, Floats, Ints
from harken.types import FRAMES_PER_STEP, Dims

if TYPE_CHECKING:
    from onnx import ModelProto

NO_ENCODER = "this backend has no encoder of its own: it adopts features"
FORMAT = 10
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
    precision : {"auto", "fp32", "bf16", "int8", "int4"}
        "auto" is int8; int4 is for what drafts.
    threads : int or None
        Threads of one forward pass; by default the processors that this process may use.
    cache : Path or None
        Where built graphs are kept; by default the user's cache directory.
    alignment_heads : tuple of (layer, head), or None
        Whose cross-attention sessions keep if they are asked to; None stands for all of the upper half of the
        decoder.
    shares_encoder : bool
        Whether this is to be a decoder alone, as it is anyway where `dims` are: nothing of its encoder is read, built
        or loaded, features are adopted from a backend with the same encoder, and `encode` must not be called.
    vocabulary : ndarray of int64, or None
        Ascending ids of the tokens that logits cover; None is all. Prompts may hold any token.

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
        shares_encoder: bool = False,
        vocabulary: Ints | None = None,
    ) -> None:
        self.dims = dims.without_encoder() if shares_encoder else dims
        self.alignment_heads = tuple(sorted(alignment_heads or default_heads(dims)))
        self.vocabulary = vocabulary
        self.threads = threads or usable_processors()
        self.plan = make_plan(precision)
        self._path_of = path = partial(self._path, GraphStore(cache or default_root()), digest, weights)
        # They load mostly outside of Python, so together they take the time of the slowest one.
        with ThreadPoolExecutor(3) as pool:
            encoder = pool.submit(self._load_before, path, "encoder") if self.dims.has_encoder else None
            bridge = pool.submit(self._load_before, path, "bridge")
            decoder = pool.submit(self._load_decoder, path)
        self._encoder = encoder and encoder.result()
        self._bridge, self._decoder = bridge.result(), decoder.result()
        self.capabilities = Capabilities(
            name="onnx",
            precision=self.plan.precision,
            device="cpu",
            detail=f"{self.plan}, {self.threads} threads",
        )

    def encode(self, mel: Floats) -> OnnxFeatures:
        assert self._encoder, NO_ENCODER
        heard = np.empty((len(mel), mel.shape[2] // 2, self.dims.n_audio_state), np.float32)
        for one in _windows(len(mel)):
            self._encoder({"mel": np.ascontiguousarray(mel[one])}, {"heard": heard[one]})
        return self._listen(heard)

    def adopt(self, features: Features) -> OnnxFeatures:
        assert isinstance(features, OnnxFeatures), "features come from a backend of the same kind"
        return self._listen(features.heard, features.lengths)

    def open_encoder(self, history: int) -> OnnxEncoder:
        assert self._encoder, NO_ENCODER
        return OnnxEncoder(self.dims, history // FRAMES_PER_STEP)

    def hear(self, encoders: Sequence[Encoder], mel: Floats, keep: int) -> None:
        streams = [encoder for encoder in encoders if isinstance(encoder, OnnxEncoder)]
        inputs, into = OnnxEncoder.ask(streams, mel)
        self._window(inputs, into)
        heard = into["heard"]
        # To the bridge, the windows of all streams are one.
        cross = self._listen(heard.reshape(1, -1, heard.shape[2])).cross
        for row, stream in enumerate(streams):
            here = slice(row * heard.shape[1], (row + 1) * heard.shape[1])
            fresh = {name: array[row] for name, array in into.items()}
            fresh |= {name: array[0, :, here] for name, array in cross.items()}
            stream.take(mel[row], fresh, keep // FRAMES_PER_STEP)

    def gather(self, encoders: Sequence[Encoder]) -> OnnxFeatures:
        return OnnxEncoder.gather([encoder for encoder in encoders if isinstance(encoder, OnnxEncoder)])

    def open(
        self, features: Features, rows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> OnnxSession:
        assert isinstance(features, OnnxFeatures), "features come from this backend's own encode or adopt"
        return OnnxSession(
            self._decoder,
            self.dims,
            features,
            rows,
            capacity,
            alignment_heads=len(self.alignment_heads) if attention else 0,
            vocabulary=self.vocabulary,
        )

    def _listen(self, heard: Floats, lengths: Sequence[int] | None = None) -> OnnxFeatures:
        dims, (audios, positions, _) = self.dims, heard.shape
        shape = (audios, dims.n_text_head, positions, dims.n_text_state // dims.n_text_head)
        cross = {
            f"cross_{part}.{i}": np.empty(shape, np.float32) for i in range(dims.n_text_layer) for part in "kv"
        }
        for one in _windows(audios):
            self._bridge({"heard": heard[one]}, {name: array[one] for name, array in cross.items()})
        return OnnxFeatures(heard, cross, lengths)

    @cached_property
    def _window(self) -> Graph:
        """The encoder of streams, which is loaded when the first of them is heard."""
        return self._load_before(self._path_of, "window")

    def _load_before(self, path: Callable[[str, str], Path], part: str) -> Graph:
        """Load what comes before the decoder and runs once a window."""
        runtime, precision = self.plan.encoder
        if runtime == "openvino":
            return OpenVinoGraph(path(part, precision), self.threads, precision)
        return OnnxRuntimeGraph(path(part, precision), self.threads)

    def _load_decoder(self, path: Callable[[str, str], Path]) -> BindableGraph:
        _, precision = self.plan.decoder
        return OnnxRuntimeGraph(path("decoder", precision), self.threads)

    def _path(
        self, store: GraphStore, digest: str, weights: Mapping[str, NDArray[Any]], part: str, precision: str
    ) -> Path:
        kind = _integers(store) if precision == "int8" else precision if precision == "int4" else "float"
        build = partial(_build, part, kind, weights, self.dims, self.alignment_heads, self.vocabulary)
        choice = f"-{self._choice():08x}" if part == "decoder" else ""
        return store.get(f"{digest[:32]}-{part}-{kind}{choice}-v{FORMAT}", build)

    def _choice(self) -> int:
        """Checksum of what was chosen for the decoder's graph beside weights and precision."""
        heads = zlib.crc32(repr(self.alignment_heads).encode())
        return heads if self.vocabulary is None else zlib.crc32(self.vocabulary.tobytes(), heads)


def _windows(audios: int) -> Iterator[slice]:
    """Slices of one window each, which is what the graphs before the decoder take."""
    return (slice(audio, audio + 1) for audio in range(audios))


def usable_processors() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _integers(store: GraphStore) -> str:
    """What weights of 8 bits are on this machine: "int8", or "int7" where the sums of their products do not fit."""
    return f"int{weight_bits(OnnxRuntimeGraph(store.get(f'probe-v{FORMAT}', probe), threads=1))}"


def _build(
    part: str,
    kind: str,
    weights: Mapping[str, NDArray[Any]],
    dims: Dims,
    alignment_heads: Heads,
    vocabulary: Ints | None,
) -> ModelProto:
    """Build one graph; only this needs the onnx package, so a warm start does not wait for it."""
    from harken.backends.onnx import graphs
    from harken.backends.onnx.linear import FLOAT, INTEGER

    if part == "encoder":
        return graphs.encoder(weights, dims)
    if part == "window":
        return graphs.window(weights, dims)
    if part == "bridge":
        return graphs.bridge(weights, dims)
    if kind in INTEGER:
        return graphs.decoder(Rotated(weights, dims), dims, INTEGER[kind], alignment_heads, vocabulary)
    return graphs.decoder(weights, dims, FLOAT, alignment_heads, vocabulary)
