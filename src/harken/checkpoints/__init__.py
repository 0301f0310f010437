"""Whisper checkpoints: one reader per format, all returning a `Checkpoint`."""

from __future__ import annotations

import os
from pathlib import Path

from harken.checkpoints import ctranslate2, ggml, huggingface, torch_file
from harken.checkpoints.adapter import with_adapter
from harken.checkpoints.checkpoint import (
    Checkpoint,
    Format,
    Vocabulary,
    Weights,
    encoder_digest,
    shares_encoder,
)
from harken.checkpoints.hub import SHORT_NAMES, resolve_model
from harken.checkpoints.model_files import read_error
from harken.checkpoints.torch_file import TorchFile
from harken.errors import CheckpointError, CheckpointNotFound

__all__ = [
    "SHORT_NAMES",
    "Checkpoint",
    "Format",
    "Vocabulary",
    "Weights",
    "encoder_digest",
    "open_checkpoint",
    "resolve_model",
    "shares_encoder",
    "with_adapter",
]

_READERS = {
    "ctranslate2": ctranslate2.read,
    "huggingface": huggingface.read,
    "openai": torch_file.read_openai,
    "ggml": ggml.read,
}
_ALLOWED_FORMATS = (
    "allowed are a CTranslate2 directory (model.bin), a Hugging Face directory (config.json with "
    "model.safetensors or pytorch_model.bin), an OpenAI .pt file and a ggml .bin file"
)
# The first of these that exists is opened, else the only .pt or .bin file of the directory.
_WEIGHT_FILES = (
    "model.bin",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_UNSUPPORTED = {
    b"GGUF": "a GGUF file, which whisper.cpp does not use for Whisper",
    b"\x80\x02\x8a\n": "saved by a torch older than 1.6; load it and save it again",
}


def open_checkpoint(path: str | os.PathLike[str], *, assistant: bool = False) -> Checkpoint:
    """Open a Whisper model without loading it.

    The content of the file decides the format, not its name. Weights are read on access, so this takes a few
    milliseconds, and about 20 for a ggml file, which contains its vocabulary.

    Parameters
    ----------
    path : str or path-like
        A file, or the directory of a model.
    assistant : bool
        True to accept a decoder without an encoder, which is useful only together with a whole model.

    Raises
    ------
    CheckpointNotFound
        If `path` does not exist.
    CheckpointError
        If it is damaged, truncated, malicious or not a Whisper model, or has no encoder.
    """
    file = _weight_file(Path(path))
    checkpoint = _READERS[_detect_format(file)](file)
    if not (checkpoint.has_encoder or assistant):
        raise CheckpointError(
            f"{file}: has no encoder: give it as assistant of the model that it was made from"
        )
    return checkpoint


def _weight_file(path: Path) -> Path:
    if os.path.isfile(path):
        return path
    if os.path.exists(path) and not os.path.isdir(path):
        raise CheckpointError(f"{path}: is a device or a pipe; {_ALLOWED_FORMATS}")
    if not os.path.isdir(path):
        raise CheckpointNotFound(f"{path}: no such file or directory")
    for name in _WEIGHT_FILES:
        if os.path.isfile(path / name):
            return path / name
    others = [*path.glob("*.pt"), *path.glob("*.bin")]
    if len(others) != 1:
        raise CheckpointError(f"{path}: {len(others)} files that may hold weights; {_ALLOWED_FORMATS}")
    return others[0]


def _detect_format(path: Path) -> Format:
    """Detect the format of a file from its first bytes."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError as error:
        raise read_error(path, error) from error
    if head[:4] == ggml.MAGIC.to_bytes(4, "little"):
        return "ggml"
    if head[1:4] == b"\0\0\0" and b"Spec\0" in head:
        return "ctranslate2"
    if head[:4] == b"PK\3\4":
        content = TorchFile(path).content
        return "openai" if isinstance(content, dict) and "model_state_dict" in content else "huggingface"
    if head[8:9] == b"{" or head[:1] == b"{":
        return "huggingface"
    reason = _UNSUPPORTED.get(head[:4], "not a model in a known format" if head else "empty")
    raise CheckpointError(f"{path}: {reason}; {_ALLOWED_FORMATS}")
