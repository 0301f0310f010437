"""``harken distill``: an assistant for a model, which makes it faster and changes nothing it says."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.learning import carry_out, files, find_model, learning_options, loader, make_task
from harken.cli.options import Command
from harken.training.options import DistillOptions


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("model")
@files("--layers", type=click.IntRange(1, 4), default=2, help="Layers of the assistant's decoder.")
@files("--start", metavar="MODEL", help="Start from the decoder of this smaller model, whatever layers it has.")
@learning_options(DistillOptions)
def command(model: str, layers: int, start: str | None, **given: Any) -> None:
    """Make an assistant for MODEL, to be used with --assistant.

    It shares the encoder of the model; its decoder has few layers and learns to foretell what the model says of
    recordings, whose words need not be known. It starts from some of the model's own layers; with little speech, better
    from the decoder of a smaller model (--start). This takes harken[torch].

    After Ctrl-C the same command goes on where it was interrupted; the best assistant so far is in the folder.
    """
    task = make_task(model, given, DistillOptions, needs_text=False)
    from harken.training.distill import Start, distill

    first = Start(checkpoint=find_model(start, given), load=loader(start, given)) if start else None
    load = loader(model, given)
    carry_out(task, given, lambda audience: distill(task, layers, load, audience, first))
