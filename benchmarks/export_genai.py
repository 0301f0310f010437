"""Export of a Whisper model for OpenVINO GenAI's pipeline.

The pipeline reads OpenVINO graphs and an OpenVINO tokenizer. Both are exported here by optimum-intel from a Hugging
Face directory, which is written first from a checkpoint in any format that harken reads; nothing is downloaded.
Weights are compressed to 8 bits, with one scale for each output channel.

    pip install 'optimum-intel[openvino]' openvino-genai
    python benchmarks/export_genai.py tiny.en tiny.en-genai
    python benchmarks/export_genai.py base.en base.en-genai --tokenizer tiny.en/tokenizer.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harken.text import Tokenizer
    from harken.types import Dims

TASK = "automatic-speech-recognition-with-past"
MAX_TOKENS = 448
SAMPLE_RATE = 16_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="name or path of a Whisper model, in any format that harken reads")
    parser.add_argument("to", type=Path, help="directory for the graphs and the tokenizer")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE",
        help="tokenizer.json of the same vocabulary; by default the one beside the model's weights",
    )  # fmt: skip
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        write_hugging_face(args.model, Path(scratch), args.tokenizer)
        export(Path(scratch), args.to)


def write_hugging_face(model: str, folder: Path, tokenizer_json: Path | None = None) -> None:
    """Write a checkpoint as a Hugging Face directory with all that an export needs.

    Parameters
    ----------
    model : str
        Name or path, as `harken.load` takes it.
    folder : Path
    tokenizer_json : Path, optional
        Tokenizer of the same vocabulary, for checkpoints without one (ggml, ``.pt``).
    """
    from harken.checkpoints import open_checkpoint, resolve_model
    from harken.checkpoints.huggingface import export as write_weights
    from harken.text import Tokenizer

    checkpoint = open_checkpoint(resolve_model(model))
    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    source = tokenizer_json or checkpoint.vocabulary.path
    if source is None or source.name != "tokenizer.json":
        sys.exit(f"{model} has no tokenizer.json: name one of the same vocabulary with --tokenizer")
    write_weights(folder, checkpoint.dims, checkpoint.weights, tokenizer)
    files = {
        "tokenizer.json": with_timestamps(json.loads(source.read_text(encoding="utf-8")), tokenizer),
        "tokenizer_config.json": tokenizer_config(),
        "preprocessor_config.json": preprocessor_config(checkpoint.dims),
        "generation_config.json": generation_config(tokenizer, checkpoint.alignment_heads),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def with_timestamps(content: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer.json that lists the timestamps, too, which those beside CTranslate2 models leave out."""
    listed = {token["id"] for token in content["added_tokens"]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"] += [
        {"id": token, "content": f"<|{(token - tokenizer.timestamp_begin) / 50:.2f}|>", **flags}
        for token in range(tokenizer.timestamp_begin, tokenizer.n_vocab)
        if token not in listed
    ]
    return content


def tokenizer_config() -> dict[str, Any]:
    """Return the tokenizer_config.json of Whisper."""
    end = "<|endoftext|>"
    return {
        "tokenizer_class": "WhisperTokenizer",
        "model_max_length": 1024,
        "clean_up_tokenization_spaces": True,
        "add_prefix_space": False,
        "errors": "replace",
        **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), end),
    }


def preprocessor_config(dims: Dims) -> dict[str, Any]:
    """Return the preprocessor_config.json of Whisper: the log-mel of windows of 30 s."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": dims.n_mels,
        "sampling_rate": SAMPLE_RATE,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
        "n_samples": 30 * SAMPLE_RATE,
        "nb_max_frames": 3000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def generation_config(tokenizer: Tokenizer, heads: Any) -> dict[str, Any]:
    """Return the generation_config.json of a vocabulary: special tokens, suppressed tokens, languages."""
    config = {
        "decoder_start_token_id": tokenizer.sot,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eot),
        "prev_sot_token_id": tokenizer.sot_prev,
        "no_timestamps_token_id": tokenizer.no_timestamps,
        "begin_suppress_tokens": list(tokenizer.blank_tokens),
        "suppress_tokens": suppressed(tokenizer),
        "is_multilingual": tokenizer.multilingual,
        "max_initial_timestamp_index": 50,
        "max_length": MAX_TOKENS,
        "return_timestamps": False,
    }
    if heads:
        config["alignment_heads"] = [list(head) for head in heads]
    if tokenizer.multilingual:
        config["lang_to_id"] = {f"<|{code}|>": token for code, token in tokenizer.language_tokens.items()}
        config["task_to_id"] = {"transcribe": tokenizer.transcribe, "translate": tokenizer.translate}
    return config


def suppressed(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that openai-whisper suppresses by default: non-speech symbols and control tokens."""
    control = (
        tokenizer.sot, tokenizer.translate, tokenizer.transcribe, tokenizer.sot_lm, tokenizer.sot_prev,
        tokenizer.no_speech,
    )  # fmt: skip
    return sorted({*tokenizer.non_speech_tokens, *control})


def export(folder: Path, to: Path) -> None:
    """Export a Hugging Face directory to OpenVINO graphs with 8-bit weights."""
    if to.exists():
        shutil.rmtree(to)
    command = Path(sys.executable).with_name("optimum-cli")
    arguments = ("--model", folder, "--task", TASK, "--weight-format", "int8", to)
    subprocess.run([command, "export", "openvino", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
