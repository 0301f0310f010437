"""The contents of an encoder's packed file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harken.backends.native.matrices import LinearMatrix, make_matrix
from harken.backends.native.packed_file import ArrayShape, Put, Weights
from harken.backends.native.packing import GROUP, padded_rows
from harken.contract import Floats
from harken.types import Dims

CONVOLVED_FRAMES = 3


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """The packed weights of an encoder (see `harken.backends.native.packed_file.PackedContents`).

    Gain and bias of normalisations are folded into the layers after them, and so is the scale of the queries.

    Parameters
    ----------
    dims : Dims
    bits : {16, 32}
        Bits of a weight: integers or float32.
    """

    dims: Dims
    bits: int = 16

    @property
    def key(self) -> str:
        """The name of these contents among all those of the same weights."""
        dims = self.dims
        audio_dims = (dims.n_mels, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer)
        return f"encoder-{'' if self.bits == 16 else 'float-'}{zlib.crc32(repr(audio_dims).encode()):08x}"

    def convolutions(self) -> Iterator[LinearMatrix]:
        """Yield the convolutions, whose columns are three frames of all channels, padded to whole groups."""
        state = self.dims.n_audio_state
        yield make_matrix(self.bits, "conv1", state, CONVOLVED_FRAMES * padded_rows(self.dims.n_mels))
        yield make_matrix(self.bits, "conv2", state, CONVOLVED_FRAMES * state)

    def layer_matrices(self, layer: int) -> Iterator[LinearMatrix]:
        """Yield the matrices of a block in the order of ``struct harken_encoder_layer``."""
        state = self.dims.n_audio_state
        for name, rows, columns in (
            ("query", state, state),
            ("key_value", 2 * state, state),
            ("out", state, state),
            ("mlp_in", 4 * state, state),
            ("mlp_out", state, 4 * state),
        ):
            yield make_matrix(self.bits, f"layers.{layer}.{name}", rows, columns)

    def arrays(self) -> Iterator[ArrayShape]:
        """Yield every array, in the order of the file."""
        dims = self.dims
        yield "positions", np.float32, (dims.n_audio_ctx, dims.n_audio_state)
        yield "last_gain", np.float32, (dims.n_audio_state,)
        yield "last_bias", np.float32, (dims.n_audio_state,)
        for matrix in self.convolutions():
            yield from matrix.arrays()
        for layer in range(dims.n_audio_layer):
            for matrix in self.layer_matrices(layer):
                yield from matrix.arrays()

    def write(self, weights: Weights, put: Put) -> None:
        """Pack the weights of a model, one matrix after the other."""
        put("positions", weights["encoder.positional_embedding"])
        put("last_gain", weights["encoder.ln_post.weight"])
        put("last_bias", weights["encoder.ln_post.bias"])
        for convolution in self.convolutions():
            weight, bias = _linear(weights, f"encoder.{convolution.name}")
            padded = np.pad(weight.transpose(0, 2, 1), ((0, 0), (0, 0), (0, -weight.shape[1] % GROUP)))
            convolution.write(put, padded.reshape(len(weight), -1), bias)
        scale = np.float32((self.dims.n_audio_state // self.dims.n_audio_head) ** -0.5)
        for layer in range(self.dims.n_audio_layer):
            block = f"encoder.blocks.{layer}"
            query, key_value, out, mlp_in, mlp_out = self.layer_matrices(layer)
            query.write(put, *(part * scale for part in _folded(weights, block, "attn_ln", "attn.query")))
            keys, values = (_folded(weights, block, "attn_ln", f"attn.{name}") for name in ("key", "value"))
            key_value.write(put, *(np.concatenate(parts) for parts in zip(keys, values, strict=True)))
            out.write(put, *_linear(weights, f"{block}.attn.out"))
            mlp_in.write(put, *_folded(weights, block, "mlp_ln", "mlp.0"))
            mlp_out.write(put, *_linear(weights, f"{block}.mlp.2"))


def _linear(weights: Weights, name: str) -> Sequence[Floats]:
    """Return weight and bias of a layer; keys have no bias."""
    weight = np.asarray(weights[f"{name}.weight"], np.float32)
    bias = weights.get(f"{name}.bias", np.zeros(len(weight)))
    return weight, np.asarray(bias, np.float32)


def _folded(weights: Weights, block: str, norm: str, name: str) -> Sequence[Floats]:
    """Return weight and bias of a layer that takes over those of the normalisation before it."""
    weight, bias = _linear(weights, f"{block}.{name}")
    gain, shift = _linear(weights, f"{block}.{norm}")
    # In float64: in float32 the last bits of a product depend on the processor's matrix library.
    return weight * gain, (bias + weight.astype(np.float64) @ shift.astype(np.float64)).astype(np.float32)
