"""Decoders without an encoder, whose encoder they share, and assistants that are changes of a small one."""

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest

import checkpoint_files as files
from checkpoint_files import raises_checkpoint_error
from harken.checkpoints import assistant, encoder_digest, find_assistant, open_checkpoint, shares_encoder
from harken.checkpoints.adapter import serialize_adapter
from harken.checkpoints.assistant import ASSISTANT_FILE, serialize_assistant
from harken.checkpoints.huggingface import export
from harken.errors import CheckpointNotFound
from real_models import model_path
from tiny_models import DIMS, TOKENIZER

WEIGHTS = files.random_weights()
DECODER = files.decoder_of(WEIGHTS)


def write(directory, **config):
    """Write a decoder as transformers does, with the configuration of the whole model."""
    return files.write_huggingface(directory, files.TINY, DECODER, config=config)


def write_model(path, weights=WEIGHTS):
    return open_checkpoint(files.write_openai(path, files.TINY, weights))


@pytest.mark.parametrize("torch", [False, True], ids=["safetensors", "torch"])
@pytest.mark.parametrize("shards", [1, 2])
def test_decoder_without_encoder_opens(tmp_path, torch, shards):
    files.write_huggingface(tmp_path, files.TINY, DECODER, shards=shards, torch=torch)
    checkpoint = open_checkpoint(tmp_path, assistant=True)
    assert not checkpoint.dims.has_encoder
    assert checkpoint.dims == files.TINY.without_encoder()
    assert set(checkpoint.weights) == set(DECODER)
    assert checkpoint.encoder_sha256 is checkpoint.draft_vocabulary is None


def test_configuration_of_a_decoder_is_read(tmp_path):
    for layers in (0, 2, 12, -1, "many"):  # which are of the whole model
        path = write(tmp_path / str(layers), encoder_layers=layers)
        assert open_checkpoint(path, assistant=True).dims.n_audio_layer == 0
    entry = {"encoder_sha256": "0f" * 32, "draft_vocabulary": [0, 3, 95], "later": "is ignored"}
    checkpoint = open_checkpoint(write(tmp_path, harken=entry), assistant=True)
    assert checkpoint.encoder_sha256 == "0f" * 32
    assert checkpoint.draft_vocabulary is not None
    assert checkpoint.draft_vocabulary.dtype == np.int64
    assert checkpoint.draft_vocabulary.tolist() == [0, 3, 95]
    assert not open_checkpoint(
        files.write_openai(tmp_path / "m.pt", files.TINY, DECODER), assistant=True
    ).dims.has_encoder


def test_decoder_as_main_model_or_without_the_dimensions_of_its_encoder_is_refused(tmp_path):
    write(tmp_path)
    advice = "give it as assistant of the model that it was made from"
    with raises_checkpoint_error(rf"model\.safetensors: has no encoder: {advice}"):
        open_checkpoint(tmp_path)
    with raises_checkpoint_error("has no encoder"):
        encoder_digest(open_checkpoint(tmp_path, assistant=True))
    (tmp_path / "config.json").write_text('{"encoder_attention_heads": 2, "decoder_attention_heads": 2}')
    with raises_checkpoint_error("does not declare n_mels, n_audio_ctx"):
        open_checkpoint(tmp_path / "model.safetensors", assistant=True)


def test_encoder_digest_hashes_names_shapes_and_float32_values_whatever_the_format(tmp_path):
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


def test_encoder_is_shared_with_equal_weights_alone_and_other_sizes_are_seen_without_reading(tmp_path):
    one = write_model(tmp_path / "1.pt")
    assert shares_encoder(one, one)
    for name in ("encoder.conv1.bias", "encoder.blocks.1.mlp.2.weight"):
        changed = {**WEIGHTS, name: WEIGHTS[name].copy()}
        changed[name][-1] += 1
        other = write_model(tmp_path / "2.pt", changed)
        assert encoder_digest(one) != encoder_digest(other)
        assert not shares_encoder(other, one)
    longer = replace(files.TINY, n_audio_ctx=14)
    path = files.write_openai(tmp_path / "longer.pt", longer, files.random_weights(longer))
    assistant = open_checkpoint(path)
    path.unlink()  # reading the weights would fail now
    assert not shares_encoder(assistant, one)


def test_decoder_shares_the_encoder_that_it_was_made_for(tmp_path):
    model = write_model(tmp_path / "m.pt")

    def decoder(**config):
        return open_checkpoint(write(tmp_path / "d", **config), assistant=True)

    assert shares_encoder(decoder(), model)
    assert shares_encoder(decoder(harken={"encoder_sha256": encoder_digest(model)}), model)
    with raises_checkpoint_error(f"made for the encoder 0f0f0f0f, .*m.pt has {encoder_digest(model)[:8]}"):
        shares_encoder(decoder(harken={"encoder_sha256": "0f" * 32}), model)
    with raises_checkpoint_error("made for n_audio_ctx=14, .*m.pt has n_audio_ctx=12"):
        shares_encoder(decoder(max_source_positions=14), model)


# --- assistants --------------------------------------------------------------------------------------------

RANK = 3
NARROW = replace(DIMS, n_audio_state=32, n_text_state=32)
CHANGED, STITCHED, VECTOR = "attn.query.weight", "cross_attn.value.weight", "mlp_ln.bias"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    export(folder, NARROW, files.random_weights(NARROW, 3), TOKENIZER)
    return open_checkpoint(folder)


def assistant_changes():
    """Draw a change, a vector, and what attends to the wider encoder, in every layer."""
    rng = np.random.default_rng(0)
    shapes = {VECTOR: (32,), f"{CHANGED}.A": (RANK, 32), f"{CHANGED}.B": (32, RANK)}
    for name in ("cross_attn.key.weight", STITCHED):
        shapes |= {f"{name}.A": (RANK, DIMS.n_audio_state), f"{name}.B": (32, RANK)}
    return {
        f"decoder.blocks.{layer}.{name}": rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        for layer in range(NARROW.n_text_layer)
        for name, shape in shapes.items()
    }


def write_assistant(folder, changes, small):
    content = b"".join(serialize_assistant(changes, "0" * 64, str(small)))
    (folder / ASSISTANT_FILE).write_bytes(content)
    return folder


def test_an_assistant_is_the_decoder_of_a_small_model_with_its_changes(small, tmp_path):
    changes = assistant_changes()
    made = open_checkpoint(write_assistant(tmp_path, changes, small.path.parent), assistant=True)
    assert (made.dims.n_audio_state, made.dims.has_encoder, made.encoder_sha256) == (64, False, "0" * 64)
    assert {*made.weights} == {name for name in small.weights if name.startswith("decoder.")}
    for name, values in made.weights.items():
        expected = np.zeros(1) if name.endswith(("cross_attn.key.weight", STITCHED)) else small.weights[name]
        if f"{name}.A" in changes:
            expected = expected + changes[f"{name}.B"] @ changes[f"{name}.A"]
        np.testing.assert_allclose(values, changes.get(name, expected), rtol=1e-6, atol=1e-6, err_msg=name)
    assert open_checkpoint(made.path, assistant=True).weights.digest == made.weights.digest
    for path in (tmp_path, made.path):
        with raises_checkpoint_error("has no encoder: give it as assistant of the model"):
            open_checkpoint(path)


FIRST = "decoder.blocks.0."
ASSISTANTS_THAT_DO_NOT_FIT = [
    ({"decoder.blocks.9.mlp_ln.bias": np.zeros(32)}, "which .* has not"),
    ({f"{FIRST}{VECTOR}": np.zeros(31)}, r"has shape \(31,\), allowed is \(32,\)"),
    ({f"{FIRST}{STITCHED}.A": np.zeros((RANK, 8))}, "has shape"),
    ({f"{FIRST}{STITCHED}.B": np.zeros((32, 9))}, "factors B and A have the shapes"),
    ({f"{FIRST}{CHANGED}.A": None}, "None"),
]


def test_an_assistant_that_does_not_fit_is_refused(small, tmp_path):
    for changes, message in ASSISTANTS_THAT_DO_NOT_FIT:
        changed = {**assistant_changes(), **changes}
        fitting = {name: values for name, values in changed.items() if values is not None}
        write_assistant(tmp_path, fitting, small.path.parent)
        with raises_checkpoint_error(f"{re.escape(str(tmp_path))}.*{message}"):
            open_checkpoint(tmp_path, assistant=True)
    with pytest.raises(CheckpointNotFound, match="nowhere"):
        open_checkpoint(write_assistant(tmp_path, assistant_changes(), tmp_path / "nowhere"), assistant=True)
    (tmp_path / ASSISTANT_FILE).write_bytes(b"".join(serialize_adapter({}, "", hears="live")))
    with raises_checkpoint_error("its format is .harken-adapter-1."):
        open_checkpoint(tmp_path, assistant=True)


def test_an_assistant_is_found_by_the_name_of_the_small_model_and_the_encoder_of_the_other(
    small, tmp_path, monkeypatch
):
    monkeypatch.setattr(assistant, "ASSISTANTS", tmp_path)
    mains = []
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        export(tmp_path / str(seed), DIMS, files.random_weights(DIMS, seed), TOKENIZER)
        mains.append(open_checkpoint(tmp_path / str(seed)))
    content = serialize_assistant(assistant_changes(), encoder_digest(mains[0]), "tiny")
    (tmp_path / "a.safetensors").write_bytes(b"".join(content))
    asked = []

    def open_model(name):
        asked.append(name)
        return small

    assert [find_assistant(main, open_model) is not None for main in (*mains, small)] == [True, False, False]
    assert {*asked} == {"tiny"}

    def is_not_here(name):
        raise CheckpointNotFound(name)

    assert find_assistant(mains[0], is_not_here) is None


@pytest.mark.real
def test_assistant_that_comes_with_harken_is_found_for_the_model_it_was_trained_for():
    tiny, small = (open_checkpoint(model_path(name)) for name in ("tiny", "small"))
    made = find_assistant(small, {"tiny": tiny}.__getitem__)
    assert made
    assert (made.dims.n_audio_state, made.dims.n_text_state) == (768, 384)
    assert made.encoder_sha256 == encoder_digest(small)
    assert find_assistant(tiny, {"tiny": tiny}.__getitem__) is None
