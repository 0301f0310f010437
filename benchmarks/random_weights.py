"""Random weights with a published model's dimensions, and checkpoints of them in the formats of several engines.

A window of any audio gives the same number of tokens in every engine: the embeddings of positions have a part that
makes the end of text improbable up to a position, and certain from there on. Control tokens and timestamps are never
likely. So engines do equal work, greedily and with beams, and nothing needs to be told to stop.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harken.text import Tokenizer
    from harken.types import Dims

# n_mels, encoder and decoder width, heads, encoder layers, decoder layers, vocabulary
SIZES = {
    "tiny": (80, 384, 6, 4, 4, 51865),
    "small": (80, 768, 12, 12, 12, 51865),
    "large-v3-turbo": (128, 1280, 20, 32, 4, 51866),
    "large-v3": (128, 1280, 20, 32, 32, 51866),
}
PROMPT_LENGTH = 4
"""Start, language, task and <|notimestamps|>."""
POSITION_PART, END_PART, CONTROL_PART = 3.0, 1.0, 0.5
"""Sizes of the part of an embedding that says whether the text has ended, in every entry."""


def make_dims(name: str) -> Dims:
    """Return the dimensions of a published model."""
    from harken.types import Dims

    n_mels, state, heads, audio_layers, text_layers, vocabulary = SIZES[name]
    return Dims(
        n_mels=n_mels, n_audio_ctx=1500, n_audio_state=state, n_audio_head=heads, n_audio_layer=audio_layers,
        n_vocab=vocabulary, n_text_ctx=448, n_text_state=state, n_text_head=heads, n_text_layer=text_layers,
    )  # fmt: skip


def draw_weights(dims: Dims) -> Mapping[str, NDArray[Any]]:
    """Return random weights that keep activations near one, in half precision as published weights are."""
    import numpy as np

    from harken.checkpoints.weight_shapes import expected_shapes

    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in expected_shapes(dims).items():
        scale = 0.02 if len(shape) > 1 else 0.1
        values = scale * rng.standard_normal(shape, np.float32)
        weights[name] = (values + (name.endswith(("ln.weight", "ln_post.weight")))).astype(np.float16)
    return weights


def write_checkpoint(folder: Path, dims: Dims, vocabulary_of: str, n_tokens: int) -> None:
    """Write a checkpoint as a Hugging Face directory.

    Parameters
    ----------
    folder : Path
    dims : Dims
    vocabulary_of : str
        Name or path of a multilingual model with a tokenizer.json, whose text tokens it gets.
    n_tokens : int
        Tokens of every window, without those of the prompt and the end.
    """
    from export_genai import generation_config, preprocessor_config, tokenizer_config
    from harken.checkpoints import open_checkpoint, resolve_model
    from harken.checkpoints.huggingface import export
    from harken.text import Tokenizer

    vocabulary = open_checkpoint(resolve_model(vocabulary_of)).vocabulary
    if vocabulary.path is None or vocabulary.path.name != "tokenizer.json":
        sys.exit(f"{vocabulary_of}: has no tokenizer.json; allowed is a multilingual model with one")
    tokenizer = Tokenizer.from_source(vocabulary, dims.n_vocab)
    folder.mkdir(parents=True)
    export(folder, dims, draw_ending_weights(dims, tokenizer, n_tokens), tokenizer)
    listed = json.loads(vocabulary.path.read_text(encoding="utf-8"))
    files = {
        "tokenizer.json": listed | {"added_tokens": added_tokens(tokenizer)},
        "tokenizer_config.json": tokenizer_config(),
        "preprocessor_config.json": preprocessor_config(dims),
        "generation_config.json": generation_config(tokenizer, None),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def convert(kind: str, checkpoint: Path, to: Path) -> Path:
    """Return the checkpoint as an engine takes it, with 8-bit weights; it is converted if need be."""
    if kind == "faster-whisper":
        converter = Path(sys.executable).with_name("ct2-transformers-converter")
        files = ("tokenizer.json", "preprocessor_config.json")
        arguments = (
            "--model",
            checkpoint,
            "--output_dir",
            to,
            "--quantization",
            "int8",
            "--copy_files",
            *files,
        )
        subprocess.run([converter, *map(str, arguments)], check=True, stdout=sys.stderr)
        return to
    if kind == "openvino-genai":
        from export_genai import export as export_openvino

        export_openvino(checkpoint, to)
        return to
    return checkpoint


def draw_ending_weights(dims: Dims, tokenizer: Tokenizer, n_tokens: int) -> Mapping[str, NDArray[Any]]:
    """Draw weights of a model that ends every text after so many tokens."""
    import numpy as np

    weights = dict(draw_weights(dims))
    ended = np.random.default_rng(1).choice(np.array([-1, 1], np.float16), dims.n_text_state)
    last_prompt = PROMPT_LENGTH - 1
    weights["decoder.positional_embedding"][: last_prompt + n_tokens] -= np.float16(POSITION_PART) * ended
    weights["decoder.positional_embedding"][last_prompt + n_tokens :] += np.float16(POSITION_PART) * ended
    embedding = weights["decoder.token_embedding.weight"]
    embedding[tokenizer.eot :] = np.float16(CONTROL_PART) * ended
    embedding[tokenizer.eot] = np.float16(END_PART) * ended
    return weights


def added_tokens(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the entries of a tokenizer.json for all tokens that are no text."""
    names = {
        tokenizer.eot: "endoftext",
        tokenizer.sot: "startoftranscript",
        **{token: code for code, token in tokenizer.language_tokens.items()},
        tokenizer.translate: "translate",
        tokenizer.transcribe: "transcribe",
        tokenizer.sot_lm: "startoflm",
        tokenizer.sot_prev: "startofprev",
        tokenizer.no_speech: "nospeech",
        tokenizer.no_timestamps: "notimestamps",
        **{
            token: f"{(token - tokenizer.timestamp_begin) / 50:.2f}"
            for token in range(tokenizer.timestamp_begin, tokenizer.n_vocab)
        },
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": token, "content": f"<|{names[token]}|>", **flags} for token in sorted(names)]
