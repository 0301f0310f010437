"""Adapters of peft: a folder with ``adapter_config.json`` and ``adapter_model.safetensors`` or ``.bin``.

Of its kinds LoRA is read (peft/tuners/lora), which may change any matrix, also with magnitudes (DoRA), and whole
weights (`modules_to_save`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint
from harken.checkpoints.huggingface import read_shard
from harken.checkpoints.low_rank import Change, finite_values, low_rank, no_such_weight
from harken.checkpoints.model_files import Array, LazyTensor, WatchedFile, read_object, watch
from harken.checkpoints.weight_names import EMBEDDING, OUTPUT, openai_name_of
from harken.errors import CheckpointError, CheckpointNotFound

PEFT_CONFIG = "adapter_config.json"
PEFT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_LORA = re.compile(r"(.+)\.lora_(embedding_)?(A|B|magnitude_vector)(\.\w+?)??(\.weight)?")
_SAVED = re.compile(r"\.((modules_to_save|original_module)(\.default)?|base_layer)(?=\.)")
_PLAIN_PATTERN = re.compile(r"[\w.]+")
_UNSUPPORTED = (
    *("fan_in_fan_out", "lora_bias", "layer_replication", "use_qalora", "use_bdlora", "kasa_config"),
    *("monteclora_config", "alora_invocation_tokens", "arrow_config", "trainable_token_indices"),
)
"""Settings of peft that mean another computation."""
_PLAIN_INITS = (None, True, False, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights with which the model's own weights stay as they are."""


def peft_changes(path: Path, checkpoint: Checkpoint) -> tuple[list[Change], list[WatchedFile]]:
    """Return the changes of an adapter of peft, and its files."""
    folder = path if os.path.isdir(path) else path.parent
    candidates = [folder / name for name in PEFT_FILES if os.path.isfile(folder / name)]
    if not candidates:
        raise CheckpointNotFound(f"{folder}: holds {PEFT_CONFIG}, and none of {', '.join(PEFT_FILES)}")
    file = path if path in candidates else candidates[0]
    files = [watch(file), watch(folder / PEFT_CONFIG)]
    config = _peft_config(folder)
    factors: dict[str, dict[str, LazyTensor]] = {}
    saved: dict[str, LazyTensor] = {}
    for name, tensor in read_shard(file).items():
        if lora := _LORA.fullmatch(name):
            module, embedding, part = lora.groups()[:3]
            factors.setdefault(module, {})[f"{embedding or ''}{part}"] = tensor
        else:
            saved[name] = tensor
    changes = _saved_changes(file, config, checkpoint, saved)
    return [*changes, *_lora_changes(file, config, checkpoint, factors)], files


def _saved_changes(
    file: Path, config: Mapping[str, object], checkpoint: Checkpoint, saved: Mapping[str, LazyTensor]
) -> Iterator[Change]:
    """Yield the weights that are replaced."""
    matrices: dict[str, LazyTensor] = {}  # of the embedding and the output
    for name, tensor in saved.items():
        ours = openai_name_of(_SAVED.sub("", name))
        if ours in (EMBEDDING, OUTPUT):
            tensor = checkpoint.vocabulary.arranged(tensor)
            if ".base_layer." not in name:
                matrices[ours] = tensor
        if ours == OUTPUT:
            continue
        if ours not in checkpoint.weights or checkpoint.weights.shape(ours) != tensor.shape:
            raise no_such_weight(file, checkpoint, ours, tensor.shape)
        yield ours, partial(_replaced, file, tensor)
    is_tied = EMBEDDING in matrices and config.get("ensure_weight_tying")
    if matrices and not is_tied and not _are_equal(matrices):
        raise _untied(file, " and ".join(matrices))


def _lora_changes(
    file: Path,
    config: Mapping[str, object],
    checkpoint: Checkpoint,
    factors: Mapping[str, Mapping[str, LazyTensor]],
) -> Iterator[Change]:
    """Yield the changes of low rank, of the factors of each module by their names."""
    of_embedding = next((found for found in factors.values() if "embedding_A" in found), {})
    has_output = any(openai_name_of(f"{module}.weight") == OUTPUT for module in factors)
    if of_embedding and not (has_output or config.get("ensure_weight_tying")):
        raise _untied(file, EMBEDDING)
    for module, found in factors.items():
        ours = openai_name_of(f"{module}.weight")
        if ours == OUTPUT:
            if not _is_transposed(found, of_embedding):
                raise _untied(file, ours)
            continue
        a, b = found.get("A"), found.get("B")
        if is_embedding := "embedding_A" in found:
            a, b = checkpoint.vocabulary.arranged(found["embedding_A"], axis=1), found.get("embedding_B")
        change = low_rank(file, checkpoint, ours, a, b, is_embedding)
        magnitudes = found.get("magnitude_vector")
        if magnitudes and np.prod(magnitudes.shape, dtype=object) != checkpoint.weights.shape(ours)[0]:
            raise CheckpointError(f"{file}: {ours} has {magnitudes.shape} magnitudes, allowed is one a row")
        scale = _peft_scale(file.with_name(PEFT_CONFIG), config, module, change.a.shape[0])
        yield ours, replace(change, scale=scale, magnitudes=magnitudes)


def _peft_config(folder: Path) -> dict[str, object]:
    """Return the settings of an adapter of peft; refuse what means another computation than that of LoRA."""
    config = read_object(folder / PEFT_CONFIG)
    if (kind := config.get("peft_type")) != "LORA":
        raise CheckpointError(f'{folder}: an adapter of type {json.dumps(kind)[:80]}, allowed is "LORA"')
    if refused := [name for name in _UNSUPPORTED if config.get(name)]:
        raise CheckpointError(f"{folder / PEFT_CONFIG}: {refused[0]} is set, allowed are LoRA, rsLoRA and DoRA")
    if (init := config.get("init_lora_weights")) not in _PLAIN_INITS:
        raise CheckpointError(
            f"{folder / PEFT_CONFIG}: init_lora_weights is {json.dumps(init)[:80]}, which changes the model too; save "
            "the adapter with path_initial_model_for_weight_conversion of peft"
        )
    return config


def _untied(file: Path, changed: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: changes {changed}, allowed are {EMBEDDING} and {OUTPUT} to the same values, as Whisper has one "
        "matrix for the two"
    )


def _peft_scale(path: Path, config: Mapping[str, object], module: str, rank: int) -> float:
    """Return the factor of the change of a module (peft/tuners/lora/layer.py, `update_layer`)."""
    alpha = config.get("lora_alpha", 8)
    patterns = config.get("alpha_pattern") or {}
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        if not _PLAIN_PATTERN.fullmatch(pattern):
            raise CheckpointError(f"{path}: alpha_pattern {pattern[:80]!r} is not the plain name of a module")
        if f".{module}".endswith(f".{pattern}"):
            alpha = value
            break
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) < 1e6:
        raise CheckpointError(f"{path}: lora_alpha is {json.dumps(alpha)[:80]}, allowed is a number below 1e6")
    return float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)


def _are_equal(whole: Mapping[str, LazyTensor]) -> bool:
    """Return whether the embedding and the output are given, with the same values."""
    first, *others = (tensor.read() for tensor in whole.values())
    return len(others) == 1 and np.array_equal(first, others[0])


def _is_transposed(output: Mapping[str, LazyTensor], embedding: Mapping[str, LazyTensor]) -> bool:
    """Return whether the factors of the output change it as those of the embedding do, as peft ties the two."""
    pairs = ((output.get("A"), embedding.get("embedding_B")), (output.get("B"), embedding.get("embedding_A")))
    return all(a and b and np.array_equal(a.read(), b.read().T) for a, b in pairs)


def _replaced(file: Path, tensor: LazyTensor, matrix: Array) -> Array:
    return finite_values(file, tensor)
