"""``harken finetune``: a model that has learnt from recordings whose words are known."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.learning import carry_out, files, learning_options, loader, make_task
from harken.cli.options import Command
from harken.training.options import FineTuneOptions


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("model")
@files(
    "--freeze-encoder/--no-freeze-encoder",
    default=False,
    help="Let only the decoder learn, which is several times faster.",
)
@learning_options(FineTuneOptions)
def command(model: str, freeze_encoder: bool, **given: Any) -> None:
    """Teach MODEL what is said in recordings.

    The manifests tell the words (see 'harken eval'); a recording that is longer than 30 s is cut where its words are
    found. The result is a model of its own, in a folder that harken and transformers load. This takes harken[torch].

    After Ctrl-C the same command goes on where it was interrupted; the best model so far is in the folder.
    """
    task = make_task(model, given, FineTuneOptions, needs_text=True)
    from harken.training.finetune import finetune

    load = loader(model, given)
    carry_out(task, given, lambda audience: finetune(task, freeze_encoder, load, audience))
