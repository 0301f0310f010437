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
from harken.training.example_store import ExampleStore
from harken.training.examples import Example, HalfFloats
from harken.training.labelling import encoder_output_of, window_log_mel
from harken.training.network import run_decoder
from harken.training.windows import TrainingWindow
from harken.types import Dims

RIDGE_PENALTY = 1.0
OTHER_LEARNING_RATE_SCALE = 0.1
"""Learning rate of all but the grafted weights, in shares of theirs: they know already what they are to do."""

StitchingMap = NDArray[np.float64]


def check_stitchable(small_model: Checkpoint, main_model: Checkpoint) -> None:
    """Make sure that the decoder of one can be grafted onto the encoder of the other.

    Raises
    ------
    OptionError
        If they differ in vocabulary or in the positions of a window, or the decoder has too many layers.
    """
    for field in ("n_vocab", "n_audio_ctx"):
        has, needs = getattr(small_model.dims, field), getattr(main_model.dims, field)
        if has != needs:
            raise OptionError("init_from", str(small_model.path), f"a model with {field}={needs}, not {has}")
    if small_model.dims.n_text_layer > 4:
        raise OptionError("init_from", str(small_model.path), "a decoder of at most 4 layers")


def stitched_dims(small_dims: Dims, main_dims: Dims) -> Dims:
    """Dimensions of the decoder of one beside the encoder of the other."""
    encoder_fields = {
        name: getattr(main_dims, name) for name in ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head")
    }
    return replace(small_dims.without_encoder(), **encoder_fields)


def stitch_decoder(weights: Weights, stitching_map: StitchingMap) -> dict[str, Tensor]:
    """The decoder's weights, float32, for a cross-attention that takes what `fit` mapped from.

    Parameters
    ----------
    weights : Weights
        Of the smaller model.
    map : ndarray of shape (n_audio_state + 1, n_audio_state of the smaller model)
        The last row is the offset.
    """
    linear, offset = (torch.from_numpy(part).float() for part in (stitching_map[:-1].T, stitching_map[-1]))
    stitched = {name: torch.tensor(weights[name]).float() for name in weights if name.startswith("decoder.")}
    for name in filter(is_stitched_weight, list(stitched)):
        if name.endswith(".value.weight"):
            bias = name.replace("weight", "bias")
            stitched[bias] = stitched[bias] + stitched[name] @ offset
        # What the offset does to keys is the same for all of them, which no softmax sees.
        stitched[name] = stitched[name] @ linear
    return stitched


def is_stitched_weight(name: str) -> bool:
    """Whether a weight takes what the encoder says."""
    return name.endswith((".cross_attn.key.weight", ".cross_attn.value.weight"))


class SmallModelTeacher:
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

    def __init__(self, recognizer: Recognizer, weights: Weights, store: ExampleStore) -> None:
        self._backend, self._store = recognizer.backend, store
        self._weights = {
            name: torch.tensor(weights[name]).float() for name in weights if name.startswith("decoder.")
        }

    def __call__(self, training_window: TrainingWindow, previous_text: Sequence[int]) -> Example:
        """What its encoder heard in a piece, and its states where the main model's texts are to be foretold."""
        dims = self._backend.dims
        encoder_output = encoder_output_of(
            self._backend.encode(window_log_mel(training_window.samples(), dims)[None])
        )
        sequences = []
        for sequence in self._store.get(training_window).sequences:
            with torch.inference_mode():
                tokens = torch.from_numpy(sequence.tokens[None, :-1])
                states = run_decoder(self._weights, dims, tokens, torch.from_numpy(encoder_output))[
                    0, sequence.text_start - 1 :
                ]
            sequences.append(replace(sequence, teacher_states=states.half().numpy()))
        return Example(audio_features=encoder_output.astype(np.float16), sequences=tuple(sequences))


def fit_stitching_map(pairs: Iterable[tuple[HalfFloats, HalfFloats]], rows: int, columns: int) -> StitchingMap:
    """Fit the map from one encoder's output to another's, by least squares with a ridge.

    Parameters
    ----------
    pairs : iterable of (ndarray, ndarray)
        What both say of the same sound, each of shape (positions, state), float16.
    rows, columns : int
        Shape of the map.
    """
    gram, cross_products = np.zeros((rows, rows)), np.zeros((rows, columns))
    for main_output, small_output in pairs:
        source = np.pad(main_output.astype(np.float32), ((0, 0), (0, 1)), constant_values=1.0)
        gram += source.T @ source
        cross_products += source.T @ small_output
    solution: StitchingMap = np.linalg.solve(gram + RIDGE_PENALTY * np.eye(len(gram)), cross_products).astype(
        np.float64
    )
    return solution
