"""The CPU engine with the compiled encoder and decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from harken.backends.encoding import (
    NO_ENCODER,
    FrozenPadding,
    encoded_windows,
    own_features,
    own_states,
    stack_padded,
)
from harken.backends.loading import load_parts
from harken.backends.native.decoder import NativeDecoder, NativeFeatures
from harken.backends.native.encoder import NativeEncoder, NativeEncoderState
from harken.backends.native.library import chosen_instruction_set
from harken.backends.native.matrices import GROUP
from harken.backends.native.packed_file import load_packed
from harken.backends.native.session import NativeSession
from harken.backends.native.weights import DecoderWeights, EncoderWeights
from harken.checkpoints import Weights
from harken.checkpoints.alignment_heads import KeptHeads
from harken.compiled_library import usable_processors
from harken.contract import Capabilities, Features, Floats, Ints, StreamingEncoderState
from harken.errors import OptionError, install_hint
from harken.types import FRAMES_PER_POSITION, Dims

BITS = {"auto": 7, "fp32": 32, "int16": 7, "int8": 7, "int4": 4}
"""Bits of a weight of the decoder; int4 is for assistants."""
WINDOW_BITS = {"auto": 8, "fp32": 32, "int16": 16, "int8": 8, "int4": 8}
"""Bits of the keys and values of a window, in the encoder and in the cross-attention."""
LEAST_STATE_OF_INT8 = 512
"""Width from which on an encoder bears weights of 7 bits: that of `base` (docs/decisions/int8.md)."""
NAMES = {4: "int4", 7: "int8", 8: "int8", 16: "int16", 32: "fp32"}
STATE_DIVISOR, HEAD_SIZE_DIVISOR, MAX_HEAD_SIZE = 32, 16, 64


class NativeBackend:
    """`harken.contract.Backend` on a compiled encoder and decoder.

    Calls take turns: while a window is encoded, a decoder step of another thread waits.

    Parameters
    ----------
    dims : Dims
    weights : Weights
        Read only when they have to be packed; packed weights are reused where the digest is the same. The encoder
        multiplies by both factors of those of low rank.
    precision : {"auto", "fp32", "int16", "int8", "int4"}
        Of the decoder, which has 8-bit weights with int16 too. The encoder computes in float32 with fp32, in 16-bit
        integers with int16; with int8 and int4 it attends in 8-bit integers, and its layers have 8 bits from the size
        of `base` on, else 16. "auto" is int8; int4 is for assistants.
        Results have the same bits on every processor.
    threads : int or None
        Threads of one forward pass; by default the processors that this process may use.
    cache : Path or None
        Directory of packed weights; by default in the user's cache directory.
    heads, vocab_subset
        As for `harken.backends.numpy.NumpyBackend`.

    Raises
    ------
    OptionError
        If the environment names an instruction set that there is not, or the dimensions do not fit the kernels.
    CheckpointError
        If the weights are damaged, or their files change while they are read.
    OutputError
        If weights have to be packed and cannot be stored anywhere.
    OutOfMemory
        If the model does not fit into memory.
    BackendUnavailable
        If there is no library.
    """

    clock = staticmethod(perf_counter)

    def __init__(
        self,
        dims: Dims,
        weights: Weights,
        *,
        precision: str = "auto",
        threads: int | None = None,
        cache: Path | None = None,
        heads: KeptHeads | None = None,
        vocab_subset: Ints | None = None,
    ) -> None:
        if not fits(dims):
            raise OptionError("backend", "native", _other_dims(dims))
        chosen_instruction_set()  # if it cannot be had, say so before anything is built
        self.dims, self.heads = dims, heads or KeptHeads.of(dims)
        self.word_heads = self.heads.words
        self.threads = threads or usable_processors()
        load = partial(load_packed, digest=weights.digest, root=cache, check_unchanged=weights.check_unchanged)
        wide = precision == "int16" or dims.n_audio_state < LEAST_STATE_OF_INT8
        encoder_bits = 32 if precision == "fp32" else 16 if wide else 7
        decoder_weights = DecoderWeights(
            dims=dims, bits=BITS[precision], cross_bits=encoder_bits, vocab_subset=vocab_subset
        )
        encoder_weights = EncoderWeights(dims, encoder_bits, weights.factors)
        parts = (decoder_weights, encoder_weights) if dims.has_encoder else (decoder_weights,)
        arrays = load_parts(weights, *(partial(load, contents=contents) for contents in parts))
        self._decoder = NativeDecoder(
            arrays[0],
            contents=decoder_weights,
            heads=self.heads,
            window_bits=WINDOW_BITS[precision],
            threads=self.threads,
        )
        self._encoder: NativeEncoder | None = None
        encoder = "shared output"
        if dims.has_encoder:
            load_padding = partial(load, {}, check_unchanged=lambda: None)
            self._encoder = NativeEncoder(
                arrays[1], encoder_weights, self._decoder, WINDOW_BITS[precision], load_padding
            )
            encoder = f"native {NAMES[encoder_bits]}"
            if WINDOW_BITS[precision] < encoder_bits:
                encoder += f" with attention {NAMES[WINDOW_BITS[precision]]}"
        decoder = f"native {NAMES[decoder_weights.bits]} ({self._decoder.instruction_set})"
        self.capabilities = Capabilities(
            name="native",
            precision="int8" if precision == "auto" else precision,
            device="cpu",
            detail=f"encoder {encoder}, decoder {decoder}, {self.threads} threads",
            frozen_padding=True,
            picks_best=True,
            joins_features=True,
        )

    def encode(self, mel: Floats, *, padded: bool = False) -> NativeFeatures:
        assert self._encoder, NO_ENCODER
        return self._project(*self._encoder.encode(mel, padded=padded))

    def encoder_output(self, features: Features) -> Floats:
        return stack_padded(own_features(features, NativeFeatures).outputs())

    def reuse_encoder_output(self, features: Features) -> NativeFeatures:
        encoded = encoded_windows(features)
        return self._project(encoded.outputs(), encoded.padding)

    def open_encoder(self, history_frames: int) -> NativeEncoderState:
        assert self._encoder, NO_ENCODER
        return NativeEncoderState(self.dims, history_frames // FRAMES_PER_POSITION)

    def encode_chunk(self, states: Sequence[StreamingEncoderState], mel: Floats, final_frames: int) -> None:
        assert self._encoder, NO_ENCODER
        self._encoder.encode_chunk(own_states(states, NativeEncoderState), mel, final_frames)

    def stream_features(self, states: Sequence[StreamingEncoderState]) -> NativeFeatures:
        return NativeFeatures(
            [state.packed_window(self._decoder) for state in own_states(states, NativeEncoderState)]
        )

    def join_features(self, features: Sequence[Features]) -> NativeFeatures:
        own = (own_features(each, NativeFeatures) for each in features)
        return NativeFeatures([window for each in own for window in each.windows])

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> NativeSession:
        windows = own_features(features, NativeFeatures).windows
        return NativeSession(self._decoder, windows, row_windows, capacity, attention=attention)

    def _project(self, outputs: Iterable[Floats], padding: FrozenPadding | None) -> NativeFeatures:
        windows = [self._decoder.project_window(output, padding) for output in outputs]
        return NativeFeatures(windows, padding)


def fits(dims: Dims) -> bool:
    """Return whether the kernels can compute a model of these dimensions."""
    states_fit = dims.n_text_state % STATE_DIVISOR == 0 and dims.n_audio_state % GROUP == 0
    heads_fit = _heads_fit(dims.n_text_state, dims.n_text_head)
    return (
        states_fit and heads_fit and (not dims.has_encoder or _heads_fit(dims.n_audio_state, dims.n_audio_head))
    )


def _heads_fit(state: int, heads: int) -> bool:
    return state % (heads * HEAD_SIZE_DIVISOR) == 0 and state // heads <= MAX_HEAD_SIZE


def _other_dims(dims: Dims) -> str:
    """Return what is allowed for a model that does not fit the kernels."""
    given = ", ".join(
        f"{name}={getattr(dims, name)}"
        for name in ("n_text_state", "n_text_head", "n_audio_state", "n_audio_head")
    )
    return (
        f"backend='onnx' ({install_hint('onnx')}) for a model with {given}: native takes text states of a multiple of "
        f"{STATE_DIVISOR} and audio states of a multiple of {GROUP}, both in heads of a multiple of "
        f"{HEAD_SIZE_DIVISOR} up to {MAX_HEAD_SIZE}"
    )
