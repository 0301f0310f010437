"""Names of the weights and dimensions of Whisper: OpenAI's, which harken uses, and those of other programs.

Those of transformers are in transformers/models/whisper/modeling_whisper.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from harken.checkpoints.model_files import Array, LazyTensor, WatchedFile, read_object, watch
from harken.checkpoints.safetensors import FLOATS
from harken.checkpoints.weight_shapes import Declared, declared_by
from harken.errors import CheckpointError

DIMENSIONS = {
    "n_mels": "num_mel_bins",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_vocab": "vocab_size",
    "n_text_ctx": "max_target_positions",
    "n_text_state": "d_model",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}
"""The names of transformers, by those of OpenAI."""
_MODULES = {
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
    "decoder.embed_tokens": "decoder.token_embedding",
}
_BLOCK_MODULES = {
    "self_attn_layer_norm": "attn_ln",
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}
_POSITIONAL_EMBEDDINGS = {
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
}
_MLX_BLOCK_MODULES = {"mlp1": "mlp.0", "mlp2": "mlp.2"}
_THEIRS = {
    ours: theirs
    for table in (_MODULES, _BLOCK_MODULES, _POSITIONAL_EMBEDDINGS)
    for theirs, ours in table.items()
}
"""By OpenAI's names."""
EMBEDDING = "decoder.token_embedding.weight"
OUTPUT = "proj_out.weight"
_PREFIX = re.compile(r".*?\b(?=(encoder|decoder|proj_out)\.)")
_BLOCK = re.compile(r"(encoder|decoder)\.(?:layers|blocks)\.(\d+)\.(.+)")


def declared_dims(file: Path, config: Mapping[str, object]) -> dict[str, Declared]:
    """Return the dimensions that a configuration declares, under the names of transformers or OpenAI's."""
    names = ((ours, name) for ours, theirs in DIMENSIONS.items() for name in (ours, theirs))
    return declared_by(file, {ours: config[name] for ours, name in names if name in config})


def dims_beside(folder: Path) -> tuple[dict[str, Declared], list[WatchedFile]]:
    """Return the dimensions that a config.json in a folder declares, and that file; nothing if it declares none."""
    file = watch(folder / "config.json")
    declared = declared_dims(file.path, read_object(file.path, optional=True))
    return declared, [file] if declared else []


def openai_name_of(name: str) -> str:
    """Return OpenAI's name of a weight of transformers, MLX or OpenAI, whatever modules it is wrapped in.

    `assemble` rejects unknown names, which are returned unchanged.
    """
    name = _PREFIX.sub("", name, count=1)
    if name in _POSITIONAL_EMBEDDINGS:
        return _POSITIONAL_EMBEDDINGS[name]
    module, _, leaf = name.rpartition(".")
    if block := _BLOCK.fullmatch(module):
        side, layer, part = block.groups()
        return f"{side}.blocks.{layer}.{(_BLOCK_MODULES | _MLX_BLOCK_MODULES).get(part, part)}.{leaf}"
    return f"{_MODULES.get(module, module)}.{leaf}"


def openai_tensors(path: Path, stored: Iterable[tuple[str, LazyTensor]]) -> dict[str, LazyTensor]:
    """Return the tensors of a file by OpenAI's names.

    Two of one name are refused: nothing says which of them is the model's.
    """
    tensors: dict[str, LazyTensor] = {}
    names: dict[str, str] = {}
    for name, tensor in stored:
        ours = openai_name_of(name)
        if ours in names:
            raise CheckpointError(
                f"{path}: holds {ours[:80]} twice, as {names[ours][:80]!r} and {name[:80]!r}, allowed is once"
            )
        tensors[ours], names[ours] = tensor, name
    return tensors


def without_output(path: Path, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Return tensors without the matrix of the output, which is the token embedding in Whisper.

    One that is another is refused; of quantised ones this is seen if both are of one type.
    """
    output, embedding = tensors.get(OUTPUT), tensors.get(EMBEDDING)
    if output and embedding and output is not embedding:
        types = {output.stored_dtype, embedding.stored_dtype}
        if (len(types) == 1 or types <= {*FLOATS.values()}) and not _are_equal(output.read(), embedding.read()):
            raise CheckpointError(
                f"{path}: {OUTPUT} and the token embedding differ, allowed is one matrix for both, as Whisper has"
            )
    return {name: tensor for name, tensor in tensors.items() if name != OUTPUT}


def _are_equal(first: Array, second: Array) -> bool:
    """Return whether two matrices are the same in the precision of the coarser."""
    coarser = min(first.dtype, second.dtype, key=lambda dtype: dtype.itemsize)
    with np.errstate(over="ignore"):
        return np.array_equal(first.astype(coarser), second.astype(coarser))


def hf_name_of(openai_name: str) -> str:
    """Return the transformers name of a weight, without the prefix ``model.``."""
    if openai_name in _THEIRS:
        return _THEIRS[openai_name]
    module, _, leaf = openai_name.rpartition(".")
    if block := _BLOCK.fullmatch(module):
        side, layer, part = block.groups()
        return f"{side}.layers.{layer}.{_THEIRS[part]}.{leaf}"
    return f"{_THEIRS.get(module, module)}.{leaf}"
