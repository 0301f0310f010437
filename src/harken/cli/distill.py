"""``harken distill``: trains an assistant for a model, which makes it faster without changing its text."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.effects import with_option
from harken.cli.exits import EPILOGUE
from harken.cli.options import Command, FilePath
from harken.cli.training import files_option, find_model, make_task, model_loader, run_task, training_options
from harken.training.options import MAX_DECODER_LAYERS, DistillOptions


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("model", type=FilePath())
@files_option(
    "--layers",
    type=click.IntRange(1, MAX_DECODER_LAYERS),
    default=2,
    no_effect=with_option("init_from"),
    help="Number of decoder layers of the assistant.",
)
@files_option(
    "--init-from",
    type=FilePath(),
    metavar="MODEL",
    help="Initialize from the decoder of this smaller model, with all its layers.",
)
@training_options(DistillOptions)
def command(model: str, layers: int, init_from: str | None, **params: Any) -> None:
    """Train an assistant for MODEL, to be used with --assistant.

    It shares the encoder of the model; its decoder has few layers and learns to predict the model's transcripts of
    recordings, whose text need not be known. It is initialized from some of the model's own layers; with little speech,
    the decoder of a smaller model (--init-from) is better. This needs harken[torch].

    After Ctrl-C the same command continues where it was interrupted; the best assistant so far is in the folder.
    """
    task = make_task(model, params, DistillOptions, needs_text=False)
    from harken.training.distill import InitialModel, distill

    initial_decoder = (
        InitialModel(checkpoint=find_model(init_from, params), load_recognizer=model_loader(init_from, params))
        if init_from
        else None
    )
    load = model_loader(model, params)
    run_task(task, params, lambda callbacks: distill(task, layers, load, callbacks, initial_decoder))
