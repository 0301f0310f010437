"""Export of trained weights as a Hugging Face directory, which harken and transformers load.

A decoder alone is a ``WhisperForCausalLM`` (transformers, models/whisper/modeling_whisper.py): the same names as in a
whole model, without an encoder, its output tied to the token embedding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from harken.checkpoints.huggingface import hf_name_of, make_config
from harken.checkpoints.safetensors import serialize_tensors
from harken.files import write_atomic
from harken.text import Tokenizer
from harken.types import Dims

COPIED_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json"),
    *("special_tokens_map.json", "normalizer.json", "preprocessor_config.json", "generation_config.json"),
)
"""Files of the main model that an export copies."""
WHOLE_MODEL_ARCHITECTURE, DECODER_ARCHITECTURE = "WhisperForConditionalGeneration", "WhisperForCausalLM"


def export(
    folder: Path,
    dims: Dims,
    weights: Mapping[str, NDArray[Any]],
    tokenizer: Tokenizer,
    *,
    source_folder: Path | None = None,
    harken_config: Mapping[str, Any] | None = None,
) -> None:
    """Write a model, or a decoder alone.

    Parameters
    ----------
    folder : Path
    dims : Dims
        Without encoder layers for a decoder alone.
    weights : mapping of str to ndarray
        By the names of the original state dict; written as float16.
    tokenizer : Tokenizer
    source_folder : Path, optional
        Folder of the model that the weights come from: the files of its tokenizer are copied.
    harken_config : mapping, optional
        Entry ``"harken"`` of config.json.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    hf_weights = {f"model.{hf_name_of(name)}": values for name, values in weights.items()}
    config = make_config(dims, DECODER_ARCHITECTURE if not dims.has_encoder else WHOLE_MODEL_ARCHITECTURE)
    config |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eot)
    config["decoder_start_token_id"] = tokenizer.sot
    if harken_config:
        config["harken"] = dict(harken_config)
    write_atomic(folder / "model.safetensors", serialize_tensors(hf_weights, {"format": "pt"}))
    write_atomic(folder / "config.json", [json.dumps(config, indent=1) + "\n"])
    for file in (source_folder / name for name in COPIED_FILES) if source_folder else ():
        if file.is_file():
            write_atomic(folder / file.name, [file.read_bytes()])
