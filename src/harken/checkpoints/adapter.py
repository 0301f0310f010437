"""Changes of low rank to a model's weights, in files of their own: adapters of harken and of peft, and assistants.

A file of harken is in the safetensors format. For each changed matrix W of an encoder's attention it holds, behind the
name of its weight, the factors ``.A`` (rank, columns) and ``.B`` (rows, rank); the matrix becomes W + B A. Its metadata
name what it belongs to, and the windows that it was trained for::

    {"format": "harken-adapter-1", "encoder_sha256": "...", "hears": "live"}

`encoder_sha256` is `harken.checkpoints.encoder_digest` of the model that it was made for.

An assistant is the decoder of a small model, changed so that it attends to the encoder output of a larger one and
drafts for it. Its file holds factors too, and whole vectors. Where a weight takes the encoder output, which is wider
than the small model's own, the matrix is B A alone. Its metadata::

    {"format": "harken-assistant-1", "encoder_sha256": "...", "decoder": "tiny"}

`decoder` is the name or path of the small model.

A folder of peft has ``adapter_config.json`` and ``adapter_model.safetensors`` or ``.bin``. Of its kinds LoRA is read
(peft/tuners/lora), which may change any matrix, also with magnitudes (DoRA), and whole weights (`modules_to_save`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint, Weights, encoder_digest
from harken.checkpoints.huggingface import read_shard
from harken.checkpoints.model_files import Array, LazyTensor, WatchedFile, read_object, watch
from harken.checkpoints.safetensors import read_metadata, read_tensors, serialize_tensors
from harken.checkpoints.weight_names import EMBEDDING, OUTPUT, openai_name_of
from harken.checkpoints.weight_shapes import check_shapes
from harken.errors import CheckpointError, CheckpointNotFound

ADAPTER_FILE = "adapter.safetensors"
FORMAT = "harken-adapter-1"
ASSISTANT_FILE = "assistant.safetensors"
ASSISTANT_FORMAT = "harken-assistant-1"
ASSISTANTS = Path(__file__).with_name("assistants")
"""Those that come with harken."""
PEFT_CONFIG = "adapter_config.json"
_PEFT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_ADAPTED = re.compile(r"encoder\.blocks\.\d+\.attn\.(query|key|value|out)\.weight")
_TAKES_ENCODER_OUTPUT = (".cross_attn.key.weight", ".cross_attn.value.weight")
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

NO_ADAPTER = "none"
Change = tuple[str, Callable[[Array], Array]]
"""The name of a weight, and a function of it."""
Adapters = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


def adapted_names(names: Iterable[str]) -> list[str]:
    """Return the names of the weights that an adapter of harken may change, in alphabetical order."""
    return sorted(filter(_ADAPTED.fullmatch, names))


def serialize_adapter(factors: Mapping[str, Array], encoder_sha256: str, *, hears: str) -> Iterator[bytes]:
    """Yield the content of the file of an adapter; factors are written as float16."""
    yield from serialize_tensors(factors, {"format": FORMAT, "encoder_sha256": encoder_sha256, "hears": hears})


def is_stitched_weight(name: str) -> bool:
    """Return whether a weight, or a factor of it, takes the encoder's output as input."""
    return name.removesuffix(".A").removesuffix(".B").endswith(_TAKES_ENCODER_OUTPUT)


def serialize_assistant(changes: Mapping[str, Array], encoder_sha256: str, decoder: str) -> Iterator[bytes]:
    """Yield the content of the file of an assistant; factors and vectors are written as float16."""
    metadata = {"format": ASSISTANT_FORMAT, "encoder_sha256": encoder_sha256, "decoder": decoder}
    yield from serialize_tensors(changes, metadata)


def read_assistant(file: Path, open_model: Callable[[str], Checkpoint]) -> Checkpoint:
    """Read the changed decoder of a small model.

    Parameters
    ----------
    file : Path
    open_model : callable
        Opens the small model by its name or path.

    Raises
    ------
    CheckpointNotFound
        If the small model is not on this machine.
    CheckpointError
        If one of the files is damaged, or they do not fit.
    """
    watched = watch(file)
    metadata = _metadata_of(file, "assistant", ASSISTANT_FORMAT)
    small = open_model(str(metadata.get("decoder")))
    decoder = small.weights.tensors("decoder.")
    changes = read_tensors(file)
    tensors = dict(decoder)
    for name in sorted({re.sub(r"\.[AB]$", "", change) for change in changes}):
        if name not in decoder:
            raise _no_such_weight(file, small, name)
        if name in changes:
            tensors[name] = changes[name]
            continue
        a, b = changes.get(f"{name}.A"), changes.get(f"{name}.B")
        if not is_stitched_weight(name):
            tensors[name] = decoder[name].combined(_low_rank(file, small, name, a, b))
        elif a and b and len(a.shape) == len(b.shape) == 2 and b.shape[1] == a.shape[0]:
            tensors[name] = b.times(a)
        else:
            raise _bad_factors(file, name, a, b, (small.dims.n_text_state, "width"))
    width = tensors["decoder.blocks.0.cross_attn.key.weight"].shape[1]
    dims = replace(small.dims.without_encoder(), n_audio_state=width, n_audio_head=1)
    check_shapes(file, {name: tensor.shape for name, tensor in tensors.items()}, dims)
    return replace(
        small,
        dims=dims,
        weights=Weights(file, tensors, [*small.weights.files, watched]),
        path=file,
        alignment_heads=None,
        encoder_sha256=metadata.get("encoder_sha256"),
    )


def find_assistant(main: Checkpoint, open_model: Callable[[str], Checkpoint]) -> Checkpoint | None:
    """Return the assistant that comes with harken for a model, if the small model that it changes is here; else None.

    Parameters
    ----------
    main : Checkpoint
        The model; its encoder is only read if it is as wide as one that there is an assistant for.
    open_model : callable
        Opens a small model by its name.
    """
    for file in sorted(ASSISTANTS.glob("*.safetensors")):
        try:
            assistant = read_assistant(file, open_model)
        except CheckpointError:  # the small model is not here, or another model has its name
            continue
        fits = all(
            getattr(assistant.dims, name) == getattr(main.dims, name)
            for name in ("n_vocab", "n_text_ctx", "n_audio_ctx", "n_audio_state")
        )
        if fits and assistant.encoder_sha256 == encoder_digest(main):
            return assistant
    return None


def with_adapters(checkpoint: Checkpoint, adapters: Adapters) -> Checkpoint:
    """Return a checkpoint whose weights adapters have changed, one after the other; itself if there are none.

    The digest of its weights tells it from others.

    Parameters
    ----------
    checkpoint : Checkpoint
    adapters : path, sequence of paths, or None
        Files, or the folders that `harken adapt` or peft wrote them to; `NO_ADAPTER` is none.

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
        is_peft = os.path.isfile(folder / PEFT_CONFIG) and (folder == path or path.name in _PEFT_FILES)
        changes, files = (_peft_changes if is_peft else _own_changes)(path, checkpoint)
        weights = weights.changed(changes, files)
    return replace(checkpoint, weights=weights) if paths else checkpoint


@dataclass(frozen=True, slots=True)
class _LowRank:
    """The change of a matrix W to W + scale B A, or to rows of that direction with magnitudes of their own.

    With convolutions, A and W have further axes, which count as columns. An embedding's change is transposed.
    """

    file: Path
    a: LazyTensor
    b: LazyTensor
    scale: float = 1.0
    magnitudes: LazyTensor | None = None
    is_embedding: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether it changes matrices of this shape."""
        if len(self.a.shape) < 2 or len(self.b.shape) < 2:
            return False
        rank, columns = self.a.shape[0], self.a.shape[1:]
        rows = self.b.shape[0]
        changed = (*columns, rows) if self.is_embedding else (rows, *columns)
        return changed == shape and self.b.shape[1:] == (rank, *(1 for _ in columns[1:]))

    def __call__(self, matrix: Array) -> Array:
        a, b = (_finite(self.file, factor).reshape(factor.shape[0], -1) for factor in (self.a, self.b))
        product = (b @ a).T if self.is_embedding else b @ a
        changed: Array = matrix.astype(np.float32) + np.float32(self.scale) * product.reshape(matrix.shape)
        if self.magnitudes is not None:
            norms = np.linalg.norm(changed.reshape(len(changed), -1), axis=1)
            ratios = _finite(self.file, self.magnitudes).ravel() / norms
            changed *= ratios.reshape(-1, *[1] * (changed.ndim - 1))
        return changed


def _finite(file: Path, factor: LazyTensor) -> Array:
    values: Array = factor.read().astype(np.float32)
    if not np.isfinite(values).all():
        raise CheckpointError(f"{file}: holds values that are not finite")
    return values


def _own_changes(path: Path, checkpoint: Checkpoint) -> tuple[list[Change], list[WatchedFile]]:
    """Return the changes of an adapter of harken, and its file."""
    file = path / ADAPTER_FILE if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise CheckpointNotFound(f"{file}: no such adapter")
    watched = watch(file)
    metadata = _metadata_of(file, "adapter", FORMAT, f", or a folder of peft with {PEFT_CONFIG}")
    factors = read_tensors(file)
    changes: list[Change] = []
    for name in sorted({factor.rpartition(".")[0] for factor in factors}):
        if not _ADAPTED.fullmatch(name) or name not in checkpoint.weights:
            raise CheckpointError(
                f"{file}: changes {name[:80]!r}, allowed are the matrices of the attention of the model's encoder"
            )
        a, b = factors.get(f"{name}.A"), factors.get(f"{name}.B")
        changes.append((name, _low_rank(file, checkpoint, name, a, b)))
    if (digest := encoder_digest(checkpoint)) != metadata.get("encoder_sha256"):
        raise CheckpointError(
            f"{file}: made for the encoder {str(metadata.get('encoder_sha256'))[:8]}, "
            f"{checkpoint.path} has {digest[:8]}"
        )
    return changes, [watched]


def _metadata_of(file: Path, kind: str, format: str, others: str = "") -> dict[str, Any]:
    """Return the metadata of a file of harken; refuse one of another format."""
    metadata = read_metadata(file)
    if metadata.get("format") != format:
        found = json.dumps(metadata.get("format"))[:80]
        raise CheckpointError(
            f"{file}: no {kind}: its format is {found}, allowed is {json.dumps(format)}{others}"
        )
    return metadata


def _peft_changes(path: Path, checkpoint: Checkpoint) -> tuple[list[Change], list[WatchedFile]]:
    """Return the changes of an adapter of peft, and its files."""
    folder = path if os.path.isdir(path) else path.parent
    candidates = [folder / name for name in _PEFT_FILES if os.path.isfile(folder / name)]
    if not candidates:
        raise CheckpointNotFound(f"{folder}: holds {PEFT_CONFIG}, and none of {', '.join(_PEFT_FILES)}")
    file = path if path in candidates else candidates[0]
    files = [watch(file), watch(folder / PEFT_CONFIG)]
    config = _peft_config(folder)
    factors: dict[str, dict[str, LazyTensor]] = {}
    changes: list[Change] = []
    whole: dict[str, LazyTensor] = {}  # of the embedding and the output
    for name, tensor in read_shard(file).items():
        if lora := _LORA.fullmatch(name):
            module, embedding, part = lora.groups()[:3]
            factors.setdefault(module, {})[f"{embedding or ''}{part}"] = tensor
            continue
        ours = openai_name_of(_SAVED.sub("", name))
        if ours in (EMBEDDING, OUTPUT):
            tensor = checkpoint.vocabulary.arranged(tensor)
            if ".base_layer." not in name:
                whole[ours] = tensor
        if ours != OUTPUT:
            if ours not in checkpoint.weights or checkpoint.weights.shape(ours) != tensor.shape:
                raise _no_such_weight(file, checkpoint, ours, tensor.shape)
            changes.append((ours, partial(_replaced, file, tensor)))
    if whole and not (EMBEDDING in whole and config.get("ensure_weight_tying")) and not _are_equal(whole):
        raise _untied(file, " and ".join(whole))
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
        change = _low_rank(file, checkpoint, ours, a, b, is_embedding)
        magnitudes = found.get("magnitude_vector")
        if magnitudes and np.prod(magnitudes.shape, dtype=object) != checkpoint.weights.shape(ours)[0]:
            raise CheckpointError(f"{file}: {ours} has {magnitudes.shape} magnitudes, allowed is one a row")
        scale = _peft_scale(folder / PEFT_CONFIG, config, module, change.a.shape[0])
        changes.append((ours, replace(change, scale=scale, magnitudes=magnitudes)))
    return changes, files


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


def _low_rank(
    file: Path,
    checkpoint: Checkpoint,
    name: str,
    a: LazyTensor | None,
    b: LazyTensor | None,
    is_embedding: bool = False,
) -> _LowRank:
    """Return the change of a weight; refuse one of no weight, or whose factors are missing or of other shapes."""
    if name not in checkpoint.weights:
        raise _no_such_weight(file, checkpoint, name)
    shape = checkpoint.weights.shape(name)
    if a and b and (change := _LowRank(file, a, b, is_embedding=is_embedding)).fits(shape):
        return change
    raise _bad_factors(file, name, a, b, shape[:2][::-1] if is_embedding else shape[:2])


def _bad_factors(
    file: Path, name: str, a: LazyTensor | None, b: LazyTensor | None, shape: tuple[object, ...]
) -> CheckpointError:
    found = [factor.shape if factor else None for factor in (b, a)]
    rows, columns = shape
    return CheckpointError(
        f"{file}: {name}: factors B and A have the shapes {found[0]} and {found[1]}, "
        f"allowed are ({rows}, rank) and (rank, {columns})"
    )


def _untied(file: Path, changed: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: changes {changed}, allowed are {EMBEDDING} and {OUTPUT} to the same values, as Whisper has one "
        "matrix for the two"
    )


def _no_such_weight(
    file: Path, checkpoint: Checkpoint, name: str, shape: tuple[int, ...] | None = None
) -> CheckpointError:
    what = f"{name[:80]!r}" + (f" of shape {shape}" if shape else "")
    return CheckpointError(f"{file}: changes {what}, which {checkpoint.path} has not")


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
    return _finite(file, tensor)
