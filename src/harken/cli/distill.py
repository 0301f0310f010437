"""``harken distill``: an assistant for a model, which makes it faster and changes nothing it says."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.learning import carry_out, files, learning_options, loader, make_task
from harken.cli.options import Command


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("model")
@files("--layers", type=click.IntRange(1, 4), default=2, help="Layers of the assistant's decoder.")
@learning_options
def command(model: str, layers: int, **given: Any) -> None:
    """Make an assistant for MODEL, to be used with --assistant.

    It shares the encoder of the model; its decoder has few layers, starts from some of the model's and learns to
    foretell what the model says of recordings, whose words need not be known. This takes harken[torch].

    After Ctrl-C the same command goes on where it was interrupted; the best assistant so far is in the folder.
    """
    task = make_task(model, given, needs_text=False)
    from harken.training.distill import distill

    load = loader(model, given)
    carry_out(task, given, lambda audience: distill(task, layers, load, audience))
