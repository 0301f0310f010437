"""``harken finetune``: a model that has learnt from recordings whose words are known."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.options import Command
from harken.cli.training import files_option, make_task, model_loader, run_task, training_options
from harken.training.options import FineTuneOptions


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("model")
@files_option(
    "--freeze-encoder/--no-freeze-encoder",
    default=False,
    help="Let only the decoder learn, which is several times faster.",
)
@training_options(FineTuneOptions)
def command(model: str, freeze_encoder: bool, **params: Any) -> None:
    """Teach MODEL what is said in recordings.

    The manifests tell the words (see 'harken eval'); a recording that is longer than 30 s is cut where its words are
    found. The result is a model of its own, in a folder that harken and transformers load. This takes harken[torch].

    After Ctrl-C the same command goes on where it was interrupted; the best model so far is in the folder.
    """
    task = make_task(model, params, FineTuneOptions, needs_text=True)
    from harken.training.finetune import finetune

    load = model_loader(model, params)
    run_task(task, params, lambda callbacks: finetune(task, freeze_encoder, load, callbacks))
