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
from harken.errors import OptionError
from harken.training.examples import Example, Half
from harken.training.labels import output, window
from harken.training.library import Library
from harken.training.network import read
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


class Companion:
    """The smaller model with its own encoder, asked to read what the main model says: as it reads, a graft should.

    Parameters
    ----------
    recognizer : Recognizer
        Of the CPU engine.
    weights : Weights
        Of the same model.
    library : Library
        What the main model says of the pieces.
    """

    def __init__(self, recognizer: Recognizer, weights: Weights, library: Library) -> None:
        self._backend, self._library = recognizer.backend, library
        self._weights = {
            name: torch.tensor(weights[name]).float() for name in weights if name.startswith("decoder.")
        }

    def __call__(self, piece: Piece, previous: Sequence[int]) -> Example:
        """What its encoder heard in a piece, and its states where the main model's texts are to be foretold."""
        dims = self._backend.dims
        heard = output(self._backend.encode(window(piece.samples(), dims)[None]))
        rows = []
        for row in self._library.get(piece).rows:
            with torch.inference_mode():
                tokens = torch.from_numpy(row.tokens[None, :-1])
                states = read(self._weights, dims, tokens, torch.from_numpy(heard))[0, row.first - 1 :]
            rows.append(replace(row, states=states.half().numpy()))
        return Example(heard=heard.astype(np.float16), rows=tuple(rows))


def fit(pairs: Iterable[tuple[Half, Half]], rows: int, columns: int) -> Map:
    """Fit the map from one encoder's output to another's, by least squares with a ridge.

    Parameters
    ----------
    pairs : iterable of (ndarray, ndarray)
        What both say of the same sound, each of shape (positions, state), float16.
    rows, columns : int
        Shape of the map.
    """
    square, cross = np.zeros((rows, rows)), np.zeros((rows, columns))
    for heard, wanted in pairs:
        source = np.pad(heard.astype(np.float32), ((0, 0), (0, 1)), constant_values=1.0)
        square += source.T @ source
        cross += source.T @ wanted
    found: Map = np.linalg.solve(square + RIDGE * np.eye(len(square)), cross).astype(np.float64)
    return found
