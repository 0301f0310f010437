"""``harken convert``: a model of any format for other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from harken.audio import mel_filters
from harken.checkpoints import open_checkpoint, resolve_model, with_adapters
from harken.checkpoints.convert import TARGETS, convert
from harken.cli.exits import EPILOGUE
from harken.cli.model_options import adapter_option, model_files
from harken.cli.options import FilePath, single_option
from harken.cli.terminal import human_size, write_stdout
from harken.errors import OptionError


@click.command("convert", epilog=EPILOGUE)
@click.argument("model", type=FilePath())
@click.argument("folder", type=FilePath(path_type=Path))
@single_option(
    "--to",
    "target",
    section="Files",
    type=click.Choice(TARGETS),
    default=TARGETS[0],
    help="Format: a folder of Hugging Face or of CTranslate2, or a file of ggml for whisper.cpp.",
)
@adapter_option
@single_option(
    "--download/--no-download",
    section="Files",
    default=True,
    help="Download a model that is not on this machine.",
)
def command(model: str, folder: Path, target: str, adapter: Any, download: bool) -> None:
    """Write MODEL in another format into FOLDER, with weights in float16.

    MODEL is a name or a path, of any format that harken reads; adapters are merged into it.
    """
    checkpoint = with_adapters(open_checkpoint(resolve_model(model, download=download)), adapter)
    sources = {os.path.realpath(path.parent) for path in model_files(str(checkpoint.path), adapter)}
    if os.path.realpath(folder) in sources:
        raise OptionError("folder", str(folder), "another folder than those of the model and its adapters")
    result = convert(checkpoint, folder, target, mel_filters(checkpoint.dims.n_mels))
    size = sum(file.stat().st_size for file in ([result] if result.is_file() else result.iterdir()))
    write_stdout(f"{result}: {target}, float16, {human_size(size)}\n")
