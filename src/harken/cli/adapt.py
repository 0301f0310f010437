"""``harken adapt``: trains an adapter for windows that a model was not trained for."""

from __future__ import annotations

from typing import Any

import click

from harken.cli.exits import EPILOGUE
from harken.cli.options import Command, FilePath
from harken.cli.training import make_task, model_loader, run_task, training_options
from harken.training.options import AdaptDataOptions, AdaptOptions


@click.command(cls=Command, epilog=EPILOGUE)
@click.argument("model", type=FilePath())
@training_options(AdaptOptions, AdaptDataOptions)
def command(model: str, **params: Any) -> None:
    """Train an adapter for MODEL, to be used with --adapter.

    An adapter changes the encoder so that it gives with the short windows of a live stream what it gives with whole
    ones. The model is its own teacher: what is said in the recordings need not be known. This needs harken[torch].

    After Ctrl-C the same command continues where it was interrupted; the best adapter so far is in the folder.
    """
    task = make_task(model, params, AdaptOptions, AdaptDataOptions, needs_text=False)
    from harken.training.adapt import adapt

    load = model_loader(model, params)
    run_task(task, params, lambda callbacks: adapt(task, load, callbacks))
