"""Adapters of harken: changes of low rank to the attention of a model's encoder, in a file of their own.

The file is in the safetensors format. For each changed matrix W it holds, behind the name of its weight, the factors
``.A`` (rank, columns) and ``.B`` (rows, rank); the matrix becomes W + B A. Its metadata name what it belongs to, and
the windows that it was trained for::

    {"format": "harken-adapter-1", "encoder_sha256": "...", "hears": "live"}

`encoder_sha256` is `harken.checkpoints.encoder_digest` of the model that it was made for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from glob import glob
from pathlib import Path

from harken.checkpoints.checkpoint import Checkpoint, encoder_digest
from harken.checkpoints.low_rank import Change, low_rank, metadata_of
from harken.checkpoints.model_files import Array, WatchedFile, watch
from harken.checkpoints.peft import PEFT_CONFIG, PEFT_FILES, peft_changes
from harken.checkpoints.safetensors import read_tensors, serialize_tensors
from harken.errors import CheckpointError, CheckpointNotFound

ADAPTER_FILE = "adapter.safetensors"
FORMAT = "harken-adapter-1"
NO_ADAPTER = "none"
Adapters = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
_ADAPTED = re.compile(r"encoder\.blocks\.\d+\.attn\.(query|key|value|out)\.weight")


def adapted_names(names: Iterable[str]) -> list[str]:
    """Return the names of the weights that an adapter of harken may change, in alphabetical order."""
    return sorted(filter(_ADAPTED.fullmatch, names))


def serialize_adapter(factors: Mapping[str, Array], encoder_sha256: str, *, hears: str) -> Iterator[bytes]:
    """Yield the content of the file of an adapter; factors are written as float16."""
    yield from serialize_tensors(factors, {"format": FORMAT, "encoder_sha256": encoder_sha256, "hears": hears})


def with_adapters(checkpoint: Checkpoint, adapters: Adapters) -> Checkpoint:
    """Return a checkpoint whose weights adapters have changed, one after the other; itself if there are none.

    The digest of its weights tells it from others. Adapters are files, or the folders that `harken adapt` or peft wrote
    them to; `NO_ADAPTER` is none.

    Raises
    ------
    CheckpointNotFound
        If one does not exist.
    CheckpointError
        If one is damaged, no adapter, or one for another model.
    """
    given = (adapters,) if isinstance(adapters, str | os.PathLike) else adapters or ()
    paths = [Path(path) for path in given if path != NO_ADAPTER]
    weights = checkpoint.weights
    for path in paths:
        folder = path if os.path.isdir(path) else path.parent
        is_peft = os.path.isfile(folder / PEFT_CONFIG) and (folder == path or path.name in PEFT_FILES)
        changes, files = (peft_changes if is_peft else _own_changes)(path, checkpoint)
        weights = weights.changed(changes, files)
    return replace(checkpoint, weights=weights) if paths else checkpoint


def _own_changes(path: Path, checkpoint: Checkpoint) -> tuple[list[Change], list[WatchedFile]]:
    """Return the changes of an adapter of harken, and its file."""
    file = path / ADAPTER_FILE if os.path.isdir(path) else path
    if not os.path.isfile(file):
        named = sorted(glob(f"*/{PEFT_CONFIG}", root_dir=path))  # peft saves one with a name so
        raise CheckpointNotFound(
            f"{file}: no such adapter{f'; {(path / named[0]).parent} is one' if named else ''}"
        )
    watched = watch(file)
    metadata = metadata_of(file, "adapter", FORMAT, f", or a folder of peft with {PEFT_CONFIG}")
    factors = read_tensors(file)
    changes: list[Change] = []
    for name in sorted({factor.rpartition(".")[0] for factor in factors}):
        if not _ADAPTED.fullmatch(name) or name not in checkpoint.weights:
            raise CheckpointError(
                f"{file}: changes {name[:80]!r}, allowed are the matrices of the attention of the model's encoder"
            )
        a, b = factors.get(f"{name}.A"), factors.get(f"{name}.B")
        changes.append((name, low_rank(file, checkpoint, name, a, b)))
    if (digest := encoder_digest(checkpoint)) != metadata.get("encoder_sha256"):
        raise CheckpointError(
            f"{file}: made for the encoder {str(metadata.get('encoder_sha256'))[:8]}, "
            f"{checkpoint.path} has {digest[:8]}"
        )
    return changes, [watched]
