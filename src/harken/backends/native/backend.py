"""The CPU engine with the compiled encoder and decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from harken.backends.checks import own_states
from harken.backends.native.decoder import NativeDecoder
from harken.backends.native.decoder_weights import DecoderWeights
from harken.backends.native.encoder import NativeEncoder
from harken.backends.native.encoder_weights import EncoderWeights
from harken.backends.native.features import NativeFeatures
from harken.backends.native.library import chosen_instruction_set
from harken.backends.native.packed_file import load_packed
from harken.backends.native.packing import GROUP
from harken.backends.native.session import NativeSession
from harken.backends.native.streaming_encoder import NativeEncoderState
from harken.backends.onnx.encoding import Encoder, EncoderGraphs, EncodingBackend
from harken.backends.onnx.graph_loader import GraphLoader
from harken.backends.onnx.graph_store import GraphStore, default_graph_directory
from harken.backends.onnx.runtime_plan import RuntimePlan, has_amx, openvino_capabilities
from harken.checkpoints.alignment_heads import AlignmentHeads, default_heads
from harken.contract import Capabilities, Features, Floats, Ints, SparsePositions, StreamingEncoderState
from harken.errors import OptionError
from harken.processors import usable_processors
from harken.types import Dims

PRECISIONS = ("auto", "int8")
BITS = {"auto": 8, "int8": 8, "int4": 4}
"""Bits of a weight; int4 is for assistants."""
STATE_DIVISOR, HEAD_SIZE_DIVISOR, MAX_HEAD_SIZE = 32, 16, 64


class NativeBackend(EncodingBackend[NativeFeatures]):
    """`harken.contract.Backend` on a compiled encoder and decoder.

    The graphs of the ONNX engine encode where bfloat16 in matrix units is faster, or where the encoder's heads do not
    fit the kernels. Calls take turns: while a window is encoded, a decoder step of another thread waits.

    Parameters
    ----------
    dims : Dims
    weights : mapping of str to ndarray
        By the names of the original state dict; read only when a graph has to be built or weights to be packed.
    digest : str
        Digest of the weights; stored graphs and packed weights are reused where it is the same.
    precision : {"auto", "int8", "int4"}
        Of the decoder; the encoder computes in 16-bit integers. "auto" is int8 with the fastest encoder, which on
        processors with AMX is a graph in bfloat16; "int8" gives the same bits on every processor, if the encoder fits
        the kernels. int4 is for assistants.
    threads : int or None
        Threads of one forward pass; by default the processors that this process may use.
    cache : Path or None
        Directory of stored graphs and packed weights; by default in the user's cache directory.
    alignment_heads : tuple of (layer, head), or None
        Heads of `Session.attention`; None is all heads of the upper half of the decoder's layers.
    shares_encoder : bool
        Load the decoder only: features come from `reuse_encoder_output`, and `encode` must not be called.
    vocab_subset : ndarray of int64, or None
        Ascending ids of the tokens that logits cover; None is all. Prompts may hold any token.
    check_unchanged : callable
        Called when something was built and before it is stored; raises an error if the weights may not be those of
        `digest` any more.

    Raises
    ------
    OptionError
        If the precision is another one, the environment names an instruction set that there is not, or the dimensions
        do not fit the kernels.
    CheckpointError
        If the weights are damaged, or `check_unchanged` finds them changed.
    OutputError
        If graphs have to be built and cannot be stored anywhere.
    OutOfMemory
        If the model does not fit into memory.
    BackendUnavailable
        If the library or a runtime is not installed.
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
        alignment_heads: AlignmentHeads | None = None,
        shares_encoder: bool = False,
        vocab_subset: Ints | None = None,
        check_unchanged: Callable[[], None] = lambda: None,
    ) -> None:
        if precision not in BITS:
            raise OptionError("precision", precision, f"{' or '.join(PRECISIONS)} with backend='native'")
        if not fits(dims):
            allowed = (
                f"another backend for a model with n_text_state={dims.n_text_state}, "
                f"n_text_head={dims.n_text_head} and n_audio_state={dims.n_audio_state}: native takes text states of a "
                f"multiple of {STATE_DIVISOR} in heads of a multiple of {HEAD_SIZE_DIVISOR} up to {MAX_HEAD_SIZE}, and "
                f"audio states of a multiple of {GROUP}"
            )
            raise OptionError("backend", "native", allowed)
        chosen_instruction_set()  # if it cannot be had, say so before anything is built
        self.dims = dims.without_encoder() if shares_encoder else dims
        self.alignment_heads = tuple(sorted(alignment_heads or default_heads(dims)))
        self.threads = threads or usable_processors()
        store = GraphStore(cache or default_graph_directory())
        loader = GraphLoader(
            dims=self.dims,
            weights=weights,
            digest=digest,
            check_unchanged=check_unchanged,
            precision=precision,
            threads=self.threads,
            store=store,
            alignment_heads=self.alignment_heads,
            vocab_subset=vocab_subset,
        )
        load = partial(load_packed, digest=digest, store=store, check_unchanged=check_unchanged)
        decoder_weights = DecoderWeights(dims=self.dims, bits=BITS[precision], vocab_subset=vocab_subset)
        encoder_weights = EncoderWeights(self.dims)

        def load_decoder(weights: Mapping[str, NDArray[Any]]) -> NativeDecoder:
            return NativeDecoder(
                load(weights, contents=decoder_weights),
                contents=decoder_weights,
                alignment_heads=self.alignment_heads,
                threads=self.threads,
            )

        def load_encoder(weights: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            return load(weights, contents=encoder_weights)

        encoder_plan = ("shared", "output") if not self.dims.has_encoder else ("native", "int16")
        self._encoder: Encoder
        if self.dims.has_encoder and encoder_fits(dims) and (precision == "int8" or not graph_encodes_faster()):
            self._decoder, arrays = loader.load(load_decoder, load_encoder)
            self._encoder = NativeEncoder(arrays, encoder_weights, self._decoder)
        else:
            names = ("encoder",) if self.dims.has_encoder else ()
            self._decoder, *graphs = loader.load(load_decoder, *names)
            loaded = dict(zip(names, graphs, strict=True))
            self._encoder = EncoderGraphs(self.dims, loader, loaded, projects_chunks=False)
            if names:
                encoder_plan = loader.plan.encoder
        self.plan = RuntimePlan(
            precision="int8" if precision == "auto" else precision,
            encoder=encoder_plan,
            decoder=("native", f"int{decoder_weights.bits}"),
        )
        self.capabilities = Capabilities(
            name="native",
            precision=self.plan.precision,
            device="cpu",
            detail=f"{self.plan} ({self._decoder.instruction_set}), {self.threads} threads",
            sparse_positions=True,
        )

    def stream_features(self, states: Sequence[StreamingEncoderState]) -> NativeFeatures:
        encoder_output = self._encoder.stack_outputs(states)
        lengths = [state.positions for state in states]
        if not isinstance(self._encoder, NativeEncoder):
            return self._project(encoder_output, lengths)
        windows = [state.packed_window(self._decoder) for state in own_states(states, NativeEncoderState)]
        return NativeFeatures(encoder_output, windows, lengths)

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> NativeSession:
        assert isinstance(features, NativeFeatures), (
            "features come from this backend's own encode or reuse_encoder_output"
        )
        return NativeSession(self._decoder, features, row_windows, capacity, attention=attention)

    def _project(
        self,
        encoder_output: Floats,
        lengths: Sequence[int] | None = None,
        positions: SparsePositions | None = None,
    ) -> NativeFeatures:
        n_windows, n_positions, _ = encoder_output.shape
        windows = [
            self._decoder.project_window(output[:length])
            for output, length in zip(encoder_output, lengths or [n_positions] * n_windows, strict=True)
        ]
        return NativeFeatures(encoder_output, windows, lengths, positions)


def fits(dims: Dims) -> bool:
    """Return whether the kernels can compute a decoder of these dimensions."""
    states_fit = dims.n_text_state % STATE_DIVISOR == 0 and dims.n_audio_state % GROUP == 0
    return states_fit and _heads_fit(dims.n_text_state, dims.n_text_head)


def encoder_fits(dims: Dims) -> bool:
    """Return whether the kernels can compute an encoder of these dimensions."""
    return _heads_fit(dims.n_audio_state, dims.n_audio_head)


def graph_encodes_faster() -> bool:
    """Return whether a graph on OpenVINO encodes windows faster than the library: in bfloat16, in Intel's AMX."""
    return has_amx() and "BF16" in openvino_capabilities()


def _heads_fit(state: int, heads: int) -> bool:
    return state % (heads * HEAD_SIZE_DIVISOR) == 0 and state // heads <= MAX_HEAD_SIZE
