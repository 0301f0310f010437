"""Whisper checkpoints: one reader per format, all returning a `Checkpoint`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from harken.checkpoints import ctranslate2, ggml, huggingface, mlx, onnx_graph, openvino_ir, torch_file
from harken.checkpoints.adapter import ADAPTER_FILE, NO_ADAPTER, Adapters, with_adapters
from harken.checkpoints.assistant import ASSISTANT_FILE, find_assistant, read_assistant
from harken.checkpoints.checkpoint import (
    Checkpoint,
    Format,
    Weights,
    encoder_digest,
    shares_encoder,
)
from harken.checkpoints.hub import SHORT_NAMES, check_model_name, resolve_model
from harken.checkpoints.model_files import read_object, reading, zip_members
from harken.checkpoints.peft import PEFT_CONFIG, PEFT_FILES
from harken.checkpoints.torch_file import TorchFile
from harken.errors import CheckpointError, CheckpointNotFound

__all__ = [
    "NO_ADAPTER",
    "SHORT_NAMES",
    "Adapters",
    "Checkpoint",
    "Format",
    "Weights",
    "check_model_name",
    "encoder_digest",
    "find_assistant",
    "open_checkpoint",
    "resolve_model",
    "shares_encoder",
    "with_adapters",
]

_ALLOWED_FORMATS = (
    "allowed are a CTranslate2 directory (model.bin), a Hugging Face directory (config.json with "
    "model.safetensors or pytorch_model.bin), one of MLX (weights.npz), ONNX or OpenVINO, an OpenAI .pt file, a ggml "
    ".bin file and a GGUF file"
)
# The files of the first of these patterns of which there are some are the weights of a directory; the first of them
# is opened. The last are of files on their own, of which there may be one.
_WEIGHT_FILES = (
    ASSISTANT_FILE,
    "model.bin",
    "model.safetensors",
    "model.safetensors.index.json",
    "model.safetensors.index.*.json",
    "model.*.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "weights.safetensors",
    "weights.npz",
    "openvino_encoder_model.xml",
    *("encoder_model.onnx", "onnx/encoder_model.onnx"),
    *("*encoder*.onnx", "onnx/*encoder*.onnx"),
)
_AN_ADAPTER = "an adapter; give it as adapter, together with the model that it changes"
_ONLY_FILES = ("*.pt", "*.bin", "*.gguf")
_OTHER_KINDS = {
    b"\x80\x02\x8a\n": "saved by a torch older than 1.6; load it and save it again",
    b"version https://git-lfs": "a pointer of Git LFS and not the file; git lfs pull fetches that",
    b"<!DOCTYPE": "a web page, perhaps of a server that refused the download",
    b"<html": "a web page, perhaps of a server that refused the download",
    b"tjgg": "a language model of an old llama.cpp",
    b"\x89HDF": "an HDF5 file, as those of Keras",
    b"\x1f\x8b": "compressed by gzip; unpack it",
    b"RIFF": "a recording or a video",
    b"ID3": "a recording",
    b"fLaC": "a recording",
    b"OggS": "a recording",
}
"""How files begin that are given for a model and are none."""


def open_checkpoint(path: str | os.PathLike[str], *, assistant: bool = False) -> Checkpoint:
    """Open a Whisper model without loading it.

    The content of the file decides the format, not its name. Weights are read on access, so this takes a few
    milliseconds, and about 20 for a ggml file, which contains its vocabulary.

    Parameters
    ----------
    path : str or path-like
        A file, or the directory of a model.
    assistant : bool
        True to accept a decoder without an encoder, which is useful only together with a whole model; also one that is
        stored as changes of a small model's, which then has to be on this machine.

    Raises
    ------
    CheckpointNotFound
        If `path` does not exist.
    CheckpointError
        If it is damaged, truncated, malicious or not a Whisper model, or has no encoder.
    """
    file = _weight_file(Path(path))
    if os.path.exists(file) and not os.path.isfile(file):
        raise CheckpointError(f"{file}: is a device, a pipe or a folder; {_ALLOWED_FORMATS}")
    is_change = file.name == ASSISTANT_FILE
    if is_change and assistant:
        return read_assistant(file, lambda name: open_checkpoint(resolve_model(name, download=False)))
    if not is_change:
        checkpoint = _reader_of(file)(file)
        if checkpoint.dims.has_encoder or assistant:
            return checkpoint
    raise CheckpointError(f"{file}: has no encoder: give it as assistant of the model that it was made from")


def _weight_file(path: Path) -> Path:
    if os.path.exists(path) and not os.path.isdir(path):
        if path.name in (ADAPTER_FILE, *PEFT_FILES):
            raise CheckpointError(f"{path}: {_AN_ADAPTER}")
        return path
    if not os.path.isdir(path):
        raise CheckpointNotFound(f"{path}: no such file or directory")
    for pattern in _WEIGHT_FILES:
        if files := sorted(path.glob(pattern), key=lambda file: (len(file.name), file.name)):
            return files[0]
    with reading(path):
        names = os.listdir(path)
    if ADAPTER_FILE in names or PEFT_CONFIG in names:
        raise CheckpointError(f"{path}: {_AN_ADAPTER}")
    others = [file for pattern in _ONLY_FILES for file in path.glob(pattern)]
    if len(others) != 1:
        raise CheckpointError(f"{path}: {len(others)} files that may hold weights; {_ALLOWED_FORMATS}")
    return others[0]


def _reader_of(path: Path) -> Callable[[Path], Checkpoint]:
    """Return what opens a file with those beside it, by its first bytes; those of ONNX say nothing."""
    with reading(path), open(path, "rb") as file:
        head = file.read(512)
    if head[:4] == ggml.GGML_MAGIC:
        return ggml.read_ggml
    if head[:4] == ggml.GGUF_MAGIC:
        return ggml.read_gguf
    if head[1:4] == b"\0\0\0" and b"Spec\0" in head[:64]:
        return ctranslate2.read
    if head[:4] == b"PK\3\4":
        if all(name.endswith(".npy") for name in zip_members(path)):
            return mlx.read
        content = TorchFile(path).content
        is_openai = isinstance(content, dict) and "model_state_dict" in content
        return torch_file.read_openai if is_openai else huggingface.read
    if head[8:9] == b"{" or head[:1] == b"{":
        config = read_object(path.with_name("config.json"), optional=True)
        return mlx.read if "n_audio_state" in config else huggingface.read
    if path.suffix == ".onnx":
        return onnx_graph.read
    if b"<net " in head:
        return openvino_ir.read
    known = (what for start, what in _OTHER_KINDS.items() if head.startswith(start))
    unknown = "not a model in a known format" if head else "empty"
    if head[257:262] == b"ustar":
        unknown = "a tar archive, as NeMo's models are"
    raise CheckpointError(f"{path}: {next(known, unknown)}; {_ALLOWED_FORMATS}")
