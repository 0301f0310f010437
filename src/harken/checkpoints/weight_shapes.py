"""Names and shapes of the weights of a Whisper model, and the dimensions that follow from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from harken.checkpoints.model_files import LazyTensor
from harken.errors import CheckpointError, OptionError
from harken.types import Dims

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

USUAL_HEAD_SIZE = 64


class Declared(NamedTuple):
    """A value that a file declares for a dimension, and that file."""

    value: object
    file: Path


_LAYER = re.compile(r"\.blocks\.\d+\.")
# Where the dimensions are found: a weight, the number of its axes, and one of them.
_ENCODER_SIZES = {
    "n_audio_state": ("encoder.conv1.weight", 3, 0),
    "n_mels": ("encoder.conv1.weight", 3, 1),
    "n_audio_ctx": ("encoder.positional_embedding", 2, 0),
}
_ENCODER_WIDTH = {"n_audio_state": ("decoder.blocks.0.cross_attn.key.weight", 2, 1)}
_DECODER_SIZES = {
    "n_vocab": ("decoder.token_embedding.weight", 2, 0),
    "n_text_state": ("decoder.token_embedding.weight", 2, 1),
    "n_text_ctx": ("decoder.positional_embedding", 2, 0),
}

_DIMS_FIELDS = tuple(Dims.__dataclass_fields__)
_KNOWN_FIELDS = f"known are {', '.join(_DIMS_FIELDS)}"


def expected_shapes(dims: Dims) -> dict[str, Shape]:
    """Return name and shape of every weight (whisper/model.py, `Whisper.state_dict`)."""
    return (_encoder_shapes(dims) if dims.has_encoder else {}) | _decoder_shapes(dims)


def is_weight_name(name: str) -> bool:
    """Return whether a weight of a Whisper model has that name, in a block of whatever number."""
    return _LAYER.sub(".blocks.0.", name, count=1) in _names()


@cache
def _names() -> frozenset[str]:
    sizes = dict.fromkeys(Dims.__dataclass_fields__, 1)
    return frozenset(expected_shapes(Dims(**sizes)))


def _encoder_shapes(dims: Dims) -> dict[str, Shape]:
    state = dims.n_audio_state
    shapes: dict[str, Shape] = {
        "encoder.conv1.weight": (state, dims.n_mels, 3),
        "encoder.conv1.bias": (state,),
        "encoder.conv2.weight": (state, state, 3),
        "encoder.conv2.bias": (state,),
        "encoder.positional_embedding": (dims.n_audio_ctx, state),
        "encoder.ln_post.weight": (state,),
        "encoder.ln_post.bias": (state,),
    }
    for layer in range(dims.n_audio_layer):
        shapes.update(_block_shapes(f"encoder.blocks.{layer}", state, ("attn",)))
    return shapes


def _decoder_shapes(dims: Dims) -> dict[str, Shape]:
    state = dims.n_text_state
    shapes: dict[str, Shape] = {
        "decoder.token_embedding.weight": (dims.n_vocab, state),
        "decoder.positional_embedding": (dims.n_text_ctx, state),
        "decoder.ln.weight": (state,),
        "decoder.ln.bias": (state,),
    }
    for layer in range(dims.n_text_layer):
        shapes.update(_block_shapes(f"decoder.blocks.{layer}", state, ("attn", "cross_attn")))
        for projection in ("key", "value"):
            shapes[f"decoder.blocks.{layer}.cross_attn.{projection}.weight"] = (state, dims.n_audio_state)
    return shapes


def _block_shapes(prefix: str, state: int, attentions: tuple[str, ...]) -> Iterator[tuple[str, Shape]]:
    for attention in attentions:
        yield from _affine_shapes(f"{prefix}.{attention}_ln", (state,))
        for projection in ("query", "value", "out"):
            yield from _affine_shapes(f"{prefix}.{attention}.{projection}", (state, state))
        yield f"{prefix}.{attention}.key.weight", (state, state)  # no key bias: it never changes the softmax
    yield from _affine_shapes(f"{prefix}.mlp_ln", (state,))
    yield from _affine_shapes(f"{prefix}.mlp.0", (4 * state, state))
    yield from _affine_shapes(f"{prefix}.mlp.2", (state, 4 * state))


def _affine_shapes(name: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def infer_dims(path: Path, shapes: Shapes, declared: Mapping[str, Declared]) -> Dims:
    """Infer the dimensions of a model from the shapes of its weights.

    Weights without any of an encoder are those of a decoder alone. The declared dimensions of its encoder are used,
    except for the number of layers, which is 0, and the width, which is that of the cross-attention's input: the
    decoder may be narrower than the encoder that it was made for. Of the declared dimensions the numbers of heads are
    required, as no shape depends on them; all others must agree with the shapes.

    Raises
    ------
    CheckpointError
        If a weight is missing or has too many axes, or the file contradicts itself.
    """
    has_encoder = any(name.startswith("encoder.") for name in shapes)
    is_alone = "decoder.token_embedding.weight" in shapes and not has_encoder
    sizes = (_ENCODER_WIDTH if is_alone else _ENCODER_SIZES) | _DECODER_SIZES
    found = {field: _size(path, shapes, *place) for field, place in sizes.items()}
    sides = {"n_audio_layer": "encoder", "n_text_layer": "decoder"}
    found |= {field: _count_layers(shapes, side) for field, side in sides.items()}
    if not found["n_audio_layer"]:
        declared = {
            name: value for name, value in declared.items() if name not in ("n_audio_layer", "n_audio_state")
        }
    for field, (value, file) in declared.items():
        if field not in _DIMS_FIELDS or type(value) is not int:
            raise CheckpointError(f"{file}: dimension {field!r} is unknown or not an integer; {_KNOWN_FIELDS}")
        if found.setdefault(field, value) != value:
            raise CheckpointError(f"{file}: declares {field}={value}, its weights have {field}={found[field]}")
    if missing := [field for field in _DIMS_FIELDS if field not in found]:
        raise CheckpointError(f"{path}: does not declare {', '.join(missing)}")
    audio_state, text_state = found["n_audio_state"], found["n_text_state"]
    if audio_state != text_state and found["n_audio_layer"]:
        raise CheckpointError(
            f"{path}: n_text_state={text_state}, allowed is n_audio_state={audio_state}, the same for both"
        )
    try:
        return Dims(**found)
    except OptionError as error:
        file = declared[error.field].file if error.field in declared else path
        raise CheckpointError(f"{file}: {error}") from error


def declared_by(file: Path, dims: Mapping[str, object]) -> dict[str, Declared]:
    """Return dimensions as what a file declares."""
    return {name: Declared(value, file) for name, value in dims.items()}


def usual_heads(path: Path, tensors: Mapping[str, LazyTensor]) -> dict[str, Declared]:
    """Return the numbers of heads of a model that does not say: those of every published one have 64 channels."""
    norms = {"n_audio_head": "encoder.ln_post.weight", "n_text_head": "decoder.ln.weight"}
    return {
        heads: Declared(max(tensors[norm].shape[0] // USUAL_HEAD_SIZE, 1), path)
        for heads, norm in norms.items()
        if norm in tensors and tensors[norm].shape
    }


def _size(path: Path, shapes: Shapes, name: str, n_axes: int, axis: int) -> int:
    shape = shapes.get(name)
    if shape is None:
        raise CheckpointError(f"{path}: not a Whisper model: weight {name} is missing")
    if len(shape) != n_axes:
        raise CheckpointError(f"{path}: weight {name} has shape {shape}, allowed are {n_axes} axes")
    return shape[axis]


def _count_layers(shapes: Shapes, side: str) -> int:
    prefix = f"{side}.blocks."
    return len({name[len(prefix) :].split(".", 1)[0] for name in shapes if name.startswith(prefix)})


def check_shapes(path: Path, shapes: Shapes, dims: Dims) -> None:
    """Refuse weights of which one is missing, unknown, or not of the shape that it has with these dimensions."""
    expected = expected_shapes(dims)
    missing, unknown = expected.keys() - shapes.keys(), shapes.keys() - expected.keys()
    for problem, names in (("misses", missing), ("has unknown", unknown)):
        if names:
            raise CheckpointError(
                f"{path}: {problem} weights, {len(names)} in all, the first is {min(names)[:80]!r}"
            )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise CheckpointError(f"{path}: weight {name} has shape {shapes[name]}, allowed is {shape}")
