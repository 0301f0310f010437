"""Conversion of a checkpoint of any format into one that other programs read: Hugging Face, CTranslate2 or GGML.

Weights are written as float16, one after the other, so that no more than a matrix is in memory. Files of the tokenizer
that a format needs and the model has not are made from its vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harken.checkpoints import ctranslate2, ggml
from harken.checkpoints.checkpoint import Checkpoint
from harken.checkpoints.huggingface import COPIED_FILES, export, in_model_order
from harken.checkpoints.model_files import Array, check_text_size
from harken.errors import CheckpointError, OutputError
from harken.files import wrap_os_errors, write_atomic
from harken.text import LANGUAGES, Tokenizer
from harken.text.vocabulary import merges_of
from harken.types import Dims

TARGETS = ("huggingface", "ctranslate2", "ggml")
GGML_FILE = "ggml-model.bin"
_FILES_OF_MODELS = ("model.bin", "model.safetensors", "config.json")
"""Weights and configurations of the two formats that are folders."""


def convert(checkpoint: Checkpoint, folder: Path, target: str, mel_filters: Array) -> Path:
    """Write a checkpoint in another format, one of `TARGETS`, and return what to open.

    Adapters are merged. The folder is created if it does not exist; one with a model that this would overwrite is
    refused. A file of ggml contains the mel filters, of shape (n_mels, 201).

    Raises
    ------
    CheckpointError
        If the model is damaged, or the format cannot hold it.
    OutputError
        If it cannot be written, or there is a model.
    """
    tokenizer = checkpoint.vocabulary.tokenizer(checkpoint.dims.n_vocab)
    dims, weights = in_model_order(checkpoint.dims, checkpoint.weights, tokenizer)
    languages = [*tokenizer.language_tokens]
    if target == "ggml" and (
        not tokenizer.has_timestamps
        or [*tokenizer.model_ids] != [*range(dims.n_vocab)]
        or languages != [*LANGUAGES][: len(languages)]
    ):
        raise CheckpointError(
            f"{checkpoint.path}: its vocabulary has tokens of its own, of which a ggml file does not say which they "
            "are; allowed are huggingface and ctranslate2"
        )
    with wrap_os_errors(folder):
        for name in [GGML_FILE] if target == "ggml" else _FILES_OF_MODELS:
            if (folder / name).exists():
                raise OutputError(f"{folder}: holds {name} of a model; allowed is a folder without one")
        folder.mkdir(parents=True, exist_ok=True)
    if target == "ggml":
        write_atomic(folder / GGML_FILE, ggml.serialize(dims, weights, tokenizer.text_bytes(), mel_filters))
        return folder / GGML_FILE
    generation = _generation_config(checkpoint, tokenizer)
    files = _files(generation, tokenizer, dims)
    if target == "ctranslate2":
        files["vocabulary.json"] = _json(_tokens_by_id(tokenizer, dims.n_vocab))
    for name, content in files.items():
        own = checkpoint.path.with_name(name)
        if is_own := name in COPIED_FILES and own.is_file():
            check_text_size(own)
        write_atomic(folder / name, [own.read_bytes() if is_own else content])
    # Last: what an interruption leaves is no model, so not one with another vocabulary, and is written over.
    if target == "huggingface":
        export(folder, checkpoint.dims, checkpoint.weights, tokenizer)
    else:
        write_atomic(folder / "model.bin", ctranslate2.serialize(dims, weights))
        write_atomic(folder / "config.json", _json(_ctranslate2_config(generation, tokenizer)))
    return folder


def _generation_config(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, Any]:
    ids = tokenizer.model_ids
    specials = [tokenizer.sot, tokenizer.translate, tokenizer.transcribe, tokenizer.sot_lm]
    specials += [tokenizer.sot_prev, tokenizer.no_speech]
    generation: dict[str, Any] = {
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), ids[tokenizer.eot]),
        "decoder_start_token_id": ids[tokenizer.sot],
        "no_timestamps_token_id": ids[tokenizer.no_timestamps],
        "prev_sot_token_id": ids[tokenizer.sot_prev],
        "is_multilingual": tokenizer.multilingual,
        "max_initial_timestamp_index": 50,
        "max_length": checkpoint.dims.n_text_ctx,
        "return_timestamps": False,
        "suppress_tokens": sorted(ids[token] for token in (*tokenizer.non_speech_tokens, *specials)),
        "begin_suppress_tokens": [ids[token] for token in tokenizer.blank_tokens],
    }
    if tokenizer.multilingual:
        generation["lang_to_id"] = {
            f"<|{code}|>": ids[token] for code, token in tokenizer.language_tokens.items()
        }
        generation["task_to_id"] = {name: ids[getattr(tokenizer, name)] for name in ("translate", "transcribe")}
        # Without a task transformers leaves its token out of the prompt, and the text goes wrong.
        generation["task"] = "transcribe"
    if checkpoint.alignment_heads:
        generation["alignment_heads"] = [list(head) for head in checkpoint.alignment_heads]
    return generation


def _files(generation: dict[str, Any], tokenizer: Tokenizer, dims: Dims) -> dict[str, str]:
    """Return the files beside the weights, as transformers writes them."""
    return {
        "generation_config.json": _json(generation),
        "tokenizer.json": _json(_tokenizer_json(tokenizer)),
        "tokenizer_config.json": _json(
            {
                **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "<|endoftext|>"),
                **{"tokenizer_class": "WhisperTokenizer", "processor_class": "WhisperProcessor"},
                **{"add_prefix_space": False, "errors": "replace", "model_max_length": 1024},
            }
        ),
        "preprocessor_config.json": _json(
            {
                **{"feature_extractor_type": "WhisperFeatureExtractor", "processor_class": "WhisperProcessor"},
                **{"feature_size": dims.n_mels, "sampling_rate": 16000, "hop_length": 160, "n_fft": 400},
                **{"chunk_length": 30, "n_samples": 480000, "nb_max_frames": 3000},
                **{"padding_side": "right", "padding_value": 0.0, "return_attention_mask": False},
            }
        ),
    }


def _tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the tokenizer.json of the package tokenizers; text tokens that no merge makes are added ones."""
    tokens = tokenizer.vocabulary()
    merges = merges_of(tokens[: tokenizer.eot])
    merged = {left + right for left, right in merges}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {
            **{"id": tokenizer.model_ids[i], "content": token if special else tokenizer.describe_token(i)},
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "special": special and i < tokenizer.timestamp_begin,
        }
        for i, token in enumerate(tokens)
        if (special := i >= tokenizer.eot)
        or not (len(token) < 2 or token in merged)  # OpenAI's has an empty one
    ]
    ids = {entry["id"] for entry in added}
    vocabulary = {
        token: tokenizer.model_ids[i]
        for i, token in enumerate(tokens[: tokenizer.eot + 1])
        if i == tokenizer.eot or tokenizer.model_ids[i] not in ids
    }
    return {
        **{"version": "1.0", "truncation": None, "padding": None, "normalizer": None},
        "post_processor": _template(tokenizer),
        "added_tokens": sorted(added, key=lambda entry: entry["id"]),
        "pre_tokenizer": by_bytes,
        "decoder": by_bytes | {"add_prefix_space": True},
        "model": {
            **{"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False},
            **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), ""),
            **{"vocab": vocabulary, "merges": [f"{left} {right}" for left, right in merges]},
        },
    }


def _template(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the special tokens around a text, which programs that train read, as in OpenAI's own file."""
    around = [tokenizer.sot, tokenizer.no_timestamps, tokenizer.eot]
    names = [tokenizer.describe_token(token) for token in around]
    *start, end = ({"SpecialToken": {"id": name, "type_id": 0}} for name in names)
    first, second = ({"Sequence": {"id": text, "type_id": i}} for i, text in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [*start, first, end],
        "pair": [*start, first, second, end],
        "special_tokens": {
            name: {"id": name, "ids": [tokenizer.model_ids[token]], "tokens": [name]}
            for name, token in zip(names, around, strict=True)
        },
    }


def _tokens_by_id(tokenizer: Tokenizer, n_vocab: int) -> list[str]:
    tokens = [f"<|unused_{i}|>" for i in range(n_vocab)]
    end = tokenizer.model_ids[tokenizer.eot]
    for token, (i, name) in enumerate(zip(tokenizer.model_ids, tokenizer.vocabulary(), strict=True)):
        tokens[i] = name if i < end else tokenizer.describe_token(token)  # those that were added are text
    return tokens


def _ctranslate2_config(generation: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "suppress_ids": generation["suppress_tokens"],
        "suppress_ids_begin": generation["begin_suppress_tokens"],
        "lang_ids": [tokenizer.model_ids[token] for token in tokenizer.language_tokens.values()],
        "alignment_heads": generation.get("alignment_heads", []),
    }


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
