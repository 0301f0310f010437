"""``harken models`` and ``harken convert``: models listed, shown, checked, and written for other programs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click

from harken.audio import mel_filters
from harken.checkpoints import SHORT_NAMES, Checkpoint, open_checkpoint, resolve_model, with_adapters
from harken.checkpoints.convert import TARGETS, convert
from harken.cli.exits import EPILOGUE
from harken.cli.model_options import adapter_option, download_option, model_files
from harken.cli.options import FilePath, single_option
from harken.cli.terminal import disk_size, format_table, human_size, write_stdout
from harken.errors import CheckpointError, CheckpointNotFound, OptionError
from harken.text import LANGUAGES, Tokenizer

MOST_SHOWN = 5


@click.group("models", invoke_without_command=True, epilog=EPILOGUE)
@click.option(
    "--check", "checked", type=FilePath(), metavar="MODEL", help="The same as 'harken models check MODEL'."
)
@click.pass_context
def command(context: click.Context, checked: str | None) -> None:
    """List the models that have a short name, and where they are on this machine.

    Besides these, every command takes the path of a checkpoint, or owner/name of a Whisper model on Hugging
    Face.
    """
    if checked is not None:
        context.invoke(check, model=checked)
    elif context.invoked_subcommand is None:
        rows = [(name, SHORT_NAMES[name], _location(name)) for name in SHORT_NAMES]
        write_stdout(format_table([("NAME", "REPOSITORY", "ON THIS MACHINE"), *rows]))


@command.command()
@click.argument("model", type=FilePath())
def show(model: str) -> None:
    """Show the contents of a model: MODEL is a name or a path. Nothing is downloaded."""
    checkpoint = open_checkpoint(resolve_model(model, download=False), assistant=True)
    write_stdout(format_table(_facts(checkpoint).items()))


@command.command()
@click.argument("model", type=FilePath())
def check(model: str) -> None:
    """Read every weight of a model, and its vocabulary; fail if anything is damaged. Nothing is downloaded.

    Says what the file is, what it needs, and how it differs from the nearest of OpenAI's models.
    """
    checkpoint = open_checkpoint(resolve_model(model, download=False), assistant=True)
    tokenizer = checkpoint.vocabulary.tokenizer(checkpoint.dims.n_vocab)
    for name in checkpoint.weights:
        checkpoint.weights[name]  # raises if a value is not finite
    weights = f"{len(checkpoint.weights)} weights, all finite"
    write_stdout(
        f"{model} is intact: {weights}; {tokenizer.n_vocab} tokens; digest {checkpoint.weights.digest}\n"
        + format_table(
            [
                ("is", f"{checkpoint.format}, {checkpoint.stored_dtype}"),
                ("needs", _needs(checkpoint)),
                ("differs", _differences(checkpoint, tokenizer)),
            ]
        )
    )


_SIZES = ("wide", "encoder layers", "decoder layers", "mel bands", "tokens", "heads")
_HEAD_SIZE = 64
_PUBLISHED = {
    "tiny.en": (384, 4, 4, 80, 51864),
    "tiny": (384, 4, 4, 80, 51865),
    "base.en": (512, 6, 6, 80, 51864),
    "base": (512, 6, 6, 80, 51865),
    "small.en": (768, 12, 12, 80, 51864),
    "small": (768, 12, 12, 80, 51865),
    "medium.en": (1024, 24, 24, 80, 51864),
    "medium": (1024, 24, 24, 80, 51865),
    "large-v2": (1280, 32, 32, 80, 51865),
    "large-v3": (1280, 32, 32, 128, 51866),
    "large-v3-turbo": (1280, 32, 4, 128, 51866),
}
"""Width, layers of encoder and decoder, mel bands and tokens of OpenAI's models."""


def _needs(checkpoint: Checkpoint) -> str:
    """Return what has to be there to use a model."""
    from harken.backends.native.backend import fits

    if not checkpoint.dims.has_encoder:
        return "the model that it was made from, whose assistant it is"
    if checkpoint.format == "onnx" or not fits(checkpoint.dims):
        return "the extra onnx"
    if any(dtype.startswith(("iq", "tq", "mxfp")) for dtype in checkpoint.stored_dtypes):
        return "the extra gguf, to be read"
    return "nothing else"


def _differences(checkpoint: Checkpoint, tokenizer: Tokenizer) -> str:
    """Return how a model differs from the nearest of OpenAI's."""
    dims, own = checkpoint.dims, checkpoint.vocabulary.arrangement
    sizes = (dims.n_text_state, dims.n_audio_layer, dims.n_text_layer, dims.n_mels, dims.n_vocab)

    def distance(name: str) -> tuple[bool, bool, int]:
        published = _PUBLISHED[name]
        is_other_kind = name.endswith(".en") == tokenizer.multilingual
        return (
            published[0] != sizes[0],
            is_other_kind,
            sum(a != b for a, b in zip(published, sizes, strict=True)),
        )

    nearest = min(_PUBLISHED, key=distance)
    heads = (dims.n_text_head, _PUBLISHED[nearest][0] // _HEAD_SIZE)
    pairs = (*zip(sizes, _PUBLISHED[nearest], strict=True), heads)
    found = [
        f"{size} {kind} instead of {published}"
        for (size, published), kind in zip(pairs, _SIZES, strict=True)
        if size != published
    ]
    if own:
        moved = [token for token, i in enumerate(own.ids) if token != i and token < tokenizer.eot]
        if moved:
            shown = ", ".join(tokenizer.describe_token(token) for token in moved[:MOST_SHOWN])
            found.append(
                f"{len(moved)} text tokens of its own ({shown}{', ...' if moved[MOST_SHOWN:] else ''})"
            )
        if added := [code for code in own.languages if code not in LANGUAGES]:
            found.append(f"languages of its own ({', '.join(added)})")
        if not own.has_timestamps:
            found.append("no timestamps")
    return f"from {nearest}: {'; '.join(found)}" if found else f"in no dimension from {nearest}"


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
    tokenizer = checkpoint.vocabulary.tokenizer(dims.n_vocab)
    languages = f"{len(tokenizer.language_tokens)} languages" if tokenizer.multilingual else "English only"
    parameters = sum(math.prod(weights.shape(name)) for name in weights)
    heads = checkpoint.alignment_heads
    return {
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "precision": checkpoint.stored_dtype,
        "size": human_size(disk_size(checkpoint.path)),
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
@download_option(section="Files")
def convert_command(model: str, folder: Path, target: str, adapter: Any, download: bool) -> None:
    """Write MODEL in another format, with weights in float16, into FOLDER, which holds no model yet.

    MODEL is a name or a path, of any format that harken reads; adapters are merged into it.
    """
    checkpoint = with_adapters(open_checkpoint(resolve_model(model, download=download)), adapter)
    sources = {os.path.realpath(path.parent) for path in model_files(str(checkpoint.path), adapter)}
    if os.path.realpath(folder) in sources:
        raise OptionError("folder", str(folder), "another folder than those of the model and its adapters")
    result = convert(checkpoint, folder, target, mel_filters(checkpoint.dims.n_mels))
    size = disk_size(open_checkpoint(result).path)  # other files may have been in the folder before
    write_stdout(f"{result}: {target}, float16, {human_size(size)}\n")
