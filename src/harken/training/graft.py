"""The decoder of a smaller model, grafted onto the encoder of the main one.

Both encoders heard the same, and a linear map takes much of what one says to what the other would have said. Folded
into the keys and values of the cross-attention it costs nothing, so that a decoder which has learnt from far more
speech than anybody has at hand starts with some of what it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harken.api import Recognizer
from harken.checkpoints import Checkpoint, Weights
from harken.contract import Floats
from harken.errors import OptionError
from harken.training.labels import output, window
from harken.training.library import Library
from harken.training.pieces import Piece
from harken.types import Dims

RIDGE = 1.0
SHARE = 0.1
"""Learning rate of all but the grafted weights, in shares of theirs: they know already what they are to do."""

Map = NDArray[np.float64]


def check(smaller: Checkpoint, model: Checkpoint) -> None:
    """Make sure that the decoder of one can be grafted onto the encoder of the other.

    Raises
    ------
    OptionError
        If they differ in vocabulary or in the positions of a window, or the decoder has too many layers.
    """
    for field in ("n_vocab", "n_audio_ctx"):
        has, needs = getattr(smaller.dims, field), getattr(model.dims, field)
        if has != needs:
            raise OptionError("start", str(smaller.path), f"a model with {field}={needs}, not {has}")
    if smaller.dims.n_text_layer > 4:
        raise OptionError("start", str(smaller.path), "a decoder of at most 4 layers")


def grafted_dims(smaller: Dims, model: Dims) -> Dims:
    """Dimensions of the decoder of one beside the encoder of the other."""
    side = {name: getattr(model, name) for name in ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head")}
    return replace(smaller.without_encoder(), **side)


def grafted(weights: Weights, map: Map) -> dict[str, Tensor]:
    """The decoder's weights, float32, for a cross-attention that takes what `fit` mapped from.

    Parameters
    ----------
    weights : Weights
        Of the smaller model.
    map : ndarray of shape (n_audio_state + 1, n_audio_state of the smaller model)
        The last row is the offset.
    """
    turn, offset = (torch.from_numpy(part).float() for part in (map[:-1].T, map[-1]))
    ours = {name: torch.tensor(weights[name]).float() for name in weights if name.startswith("decoder.")}
    for name in filter(is_grafted, list(ours)):
        if name.endswith(".value.weight"):
            bias = name.replace("weight", "bias")
            ours[bias] = ours[bias] + ours[name] @ offset
        # What the offset does to keys is the same for all of them, which no softmax sees.
        ours[name] = ours[name] @ turn
    return ours


def is_grafted(name: str) -> bool:
    """Whether a weight takes what the encoder says."""
    return name.endswith((".cross_attn.key.weight", ".cross_attn.value.weight"))


def pairs(pieces: Sequence[Piece], library: Library, smaller: Recognizer) -> Iterable[tuple[Floats, Floats]]:
    """What both encoders say of each piece, shapes (positions, their state)."""
    for piece in pieces:
        theirs = output(smaller.backend.encode(window(piece.samples(), smaller.dims)[None]))
        yield library.get(piece).heard.astype(np.float32), theirs


def fit(pairs: Iterable[tuple[Floats, Floats]], ours: int, theirs: int) -> Map:
    """Fit the map from one encoder's output to another's, by least squares with a ridge.

    Parameters
    ----------
    pairs : iterable of (ndarray, ndarray)
        As from `pairs`.
    ours, theirs : int
        Widths of the two.
    """
    square, cross = np.zeros((ours + 1, ours + 1)), np.zeros((ours + 1, theirs))
    for heard, wanted in pairs:
        source = np.pad(heard, ((0, 0), (0, 1)), constant_values=1.0)
        square += source.T @ source
        cross += source.T @ wanted
    found: Map = np.linalg.solve(square + RIDGE * np.eye(len(square)), cross).astype(np.float64)
    return found
