"""An assistant for a model: its encoder, and a decoder of few layers that learns what the model says."""

from __future__ import annotations

from collections.abc import Callable

from harken.api import Recognizer
from harken.checkpoints import encoder_digest
from harken.training.export import export
from harken.training.labels import Teacher
from harken.training.library import Library
from harken.training.objective import Distillation
from harken.training.precision import fastest
from harken.training.recordings import find_speech
from harken.training.run import Audience, Task, collect, learn
from harken.training.student import copied, frequent_ids, learning, spaced, student_dims


def distill(task: Task, layers: int, load: Callable[[], Recognizer], audience: Audience) -> bool:
    """Make an assistant; goes on where the same task was interrupted.

    Parameters
    ----------
    task : Task
    layers : int
        Of its decoder, 1 to 4.
    load : callable
        Loads the main model; called only if pieces have to be transcribed.
    audience : Audience

    Returns
    -------
    bool
        Whether it came to its end; False if it was stopped. The best assistant so far is in ``task.out`` either way.

    Raises
    ------
    OptionError
        If the model does not have as many layers.
    ManifestError
        If there is nothing to learn from or to measure with.
    OutputError
        If ``task.out`` holds something else.
    """
    chosen = spaced(layers, task.checkpoint.dims.n_text_layer)
    task.begin(task="distill", layers=layers)
    pieces, held_out = collect(task, find_speech, lambda: Teacher(load(), task.checkpoint), audience)
    frequent = frequent_ids(task.tokenizer, map(Library(task.journal.pieces).said, pieces))
    weights = copied(task.checkpoint.weights, chosen)
    dims = student_dims(task.checkpoint.dims, layers)
    objective = Distillation(
        dims=dims,
        weights=weights,
        learning=learning(weights),
        frequent=frequent,
        dtype=fastest(),
        options=task.options,
    )
    entry = {"encoder_sha256": encoder_digest(task.checkpoint), "frequent": frequent.tolist()}

    def write() -> None:
        arrays = {name: values.detach().half().numpy() for name, values in weights.items()}
        export(task.out, dims, arrays, task.tokenizer, beside=task.beside, entry=entry)

    return learn(task, objective, pieces, held_out, write, audience)
