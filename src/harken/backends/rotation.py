"""The weights of a decoder or an encoder in rotated coordinates, in which they lose less by quantisation.

The channels of a layer's input differ in magnitude, by the gain of the normalisation before it and by the residual
stream itself, and one scale for all of them is too coarse for most. Therefore the residual stream is multiplied by a
random rotation, which makes every channel a mixture of all. This costs nothing at run time: gains and biases of
normalisations are folded into the layers behind them, and the rotation into every layer that reads the stream or adds
to it. The rotation preserves the mean of the channels, which normalisation subtracts.

No rotation passes through the GELU of an MLP. Its hidden units are sorted instead, outlier channels first, so that
these can have a scale of their own.

Source: Ashkboos et al., "SliceGPT" (2024), section 3.1, for folding and invariance; Ashkboos et al., "QuaRot" (2024),
for rotating before quantising.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.checkpoints.model_files import DerivedWeights
from harken.contract import Arrays, Floats, Ints
from harken.types import Dims

LM_HEAD = "decoder.head"
READERS = {
    "attn.query": "attn_ln",
    "attn.key": "attn_ln",
    "attn.value": "attn_ln",
    "cross_attn.query": "cross_attn_ln",
    "mlp.0": "mlp_ln",
}
"""Layers that read the residual stream, and the normalisation before each."""
WRITERS = ("attn.out", "cross_attn.out", "mlp.2")
"""Layers that add to the residual stream."""
DEVIATIONS = 3
"""Standard deviations above its mean at which the input of a hidden unit counts, to rank the units."""
ROWS_AT_ONCE = 4096


class RotatedWeights(DerivedWeights):
    """The weights of the decoder, or of the encoder's blocks, with their residual stream rotated; computed when read.

    The decoder's projection to the vocabulary no longer shares its weight with the embedding: it is "decoder.head".

    Parameters
    ----------
    weights : mapping of str to ndarray
        By the names of the original state dict.
    dims : Dims
    part : {"decoder", "encoder"}
    rotates : bool
        False folds the normalisations and rotates nothing: what is not quantised gains nothing by it.
    factors : mapping of str to ndarray, optional
        Factors of weights that are products B A, as ``NAME.A`` and ``NAME.B``; changed as the weights are.
    """

    def __init__(
        self,
        weights: Arrays,
        dims: Dims,
        part: str = "decoder",
        *,
        rotates: bool = True,
        factors: Arrays | None = None,
    ) -> None:
        self._weights, self._factors = weights, factors or {}
        self._state = dims.n_text_state if part == "decoder" else dims.n_audio_state
        self._rotation = make_rotation(self._state) if rotates else None
        self._compute: dict[str, Callable[[], NDArray[Any]]] = {}
        self._kept: dict[str, Floats] = {}  # the matrix of a block that was read last, until its bias is folded
        self._orders: dict[str, Ints] = {}  # of the hidden units of a block
        super().__init__(self._compute, lambda name: self._compute[name]())
        for layer in range(dims.n_text_layer if part == "decoder" else dims.n_audio_layer):
            self._add_block(f"{part}.blocks.{layer}")
        if part == "decoder":
            self._compute |= {
                "decoder.token_embedding.weight": self._embedding,
                "decoder.positional_embedding": lambda: self._rotate(
                    self._float32("decoder.positional_embedding")
                ),
            }
            self._add_reader(LM_HEAD, "decoder.token_embedding", "decoder.ln")

    def _add_block(self, block: str) -> None:
        for name, norm in READERS.items():
            if block.startswith("encoder") and name.startswith("cross_attn"):
                continue
            self._add_reader(f"{block}.{name}", f"{block}.{name}", f"{block}.{norm}")
        for name in (f"{block}.{writer}" for writer in WRITERS):
            for part in ("weight", "bias"):
                self._compute[f"{name}.{part}"] = partial(self._rotate_output, f"{name}.{part}")
            if f"{name}.weight.A" in self._factors:
                self._compute[f"{name}.weight.A"] = partial(self._float32, f"{name}.weight.A")
                self._compute[f"{name}.weight.B"] = partial(self._rotate_output, f"{name}.weight.B")
        of_hidden_units = {"0.weight": 0, "0.weight.B": 0, "0.bias": 0, "2.weight": 1, "2.weight.A": 1}
        for name, axis in ((f"{block}.mlp.{part}", axis) for part, axis in of_hidden_units.items()):
            if self._rotation is not None and name in self._compute:
                self._compute[name] = partial(self._sort_outliers_first, self._compute[name], axis, block)

    def _add_reader(self, name: str, source: str, norm: str) -> None:
        """Add a layer that takes over gain and bias of the normalisation before it."""
        self._compute |= {
            f"{name}.weight": lambda: self._rotate(self._fold_gain(f"{source}.weight", norm)),
            f"{name}.bias": lambda: self._fold_bias(source, norm),
            f"{norm}.weight": lambda: np.ones(self._state, np.float32),
            f"{norm}.bias": lambda: np.zeros(self._state, np.float32),
        }
        if f"{source}.weight.A" in self._factors:
            self._compute |= {
                f"{name}.weight.A": lambda: self._rotate(self._fold_gain(f"{source}.weight.A", norm)),
                f"{name}.weight.B": lambda: self._float32(f"{source}.weight.B"),
            }

    def _rotate_output(self, name: str) -> Floats:
        """Return the weight or bias of a layer that adds to the residual stream."""
        own = self._float32(name)
        return own if self._rotation is None else _multiply(self._rotation.T, own)

    def _rotate(self, rows: Floats) -> Floats:
        """Return a weight that reads the residual stream, or rows of the stream, in its coordinates."""
        return rows if self._rotation is None else _multiply(rows, self._rotation)

    def _fold_gain(self, name: str, norm: str) -> Floats:
        return self._float32(name) * self._float32(f"{norm}.weight")

    def _fold_bias(self, source: str, norm: str) -> Floats:
        own = self._float32(f"{source}.bias") if f"{source}.bias" in self._weights else np.float32(0)
        folded = own + _multiply(self._float32(f"{source}.weight"), self._float32(f"{norm}.bias"))
        self._kept = {}
        return folded

    def _sort_outliers_first(self, unsorted: Callable[[], Floats], axis: int, block: str) -> Floats:
        """Sort an MLP's hidden units by the magnitude of their activation, largest first."""
        if block not in self._orders:
            layer, norm = f"{block}.mlp.0", f"{block}.mlp_ln"
            mean = self._fold_bias(layer, norm)
            deviation = np.linalg.norm(self._fold_gain(f"{layer}.weight", norm).astype(np.float64), axis=1)
            self._orders[block] = np.argsort(-(mean + DEVIATIONS * deviation), kind="stable")
        ordered: Floats = np.take(unsorted(), self._orders[block], axis)
        return ordered

    def _embedding(self) -> NDArray[Any]:
        """Return the rotated embedding, in 16 bits if it was: it is looked up, not quantised."""
        stored = self._weights["decoder.token_embedding.weight"]
        rotated = self._rotate(np.asarray(stored, np.float32))
        return rotated if stored.dtype == np.float32 else rotated.astype(np.float16)

    def _float32(self, name: str) -> Floats:
        if name in self._kept:
            return self._kept[name]
        own = np.asarray((self._factors if name in self._factors else self._weights)[name], np.float32)
        if own.ndim > 1 and "blocks" in name:
            self._kept = {name: own}
        return own


def _multiply(a: Floats, b: Floats) -> Floats:
    """Multiply in float64, some rows at a time: in float32 the last bits depend on the processor's matrix library."""
    product = np.empty((*a.shape[:1], *b.shape[1:]), np.float32)
    for start in range(0, len(a), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        product[rows] = a[rows].astype(np.float64) @ b.astype(np.float64)
    return product


def make_rotation(size: int) -> Floats:
    """Draw a rotation that preserves the mean of all channels; it depends on the size alone.

    Returns
    -------
    ndarray of shape (size, size), float32
        Orthogonal; its rows and its columns sum to 1.
    """
    orthogonal, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size - 1, size - 1)))
    inner = np.eye(size)
    inner[1:, 1:] = orthogonal
    # The reflection maps the first axis to the direction of the mean, and back.
    normal = np.full(size, size**-0.5)
    normal[0] -= 1
    reflection = np.eye(size) - 2 * np.outer(normal, normal) / (normal @ normal)
    matrix: Floats = (reflection @ inner @ reflection).astype(np.float32)
    return matrix
