"""An assistant for a model: its encoder, and a decoder of few layers that learns what the model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.api import Recognizer
from harken.checkpoints import Checkpoint, encoder_digest
from harken.text import frequent_ids
from harken.training import graft
from harken.training.export import export
from harken.training.labels import Teacher
from harken.training.library import Library, Likened
from harken.training.objective import Distillation
from harken.training.options import DistillOptions
from harken.training.pieces import Piece
from harken.training.precision import fastest
from harken.training.prepare import Ask, prepare
from harken.training.recordings import find_speech
from harken.training.run import Audience, Task, collect, learn
from harken.training.student import EMBEDDING, copied, learning, looked_at, spaced, student_dims
from harken.types import Dims

MOST_FREQUENT = 0.5
"""Share of a vocabulary up to which it saves enough to score a part of it only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A smaller model, whose decoder an assistant starts from.

    Parameters
    ----------
    checkpoint : Checkpoint
    load : callable
        Loads the same model on the CPU engine.
    """

    checkpoint: Checkpoint
    load: Callable[[], Recognizer]


def distill(
    task: Task[DistillOptions],
    layers: int,
    load: Callable[[], Recognizer],
    audience: Audience,
    start: Start | None = None,
) -> bool:
    """Make an assistant; goes on where the same task was interrupted.

    Parameters
    ----------
    task : Task
    layers : int
        Of its decoder, 1 to 4, where it starts from layers of the main model.
    load : callable
        Loads the main model on the CPU engine; called only if pieces have to be transcribed.
    audience : Audience
    start : Start, optional
        A smaller model to start from instead.

    Returns
    -------
    bool
        Whether it came to its end; False if it was stopped. The best assistant so far is in ``task.out`` either way.

    Raises
    ------
    OptionError
        If the model does not have as many layers, or the smaller model does not go with it.
    ManifestError
        If there is nothing to learn from or to measure with.
    OutputError
        If ``task.out`` holds something else.
    """
    model = task.checkpoint
    chosen = spaced(layers, model.dims.n_text_layer)
    if start:
        graft.check(start.checkpoint, model)
    task.begin(task="distill", layers=layers, start=start.checkpoint.weights.digest if start else None)
    pieces, held_out = collect(task, find_speech, lambda: Teacher(load(), model), audience)
    library = Library(task.journal.pieces)
    said = [library.said(piece) for piece in pieces]
    if start:
        library = _likened(task, start, [*pieces, *held_out], audience)
        dims, weights = _grafted(task, start, pieces, library)
    else:
        dims, weights = student_dims(model.dims, layers), copied(model.weights, chosen)
    objective = Distillation(
        dims=dims,
        weights=weights,
        learning=learning(weights),
        frequent=looked_at(task.tokenizer, said),
        embedding=torch.tensor(model.weights[EMBEDDING]).float(),
        dtype=fastest(),
        options=task.options,
        share=_graft_first if start else _alike,
    )
    entry: dict[str, Any] = {"encoder_sha256": encoder_digest(model)}
    frequent = frequent_ids(task.tokenizer, said)
    if len(frequent) < MOST_FREQUENT * model.dims.n_vocab:
        entry["frequent"] = frequent.tolist()

    def write() -> None:
        arrays = {name: values.detach().half().numpy() for name, values in weights.items()}
        export(task.out, dims, arrays, task.tokenizer, beside=task.beside, entry=entry)

    return learn(task, objective, pieces, held_out, library, write, audience)


def _likened(task: Task[DistillOptions], start: Start, pieces: Sequence[Piece], audience: Audience) -> Likened:
    """Have the smaller model read every piece."""
    library = Library(task.journal.pieces)
    likened = Likened(library.folder, Library(task.journal.companions))

    def whom() -> Ask:
        return graft.Companion(start.load(), start.checkpoint.weights, library)

    progress = partial(audience.progress, "pieces again")
    prepare(pieces, likened.others, whom, task.tokenizer.eot, progress)
    return likened


def _grafted(
    task: Task[DistillOptions], start: Start, pieces: Sequence[Piece], library: Likened
) -> tuple[Dims, dict[str, Tensor]]:
    """Dimensions and weights to start from; where there is a state to go on from, the map does not matter."""
    ours, theirs = task.checkpoint.dims, start.checkpoint.dims
    map = np.zeros((ours.n_audio_state + 1, theirs.n_audio_state))
    if not task.journal.begun:
        pairs = ((Library.get(library, piece).heard, library.others.get(piece).heard) for piece in pieces)
        map = graft.fit(pairs, *map.shape)
    return graft.grafted_dims(theirs, ours), graft.grafted(start.checkpoint.weights, map)


def _graft_first(name: str) -> float:
    return 1.0 if graft.is_grafted(name) else graft.SHARE


def _alike(name: str) -> float:
    return 1.0
