"""``harken distill``: an assistant for a model, which makes it faster and changes nothing it says."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.options import Command
from harken.cli.training import files_option, find_model, make_task, model_loader, run_task, training_options
from harken.training.options import MAX_DECODER_LAYERS, DistillOptions


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("model")
@files_option(
    "--layers", type=click.IntRange(1, MAX_DECODER_LAYERS), default=2, help="Layers of the assistant's decoder."
)
@files_option(
    "--start", metavar="MODEL", help="Start from the decoder of this smaller model, whatever layers it has."
)
@training_options(DistillOptions)
def command(model: str, layers: int, start: str | None, **params: Any) -> None:
    """Make an assistant for MODEL, to be used with --assistant.

    It shares the encoder of the model; its decoder has few layers and learns to foretell what the model says of
    recordings, whose words need not be known. It starts from some of the model's own layers; with little speech, better
    from the decoder of a smaller model (--start). This takes harken[torch].

    After Ctrl-C the same command goes on where it was interrupted; the best assistant so far is in the folder.
    """
    task = make_task(model, params, DistillOptions, needs_text=False)
    from harken.training.distill import InitialModel, distill

    initial_decoder = (
        InitialModel(checkpoint=find_model(start, params), load_recognizer=model_loader(start, params))
        if start
        else None
    )
    load = model_loader(model, params)
    run_task(task, params, lambda callbacks: distill(task, layers, load, callbacks, initial_decoder))
