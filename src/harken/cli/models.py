"""``harken models``: lists the models, shows the contents of one, and checks its integrity."""

from __future__ import annotations

import math
import os
from pathlib import Path

import click

from harken.checkpoints import SHORT_NAMES, Checkpoint, open_checkpoint, resolve_model
from harken.cli.exits import EPILOGUE
from harken.cli.options import FilePath
from harken.cli.terminal import format_table, human_size, write_stdout
from harken.errors import CheckpointError, CheckpointNotFound
from harken.text import Tokenizer


@click.group("models", invoke_without_command=True, epilog=EPILOGUE)
@click.pass_context
def command(context: click.Context) -> None:
    """List the models that have a short name, and where they are on this machine.

    Besides these, every command takes the path of a checkpoint, or owner/name of a Whisper model on Hugging
    Face.
    """
    if context.invoked_subcommand is None:
        rows = [(name, SHORT_NAMES[name], _location(name)) for name in SHORT_NAMES]
        write_stdout(format_table([("NAME", "REPOSITORY", "ON THIS MACHINE"), *rows]))


@command.command()
@click.argument("model", type=FilePath())
def show(model: str) -> None:
    """Show the contents of a model: MODEL is a name or a path. Nothing is downloaded."""
    checkpoint = open_checkpoint(resolve_model(model, download=False))
    write_stdout(format_table(_facts(checkpoint).items()))


@command.command()
@click.argument("model", type=FilePath())
def check(model: str) -> None:
    """Read every weight of a model, and its vocabulary; fail if anything is damaged. Nothing is downloaded."""

    checkpoint = open_checkpoint(resolve_model(model, download=False))
    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    for name in checkpoint.weights:
        checkpoint.weights[name]  # raises if a value is not finite
    weights = f"{len(checkpoint.weights)} weights, all finite"
    write_stdout(
        f"{model} is intact: {weights}; {tokenizer.n_vocab} tokens; digest {checkpoint.weights.digest}\n"
    )


def _location(name: str) -> str:
    try:
        path = resolve_model(name, download=False)
    except CheckpointNotFound:
        return "no"
    except CheckpointError as error:
        return f"damaged: {error}"
    return str(path)


def _facts(checkpoint: Checkpoint) -> dict[str, str]:
    dims, weights = checkpoint.dims, checkpoint.weights
    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, dims.n_vocab)
    languages = f"{len(tokenizer.language_tokens)} languages" if tokenizer.multilingual else "English only"
    parameters = sum(math.prod(weights.shape(name)) for name in weights)
    heads = checkpoint.alignment_heads
    return {
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "precision": checkpoint.stored_dtype,
        "size": human_size(_size_bytes(checkpoint.path)),
        "parameters": f"{parameters / 1e6:.1f} million in {len(weights)} weights",
        "encoder": f"{dims.n_audio_layer} layers, {dims.n_audio_state} wide, {dims.n_audio_head} heads",
        "decoder": f"{dims.n_text_layer} layers, {dims.n_text_state} wide, {dims.n_text_head} heads",
        "context": f"{dims.n_audio_ctx} frames of audio, {dims.n_text_ctx} tokens of text",
        "mel bands": str(dims.n_mels),
        "vocabulary": f"{dims.n_vocab} tokens, {languages}, from {_vocabulary_source(checkpoint)}",
        "alignment": " ".join(f"{layer}:{head}" for layer, head in heads) if heads else "heads not known",
        "digest": weights.digest,
    }


def _vocabulary_source(checkpoint: Checkpoint) -> str:
    vocabulary = checkpoint.vocabulary
    if vocabulary.tokens:
        return "the weights file"
    return vocabulary.path.name if vocabulary.path else "harken"


def _size_bytes(path: Path) -> int:
    if path.is_file():
        return os.path.getsize(path)
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(map(os.path.getsize, filter(os.path.isfile, files)))
