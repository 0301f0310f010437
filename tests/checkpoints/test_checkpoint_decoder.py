"""Tests of decoders without an encoder: opening, configuration, and whose encoder they share."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from checkpoint_files import raises_checkpoint_error
from harken.checkpoints import Checkpoint, encoder_digest, open_checkpoint, shares_encoder

WEIGHTS = files.random_weights()
DECODER = files.decoder_of(WEIGHTS)


def write(directory: Path, **config: object) -> Path:
    """Write a decoder as transformers does, with the configuration of the whole model."""
    return files.write_huggingface(directory, files.TINY, DECODER, config=config)


def write_model(path: Path, weights: files.Arrays = WEIGHTS) -> Checkpoint:
    return open_checkpoint(files.write_openai(path, files.TINY, weights))


@pytest.mark.parametrize("torch", [False, True], ids=["safetensors", "torch"])
@pytest.mark.parametrize("shards", [1, 2])
def test_decoder_without_encoder_opens(tmp_path: Path, torch: bool, shards: int) -> None:
    files.write_huggingface(tmp_path, files.TINY, DECODER, shards=shards, torch=torch)
    checkpoint = open_checkpoint(tmp_path, assistant=True)
    assert not checkpoint.has_encoder
    assert checkpoint.dims == files.TINY.without_encoder()
    assert set(checkpoint.weights) == set(DECODER)
    assert checkpoint.encoder_sha256 is checkpoint.draft_vocabulary is None


@pytest.mark.parametrize("layers", [0, 2, 12, -1, "many"])
def test_declared_encoder_layers_of_a_decoder_are_ignored(tmp_path: Path, layers: object) -> None:
    assert open_checkpoint(write(tmp_path, encoder_layers=layers), assistant=True).dims.n_audio_layer == 0


def test_decoder_as_main_model_is_rejected_with_advice(tmp_path: Path) -> None:
    write(tmp_path)
    with raises_checkpoint_error(
        r"model\.safetensors: has no encoder: give it as assistant of the model that it was made from"
    ):
        open_checkpoint(tmp_path)
    with raises_checkpoint_error("has no encoder"):
        encoder_digest(open_checkpoint(tmp_path, assistant=True))


def test_encoder_dimensions_must_be_declared(tmp_path: Path) -> None:
    path = files.write_openai(tmp_path / "m.pt", files.TINY, DECODER)
    assert not open_checkpoint(path, assistant=True).has_encoder
    write(tmp_path)
    (tmp_path / "config.json").write_text('{"encoder_attention_heads": 2, "decoder_attention_heads": 2}')
    with raises_checkpoint_error("does not declare n_mels, n_audio_ctx"):
        open_checkpoint(tmp_path / "model.safetensors", assistant=True)


def test_harken_entry_of_the_configuration_is_read(tmp_path: Path) -> None:
    entry = {"encoder_sha256": "0f" * 32, "draft_vocabulary": [0, 3, 95], "later": "is ignored"}
    checkpoint = open_checkpoint(write(tmp_path, harken=entry), assistant=True)
    assert checkpoint.encoder_sha256 == "0f" * 32
    assert checkpoint.draft_vocabulary is not None
    assert checkpoint.draft_vocabulary.dtype == np.int64
    assert checkpoint.draft_vocabulary.tolist() == [0, 3, 95]


def test_encoder_digest_hashes_names_shapes_and_float32_values_whatever_the_format(tmp_path: Path) -> None:
    expected = hashlib.sha256()
    for name in sorted(WEIGHTS):
        if name.startswith("encoder."):
            expected.update(f"{name} {WEIGHTS[name].shape}\n".encode() + WEIGHTS[name].astype("<f4").tobytes())
    single = {name: values.astype(np.float32) for name, values in WEIGHTS.items()}
    other_decoder = files.decoder_of(files.random_weights(seed=1))
    for path in (
        files.write_openai(tmp_path / "m.pt", files.TINY, WEIGHTS),
        files.write_huggingface(tmp_path / "hf", files.TINY, single, shards=2),
        files.write_ctranslate2(tmp_path / "ct2", files.TINY, WEIGHTS),
        files.write_huggingface(tmp_path / "other", files.TINY, {**WEIGHTS, **other_decoder}),
    ):
        assert encoder_digest(open_checkpoint(path)) == expected.hexdigest()


@pytest.mark.parametrize("name", ["encoder.conv1.bias", "encoder.blocks.1.mlp.2.weight"])
def test_encoder_digest_changes_with_every_weight(tmp_path: Path, name: str) -> None:
    changed = {**WEIGHTS, name: WEIGHTS[name].copy()}
    changed[name][-1] += 1
    one, other = write_model(tmp_path / "1.pt"), write_model(tmp_path / "2.pt", changed)
    assert encoder_digest(one) != encoder_digest(other)
    assert not shares_encoder(other, one)
    assert shares_encoder(one, one)


def test_encoders_of_different_size_are_compared_without_reading_weights(tmp_path: Path) -> None:
    model, longer = write_model(tmp_path / "m.pt"), replace(files.TINY, n_audio_ctx=14)
    path = files.write_openai(tmp_path / "longer.pt", longer, files.random_weights(longer))
    assistant = open_checkpoint(path)
    path.unlink()  # reading the weights would fail now
    assert not shares_encoder(assistant, model)


def test_decoder_shares_the_encoder_that_it_was_made_for(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.pt")

    def decoder(**config: object) -> Checkpoint:
        return open_checkpoint(write(tmp_path / "d", **config), assistant=True)

    assert shares_encoder(decoder(), model)
    assert shares_encoder(decoder(harken={"encoder_sha256": encoder_digest(model)}), model)
    with raises_checkpoint_error(f"made for the encoder 0f0f0f0f, .*m.pt has {encoder_digest(model)[:8]}"):
        shares_encoder(decoder(harken={"encoder_sha256": "0f" * 32}), model)
    with raises_checkpoint_error("made for n_audio_ctx=14, .*m.pt has n_audio_ctx=12"):
        shares_encoder(decoder(max_source_positions=14), model)
