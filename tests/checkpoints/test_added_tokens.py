"""Models whose vocabulary has tokens of its own, or has lost some: their special tokens are where their files say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
import harken
from harken.checkpoints import Checkpoint, open_checkpoint
from harken.checkpoints.checkpoint import EMBEDDING
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.text.bpe import bytes_to_unicode

TEXT = [bytes_to_unicode(bytes([byte])) for byte in range(256)]
FIRST = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"]
LAST = ["<|startoflm|>", "<|startofprev|>", "<|nocaptions|>", "<|notimestamps|>"]
TIMESTAMPS = [f"<|{i / 50:.2f}|>" for i in range(1501)]
ADDED = ["[UH]", "<|gsw|>", "äh"]
PADDING = 3


def open_with(tmp_path: Path, vocabulary: list[str], n_vocab: int, file: str = "tokenizer.json") -> Checkpoint:
    """Write a model with this vocabulary, whose embeddings begin with their ids, and open it."""
    dims = replace(files.TINY, n_vocab=n_vocab)
    weights = {**files.random_weights(dims)}
    weights[EMBEDDING] = weights[EMBEDDING].astype(np.float32)
    weights[EMBEDDING][:, 0] = np.arange(n_vocab)
    folder = files.write_huggingface(tmp_path / file, dims, weights)
    ids = {token: i for i, token in enumerate(vocabulary)}
    base = {token: i for token, i in ids.items() if i < 256}
    added = {token: i for token, i in ids.items() if i >= 256}
    if file == "tokenizer.json":
        entries = [{"id": i, "content": token} for token, i in added.items()]
        content: object = {"model": {"vocab": base}, "added_tokens": entries}
    elif file == "vocab.json":
        (folder / "added_tokens.json").write_text(json.dumps(added))
        content = base
    else:
        content = vocabulary
    (folder / file).write_text(json.dumps(content))
    return open_checkpoint(folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "vocab.json", "vocabulary.json"])
def test_added_tokens_are_text_and_languages_and_padding_is_left_out(tmp_path: Path, file: str) -> None:
    vocabulary = TEXT + FIRST + LAST + TIMESTAMPS + ADDED
    checkpoint = open_with(tmp_path, vocabulary, len(vocabulary) + PADDING, file)
    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    assert checkpoint.dims.n_vocab == tokenizer.n_vocab == len(vocabulary)
    ids = checkpoint.weights[EMBEDDING][:, 0].astype(int)
    np.testing.assert_array_equal(ids, tokenizer.model_ids)
    read_as = [vocabulary[i] for i in ids]
    for token, name in (
        (tokenizer.eot, "<|endoftext|>"),
        (tokenizer.no_speech, "<|nocaptions|>"),
        (tokenizer.timestamp_begin + 7, "<|0.14|>"),
        (tokenizer.language_tokens["de"], "<|de|>"),
        (tokenizer.sot_sequence("<|gsw|>")[1], "<|gsw|>"),
    ):
        assert read_as[token] == name
    assert tokenizer.decode([104, read_as.index("[UH]"), read_as.index("äh")]) == "h[UH]äh"
    with pytest.raises(OptionError, match="one of en, de, gsw"):
        tokenizer.sot_sequence("<|als|>")


def test_an_added_language_is_chosen_and_detected(tmp_path: Path) -> None:
    vocabulary = TEXT + FIRST + LAST + TIMESTAMPS + ADDED
    recognizer = harken.load(open_with(tmp_path, vocabulary, len(vocabulary)).path.parent, backend="numpy")
    silence = np.zeros(1600, np.float32)
    for how in ({"language": "<|gsw|>"}, {"languages": ["<|gsw|>"]}):
        transcription = recognizer.transcribe(silence, vad=False, fill_gaps=False, **how)
        assert transcription.result().language == "gsw"


def test_a_model_without_timestamps_transcribes_without(tmp_path: Path) -> None:
    checkpoint = open_with(tmp_path, TEXT + FIRST + LAST, 266 + PADDING)
    recognizer = harken.load(checkpoint.path.parent, backend="numpy")
    assert not recognizer.resolve_options().timestamps
    transcription = recognizer.transcribe(np.zeros(1600, np.float32), language="de", vad=False, fill_gaps=False)
    assert transcription.result().language == "de"


def test_timestamps_that_only_the_weights_have_are_known(tmp_path: Path) -> None:
    """Tokenizers of transformers before 2023 do not list them."""
    checkpoint = open_with(tmp_path, TEXT + FIRST + LAST, 266 + 1501 + PADDING)
    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    assert checkpoint.dims.n_vocab == 266 + 1501 == tokenizer.timestamp_begin + 1501
