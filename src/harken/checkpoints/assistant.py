"""Assistants: the decoder of a small model, changed so that it drafts for a larger one from that one's encoder output.

A file is in the safetensors format. It holds the factors of an adapter (`harken.checkpoints.adapter`), and whole
vectors. Where a weight takes the encoder output, which is wider than the small model's own, the matrix is B A alone.
Its metadata::

    {"format": "harken-assistant-1", "encoder_sha256": "...", "decoder": "tiny"}

`encoder_sha256` is `harken.checkpoints.encoder_digest` of the larger model, `decoder` the name or path of the small
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from harken.checkpoints.checkpoint import Checkpoint, Weights, encoder_digest
from harken.checkpoints.low_rank import bad_factors, low_rank, metadata_of, no_such_weight
from harken.checkpoints.model_files import Array, watch
from harken.checkpoints.safetensors import read_tensors, serialize_tensors
from harken.checkpoints.weight_shapes import check_shapes
from harken.errors import CheckpointError

ASSISTANT_FILE = "assistant.safetensors"
ASSISTANT_FORMAT = "harken-assistant-1"
ASSISTANTS = Path(__file__).with_name("assistants")
"""Those that come with harken."""
_TAKES_ENCODER_OUTPUT = (".cross_attn.key.weight", ".cross_attn.value.weight")


def is_stitched_weight(name: str) -> bool:
    """Return whether a weight, or a factor of it, takes the encoder's output as input."""
    return name.removesuffix(".A").removesuffix(".B").endswith(_TAKES_ENCODER_OUTPUT)


def serialize_assistant(changes: Mapping[str, Array], encoder_sha256: str, decoder: str) -> Iterator[bytes]:
    """Yield the content of the file of an assistant; factors and vectors are written as float16."""
    metadata = {"format": ASSISTANT_FORMAT, "encoder_sha256": encoder_sha256, "decoder": decoder}
    yield from serialize_tensors(changes, metadata)


def read_assistant(file: Path, open_model: Callable[[str], Checkpoint]) -> Checkpoint:
    """Read the changed decoder of a small model, which `open_model` opens by its name or path.

    A `CheckpointError` says that the small model is not on this machine, or that a file is damaged or does not fit.
    """
    watched = watch(file)
    metadata = metadata_of(file, "assistant", ASSISTANT_FORMAT)
    small = open_model(str(metadata.get("decoder")))
    decoder = small.weights.tensors("decoder.")
    changes = read_tensors(file)
    tensors = dict(decoder)
    for name in sorted({re.sub(r"\.[AB]$", "", change) for change in changes}):
        if name not in decoder:
            raise no_such_weight(file, small, name)
        if name in changes:
            tensors[name] = changes[name]
            continue
        a, b = changes.get(f"{name}.A"), changes.get(f"{name}.B")
        if not is_stitched_weight(name):
            tensors[name] = decoder[name].combined(low_rank(file, small, name, a, b))
        elif a and b and len(a.shape) == len(b.shape) == 2 and b.shape[1] == a.shape[0]:
            tensors[name] = b.times(a)
        else:
            raise bad_factors(file, name, a, b, (small.dims.n_text_state, "width"))
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

    The model's encoder is only read if it is as wide as one that there is an assistant for.
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
