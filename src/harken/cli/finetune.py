"""``harken finetune``: trains a model on recordings with known text."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.options import Command, FilePath
from harken.cli.training import files_option, make_task, model_loader, run_task, training_options
from harken.training.options import FineTuneOptions


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("model", type=FilePath())
@files_option(
    "--freeze-encoder/--no-freeze-encoder",
    default=False,
    help="Train only the decoder, which is several times faster.",
)
@training_options(FineTuneOptions)
def command(model: str, freeze_encoder: bool, **params: Any) -> None:
    """Train MODEL on recordings with known text.

    The manifests hold the texts (see 'harken eval'); recordings longer than 30 s are cut between words, by forced
    alignment. The result is a whole model, in a folder that harken and transformers load. This needs harken[torch].

    After Ctrl-C the same command continues where it was interrupted; the best model so far is in the folder.
    """
    task = make_task(model, params, FineTuneOptions, needs_text=True)
    from harken.training.finetune import finetune

    load = model_loader(model, params)
    run_task(task, params, lambda callbacks: finetune(task, freeze_encoder, load, callbacks))
