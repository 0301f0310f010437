"""Hugging Face models, read and written: a directory with ``config.json`` and safetensors or ``pytorch_model.bin``.

A model is a ``WhisperForConditionalGeneration``, or a ``WhisperForCausalLM``, which is a decoder without an encoder.

The configuration of a decoder that harken trained has an entry of its own, both of whose keys are optional::

    "harken": {"encoder_sha256": "...", "draft_vocabulary": [0, 1, 2, ...]}

`encoder_sha256` is the digest of the encoder that the decoder attends to (`harken.checkpoints.encoder_digest`);
`draft_vocabulary` lists in ascending order the ids of the tokens that it scores when it drafts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.checkpoints.checkpoint import Checkpoint, assemble, find_vocabulary
from harken.checkpoints.model_files import (
    Array,
    DerivedWeights,
    LazyTensor,
    check_text_size,
    half,
    is_file_name,
    read_object,
    reading,
    watch,
)
from harken.checkpoints.safetensors import read_tensors, serialize_tensors
from harken.checkpoints.torch_file import TorchFile
from harken.checkpoints.weight_names import (
    DIMENSIONS,
    EMBEDDING,
    declared_dims,
    hf_name_of,
    openai_tensors,
    without_output,
)
from harken.checkpoints.weight_shapes import expected_shapes
from harken.errors import CheckpointError
from harken.files import write_atomic
from harken.text import Tokenizer
from harken.types import Dims

# Settings that change the computation, and the values that Whisper allows; the first is the default.
_ALLOWED_SETTINGS: dict[str, tuple[object, ...]] = {
    "model_type": ("whisper", "lite-whisper"),
    "activation_function": ("gelu",),
    "scale_embedding": (False,),
    "tie_word_embeddings": (True, False),
}
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read(path: Path) -> Checkpoint:
    """Open a weights file, or the index of a sharded one, with the files beside it."""
    config_path = path.with_name("config.json")
    if not config_path.is_file():
        raise CheckpointError(
            f"{path}: weights without a config.json beside them, as models of Hugging Face have"
        )
    config_file = watch(config_path)
    config = read_object(config_path)
    for name, allowed in _ALLOWED_SETTINGS.items():
        if (found := config.get(name, allowed[0])) not in allowed:
            raise CheckpointError(
                f"{config_path}: {'not a Whisper model: ' * (name == 'model_type')}{name} is {json.dumps(found)[:80]}, "
                f"allowed is {' or '.join(map(json.dumps, allowed))}"
            )
    shards = [watch(shard) for shard in (_shards(path) if path.suffix == ".json" else (path,))]
    tensors = without_output(
        path, openai_tensors(path, (item for shard in shards for item in read_shard(shard.path).items()))
    )
    checkpoint = assemble(
        path,
        "huggingface",
        dict(_with_products(path, tensors)),
        declared_dims(config_path, config),
        find_vocabulary(path.parent),
        files=[config_file, *shards],
    )
    return replace(checkpoint, **_harken_config(config_path, config, checkpoint.dims.n_vocab))


def _harken_config(path: Path, config: dict[str, object], n_vocab: int) -> dict[str, Any]:
    """Check harken's own entry of a configuration and return it as fields of `Checkpoint`."""
    entry = config.get("harken", {})
    if not isinstance(entry, dict):
        raise CheckpointError(f"{path}: harken is a {type(entry).__name__}, allowed is an object")
    digest, ids = entry.get("encoder_sha256"), entry.get("draft_vocabulary")
    if digest is not None and not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
        raise CheckpointError(f"{path}: encoder_sha256 is not 64 digits in lower-case hex")
    if ids is None:
        return {"encoder_sha256": digest}
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise CheckpointError(f"{path}: draft_vocabulary is not a list of token ids")
    if ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= n_vocab:
        raise CheckpointError(f"{path}: draft_vocabulary is not ascending, or not within 0 to {n_vocab - 1}")
    return {"encoder_sha256": digest, "draft_vocabulary": np.array(ids, np.int64)}


def _shards(index: Path) -> tuple[Path, ...]:
    """Return the files that an index names; each must be in its directory."""
    match read_object(index):
        case {"weight_map": dict(weight_map)} if all(isinstance(shard, str) for shard in weight_map.values()):
            names = sorted(set(weight_map.values()))
        case _:
            raise CheckpointError(f"{index}: has no weight_map of names to files")
    for name in names:
        if not is_file_name(name):
            raise CheckpointError(f"{index}: names {name[:80]!r}, allowed are files of its own directory")
    return tuple(index.with_name(name) for name in names)


def read_shard(path: Path) -> dict[str, LazyTensor]:
    """Return the tensors of a file of safetensors or of `torch.save`, not read yet."""
    with reading(path), open(path, "rb") as file:
        is_zip = file.read(2) == b"PK"
    if not is_zip:
        return read_tensors(path)
    saved = TorchFile(path)
    return saved.tensors(saved.content)


def _with_products(path: Path, tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[str, LazyTensor]]:
    """Yield the weights, of layers of low rank the product of their factors.

    The layers of lite-whisper compute ``x @ weight1 @ weight2 + bias`` (modeling_lite_whisper.py, `LinearLowRank`).
    Those of the keys have a bias too, which never changes the softmax.
    """
    for name, tensor in tensors.items():
        layer, _, leaf = name.rpartition(".")
        first, second = tensors.get(f"{layer}.weight1"), tensors.get(f"{layer}.weight2")
        if first is None or second is None:
            yield name, tensor
        elif leaf == "weight1":
            yield f"{layer}.weight", _product(path, layer, first, second)
        elif leaf != "weight2" and not name.endswith(".key.bias"):
            yield name, tensor


def _product(path: Path, layer: str, first: LazyTensor, second: LazyTensor) -> LazyTensor:
    if len(first.shape) != 2 or len(second.shape) != 2 or first.shape[1] != second.shape[0]:
        raise CheckpointError(
            f"{path}: {layer} has factors of the shapes {first.shape} and {second.shape}, "
            "allowed are (columns, rank) and (rank, rows)"
        )
    a, b = first.transposed(), second.transposed()
    return replace(b.times(a), factors=(a, b))


def in_model_order(
    dims: Dims, weights: Mapping[str, Array], tokenizer: Tokenizer
) -> tuple[Dims, Mapping[str, Array]]:
    """Return dimensions and weights with the tokens where the model's own files have them.

    Rows of the token embedding that belong to no token are zero.
    """
    ids = np.array(tokenizer.model_ids)
    n_vocab = int(ids.max()) + 1
    if n_vocab == len(ids) and (np.diff(ids) == 1).all():
        return dims, weights

    def read(name: str) -> Array:
        values = weights[name]
        if name != EMBEDDING:
            return values
        embedding = np.zeros((n_vocab, *values.shape[1:]), values.dtype)
        embedding[ids] = values
        return embedding

    return replace(dims, n_vocab=n_vocab), DerivedWeights(weights, read)


COPIED_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json"),
    *("special_tokens_map.json", "normalizer.json", "preprocessor_config.json", "generation_config.json"),
)
"""Files of the main model that an export copies."""


def export(
    folder: Path,
    dims: Dims,
    weights: Mapping[str, NDArray[Any]],
    tokenizer: Tokenizer,
    *,
    source_folder: Path | None = None,
    harken_config: Mapping[str, Any] | None = None,
) -> None:
    """Write a model in float16, or a decoder alone, whose dimensions have no encoder layers.

    The files of the tokenizer are copied from `source_folder`, that of the model that the weights come from.
    `harken_config` is the entry ``"harken"`` of config.json. An `OutputError` says why it cannot be written.
    """
    dims, weights = in_model_order(dims, weights, tokenizer)
    hf_weights = {
        f"model.{hf_name_of(name)}": LazyTensor(
            shape,
            "float16",
            lambda name=name: half(name, weights[name]),  # type: ignore[misc]
        )
        for name, shape in expected_shapes(dims).items()
    }
    end = tokenizer.model_ids[tokenizer.eot]
    config = {
        **{name: allowed[0] for name, allowed in _ALLOWED_SETTINGS.items()},
        **{theirs: getattr(dims, ours) for ours, theirs in DIMENSIONS.items()},
        "architectures": ["WhisperForConditionalGeneration" if dims.has_encoder else "WhisperForCausalLM"],
        **{"encoder_ffn_dim": 4 * dims.n_audio_state, "decoder_ffn_dim": 4 * dims.n_text_state},
        "dtype": "float16",
        **{"bos_token_id": end, "eos_token_id": end, "pad_token_id": end},
        "decoder_start_token_id": tokenizer.model_ids[tokenizer.sot],
        **({"harken": dict(harken_config)} if harken_config else {}),
    }
    for file in (source_folder / name for name in COPIED_FILES) if source_folder else ():
        if file.is_file():
            check_text_size(file)
            write_atomic(folder / file.name, [file.read_bytes()])
    write_atomic(folder / "model.safetensors", serialize_tensors(hf_weights, {"format": "pt"}))
    write_atomic(folder / "config.json", [json.dumps(config, indent=1) + "\n"])
