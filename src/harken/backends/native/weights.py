"""The contents of the packed files of an encoder and of a decoder."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from harken.backends.native.matrices import BLOCK, GROUP, HalvedMatrix, LinearMatrix, make_matrix, padded_rows
from harken.backends.native.packed_file import ArrayShape, Put
from harken.backends.rotation import LM_HEAD, READERS, RotatedWeights, make_rotation
from harken.checkpoints import Weights
from harken.contract import Arrays, Floats, Ints
from harken.types import Dims

CONVOLVED_FRAMES = 3
LAYER_SOURCES = {
    "query": "attn.query",
    "key": "attn.key",
    "value": "attn.value",
    "out": "attn.out",
    "cross_query": "cross_attn.query",
    "cross_out": "cross_attn.out",
    "mlp_in": "mlp.0",
    "mlp_out": "mlp.2",
    "cross_key": "cross_attn.key",
    "cross_value": "cross_attn.value",
}
"""The linear layers of a block, by the names of ``struct harken_layer`` and in its order."""
OF_WINDOWS = ("cross_attn.key", "cross_attn.value")
"""Those that read the encoder's output, of whole windows at a time."""
ENCODER_SOURCES = {name: source for name, source in LAYER_SOURCES.items() if not name.startswith("cross_")}
"""Those of the encoder, in the order of ``struct harken_encoder_layer``."""
SCALED = ("attn.query", "cross_attn.query")
WITHOUT_BIAS = ("attn.key", "cross_attn.key")
"""A bias of the keys adds the same to all scores of a query, and the softmax cancels it."""
MOST_OF_TWO_PRODUCTS = 0.8
"""Multiplications of the two factors of a matrix, relative to its own, up to which they take less time."""


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """The packed weights of an encoder (see `harken.backends.native.packed_file.PackedContents`).

    Gain and bias of normalisations are folded into the layers after them, and so is the scale of the queries.

    Parameters
    ----------
    dims : Dims
    bits : {7, 16, 32}
        Bits of a weight of the blocks: integers, with the residual stream rotated where they are 7, or float32.
    factors : Weights
        Factors of those of low rank (see `harken.checkpoints.Weights.factors`).
    """

    dims: Dims
    bits: int
    factors: Weights

    @property
    def key(self) -> str:
        dims = self.dims
        audio_dims = (dims.n_mels, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer)
        kind = {7: "int7-", 16: "", 32: "float-"}[self.bits]
        layers = chain.from_iterable(map(self.layer_matrices, range(dims.n_audio_layer)))
        ranks = [[first.rows for first in factors] for _, (_, *factors) in layers]
        return f"encoder-{kind}{zlib.crc32(repr((audio_dims, ranks)).encode()):08x}"

    def convolutions(self) -> Iterator[LinearMatrix]:
        """Yield the convolutions, whose columns are three frames of all channels, padded to whole groups."""
        state, bits = self.dims.n_audio_state, max(self.bits, 16)
        yield make_matrix(bits, "conv1", state, CONVOLVED_FRAMES * padded_rows(self.dims.n_mels))
        yield make_matrix(bits, "conv2", state, CONVOLVED_FRAMES * state)

    def rotations(self) -> Iterator[LinearMatrix]:
        """Yield what rotates the residual stream, and what normalises it and turns it back; with 7 bits only."""
        if self.bits == 7:
            state = self.dims.n_audio_state
            yield make_matrix(16, "rotation", state, state, has_bias=False)
            yield make_matrix(16, "restoration", state, state)

    def layer_matrices(self, layer: int) -> Iterator[tuple[str, tuple[LinearMatrix, ...]]]:
        """Yield the source of each linear layer of a block, and its matrix, or its factors B and A."""
        for name, source in ENCODER_SOURCES.items():
            rows, columns = _shape(source, self.dims.n_audio_state)
            array = f"layers.{layer}.{name}"
            if rank := self._rank(f"encoder.blocks.{layer}.{source}.weight", rows, columns):
                first = make_matrix(self.bits, f"{array}.first", rank, columns, has_bias=False)
                yield source, (make_matrix(self.bits, array, rows, rank), first)
            else:
                yield source, (make_matrix(self.bits, array, rows, columns),)

    def _rank(self, name: str, rows: int, columns: int) -> int:
        """Return the rank of a matrix, rounded up to whole blocks, or 0 if one product is as fast as two."""
        if f"{name}.A" not in self.factors:
            return 0
        rank = -(-self.factors.shape(f"{name}.A")[0] // BLOCK) * BLOCK
        return rank if rank * (rows + columns) <= MOST_OF_TWO_PRODUCTS * rows * columns else 0

    def arrays(self) -> Iterator[ArrayShape]:
        dims = self.dims
        yield "positions", np.float32, (dims.n_audio_ctx, dims.n_audio_state)
        yield "last_gain", np.float32, (dims.n_audio_state,)
        yield "last_bias", np.float32, (dims.n_audio_state,)
        for matrix in (*self.convolutions(), *self.rotations()):
            yield from matrix.arrays()
        for layer in range(dims.n_audio_layer):
            for matrix in chain.from_iterable(matrices for _, matrices in self.layer_matrices(layer)):
                yield from matrix.arrays()

    def write(self, weights: Arrays, put: Put) -> None:
        put("positions", weights["encoder.positional_embedding"])
        put("last_gain", weights["encoder.ln_post.weight"])
        put("last_bias", weights["encoder.ln_post.bias"])
        for convolution in self.convolutions():
            weight, bias = _linear(weights, f"encoder.{convolution.name}")
            padded = np.pad(weight.transpose(0, 2, 1), ((0, 0), (0, 0), (0, -weight.shape[1] % GROUP)))
            convolution.write(put, padded.reshape(len(weight), -1), bias)
        if rotations := [*self.rotations()]:
            gain, bias = _linear(weights, "encoder.ln_post")
            turn = make_rotation(self.dims.n_audio_state)
            rotations[0].write(put, np.ascontiguousarray(turn.T), None)
            rotations[1].write(put, gain[:, None] * turn, bias)
        folded = RotatedWeights(weights, self.dims, "encoder", rotates=bool(rotations), factors=self.factors)
        head_size = self.dims.n_audio_state // self.dims.n_audio_head
        for layer in range(self.dims.n_audio_layer):
            block = f"encoder.blocks.{layer}"
            for module, (matrix, *first) in self.layer_matrices(layer):
                source, norm = f"{block}.{module}", READERS.get(module)
                scale = np.float32(head_size**-0.5 if module in SCALED else 1)
                folds = norm and not rotations  # rotated weights have their norms folded in
                bias = _folded_bias(weights, source, f"{block}.{norm}") if folds else folded[f"{source}.bias"]
                bias = bias * scale
                if not first:
                    matrix.write(put, folded[f"{source}.weight"] * scale, bias)
                    continue
                weight = folded[f"{source}.weight.B"] * scale
                matrix.write(put, np.pad(weight, ((0, 0), (0, matrix.columns - weight.shape[1]))), bias)
                weight = folded[f"{source}.weight.A"]
                first[0].write(put, np.pad(weight, ((0, matrix.columns - len(weight)), (0, 0))), None)


def _shape(source: str, state: int) -> tuple[int, int]:
    """Return rows and columns of a linear layer of a block of this width."""
    return 4 * state if source == "mlp.0" else state, 4 * state if source == "mlp.2" else state


def _linear(weights: Arrays, name: str) -> Sequence[Floats]:
    """Return weight and bias of a layer; keys have no bias."""
    weight = np.asarray(weights[f"{name}.weight"], np.float32)
    bias = weights.get(f"{name}.bias", np.zeros(len(weight)))
    return weight, np.asarray(bias, np.float32)


def _folded_bias(weights: Arrays, name: str, norm: str) -> Floats:
    """Return the bias of a layer behind a normalisation, rounded once."""
    weight, bias = _linear(weights, name)
    shift = np.asarray(weights[f"{norm}.bias"], np.float64)
    return (bias + weight.astype(np.float64) @ shift).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """The packed weights of a decoder (see `harken.backends.native.packed_file.PackedContents`).

    Parameters
    ----------
    dims : Dims
    bits : {7, 4, 32}
        Bits of a weight: integers, with the residual stream rotated, or float32.
    cross_bits : {7, 16, 32}
        Bits of the weights that read encoder output.
    vocab_subset : ndarray of int64, or None
        Ids of the tokens that get logits; None is all.
    """

    dims: Dims
    bits: int
    cross_bits: int
    vocab_subset: Ints | None = None

    @property
    def n_logits(self) -> int:
        """Number of tokens that get logits."""
        return self.dims.n_vocab if self.vocab_subset is None else len(self.vocab_subset)

    @property
    def key(self) -> str:
        dims = self.dims
        text_dims = (dims.n_vocab, dims.n_text_ctx, dims.n_text_state, dims.n_text_head, dims.n_text_layer)
        checksum = zlib.crc32(repr((*text_dims, dims.n_audio_state)).encode())
        if self.vocab_subset is not None:
            checksum = zlib.crc32(self.vocab_subset.tobytes(), checksum)
        kind = "float" if self.bits == 32 else f"int{self.bits}"
        return f"{kind}{'-cross7' if self.cross_bits == 7 else ''}-{checksum:08x}"

    def layer_matrices(self, layer: int) -> Iterator[tuple[str, LinearMatrix]]:
        """Yield the source of each linear layer of a block, and its matrix."""
        for name, source in LAYER_SOURCES.items():
            rows, columns = _shape(source, self.dims.n_text_state)
            bits = self.bits
            if source in OF_WINDOWS:
                bits, columns = self.cross_bits, self.dims.n_audio_state
            has_bias = source not in WITHOUT_BIAS
            yield source, make_matrix(bits, f"layers.{layer}.{name}", rows, columns, has_bias)

    @property
    def head(self) -> LinearMatrix:
        """The projection to the vocabulary; beside layers of 7 bits it has 8, in halves."""
        shape = self.n_logits, self.dims.n_text_state
        return HalvedMatrix("head", *shape, 4) if self.bits == 7 else make_matrix(self.bits, "head", *shape)

    def arrays(self) -> Iterator[ArrayShape]:
        dims = self.dims
        yield "embedding", np.float32 if self.bits == 32 else np.float16, (dims.n_vocab, dims.n_text_state)
        yield "positions", np.float32, (dims.n_text_ctx, dims.n_text_state)
        for layer in range(dims.n_text_layer):
            for _, matrix in self.layer_matrices(layer):
                yield from matrix.arrays()
        yield from self.head.arrays()

    def write(self, weights: Arrays, put: Put) -> None:
        folded = RotatedWeights(weights, self.dims, rotates=self.bits < 32)
        put("embedding", folded["decoder.token_embedding.weight"])
        put("positions", folded["decoder.positional_embedding"])
        head_size = self.dims.n_text_state // self.dims.n_text_head
        for layer in range(self.dims.n_text_layer):
            block = f"decoder.blocks.{layer}"
            for source, matrix in self.layer_matrices(layer):
                if source in OF_WINDOWS:
                    weight = np.asarray(weights[f"{block}.{source}.weight"], np.float32)
                    matrix.write(put, weight, weights.get(f"{block}.{source}.bias"))
                else:
                    scale = np.float32(head_size**-0.5 if source in SCALED else 1)
                    weight, bias = (folded[f"{block}.{source}.{part}"] * scale for part in ("weight", "bias"))
                    matrix.write(put, weight, bias)
        scored = slice(None) if self.vocab_subset is None else self.vocab_subset
        self.head.write(put, *(folded[f"{LM_HEAD}.{part}"][scored] for part in ("weight", "bias")))
