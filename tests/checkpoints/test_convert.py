"""Conversion: what is written is read back as the same model, in float16."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_added_tokens import ADDED, FIRST, LAST, PADDING, TEXT, TIMESTAMPS, open_with

import checkpoint_files as files
from harken.audio import mel_filters
from harken.checkpoints import open_checkpoint
from harken.checkpoints.convert import TARGETS, convert
from harken.errors import CheckpointError
from harken.text import Tokenizer
from harken.text.bpe import merges_of
from harken.text.vocabulary import builtin_tokens
from tiny_models import DIMS, TOKENIZER


@pytest.mark.parametrize("target", TARGETS)
def test_a_converted_model_is_the_same(tmp_path: Path, target: str) -> None:
    dims = replace(DIMS, n_mels=80)
    weights = files.random_weights(dims)
    source = files.write_ggml(tmp_path / "m.bin", dims, weights, tokens=tuple(TOKENIZER.text_bytes()))
    result = open_checkpoint(convert(open_checkpoint(source), tmp_path / "to", target, mel_filters(80)))
    assert (result.format, result.dims) == (target, dims)
    for name, values in weights.items():
        np.testing.assert_array_equal(result.weights[name], values, err_msg=name)
    assert Tokenizer.from_source(result.vocabulary, dims.n_vocab).has_same_vocabulary(TOKENIZER)


@pytest.mark.parametrize("target", ["huggingface", "ctranslate2"])
def test_tokens_keep_the_ids_that_the_model_has(tmp_path: Path, target: str) -> None:
    vocabulary = TEXT + FIRST + LAST + TIMESTAMPS + ADDED
    checkpoint = open_with(tmp_path, vocabulary, len(vocabulary) + PADDING)
    converted = open_checkpoint(convert(checkpoint, tmp_path / "to", target, mel_filters(80)))
    assert converted.dims == checkpoint.dims
    assert converted.vocabulary.arrangement == checkpoint.vocabulary.arrangement
    for name, values in checkpoint.weights.items():
        np.testing.assert_array_equal(converted.weights[name], values.astype(np.float16), err_msg=name)
    (tmp_path / "to" / "tokenizer.json").unlink()  # CTranslate2 reads its own list
    if target == "ctranslate2":
        again = open_checkpoint(tmp_path / "to").vocabulary.arrangement
        assert again == checkpoint.vocabulary.arrangement
    with pytest.raises(CheckpointError, match="tokens of its own, of which a ggml file does not say"):
        convert(checkpoint, tmp_path / "ggml", "ggml", mel_filters(80))


@pytest.mark.parametrize("n_vocab", [51864, 51865])
def test_tokens_of_openai_are_read_back(tmp_path: Path, n_vocab: int) -> None:
    dims = replace(DIMS, n_mels=80, n_vocab=n_vocab)
    source = files.write_openai(tmp_path / "m.pt", dims, files.random_weights(dims))
    converted = open_checkpoint(
        convert(open_checkpoint(source), tmp_path / "to", "huggingface", mel_filters(80))
    )
    tokenizer = Tokenizer.from_source(converted.vocabulary, n_vocab)
    assert tokenizer.has_same_vocabulary(Tokenizer.builtin(n_vocab))
    template = json.loads((tmp_path / "to" / "tokenizer.json").read_text())["post_processor"]
    around = (tokenizer.sot, tokenizer.no_timestamps, tokenizer.eot)
    assert [entry["ids"] for entry in template["special_tokens"].values()] == [[token] for token in around]


def test_padding_is_no_token_of_its_own(tmp_path: Path) -> None:
    vocabulary = TEXT + FIRST + LAST + TIMESTAMPS
    vocabulary[258:260] = ["<|en|>", "<|zh|>"]  # the order of OpenAI
    checkpoint = open_with(tmp_path, vocabulary, len(vocabulary) + PADDING)
    path = convert(checkpoint, tmp_path / "ggml", "ggml", mel_filters(80))
    assert open_checkpoint(path).dims.n_vocab == len(vocabulary)


def test_merges_follow_from_the_vocabulary() -> None:
    tokens = builtin_tokens(multilingual=False)[:8000]  # of which each is made of tokens before it
    merges = merges_of(tokens)
    assert [left + right for left, right in merges] == tokens[256:]
    assert merges[:3] == [("Ġ", "t"), ("Ġ", "a"), ("h", "e")]


def test_values_that_do_not_fit_float16_are_refused(tmp_path: Path) -> None:
    weights = files.random_weights(DIMS, dtype=np.float32)
    weights["decoder.ln.bias"][0] = 1e6
    source = files.write_ggml(tmp_path / "m.bin", DIMS, weights, tokens=tuple(TOKENIZER.text_bytes()))
    with pytest.raises(CheckpointError, match="values above 65504, which do not fit into float16"):
        convert(open_checkpoint(source), tmp_path / "to", "huggingface", mel_filters(80))
    assert not (tmp_path / "to" / "model.safetensors").exists()
