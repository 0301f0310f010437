"""Which backend computes a model, which assistant drafts for it, and what is refused."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import checkpoint_files as files
import harken
from harken import api, backend_factory
from harken.backend_factory import BackendFactory
from harken.backends.native import NativeBackend
from harken.checkpoints import encoder_digest, open_checkpoint
from harken.decoding.speculation import DraftContext
from harken.errors import BackendUnavailable, CheckpointError, CheckpointNotFound, OptionError
from harken.text.vocabulary import bytes_to_unicode
from real_models import model_path
from tiny_models import TOKENIZER, StoredWeights

BIG = replace(files.TINY, n_vocab=TOKENIZER.n_vocab, n_text_layer=12)
SMALL = replace(BIG, n_text_layer=3)
FITTING = replace(SMALL, n_audio_state=64, n_audio_head=2, n_text_state=64, n_text_head=2)
"""Dimensions of models that the compiled engine can compute; those of the others have heads of 8."""
FACTORY = BackendFactory(backend="numpy")


def write(directory, dims, *, seed=0, encoder=True, backwards=False, **config):
    """Write a model with a vocabulary of bytes, in their order or backwards."""
    weights = files.random_weights(dims, seed)
    files.write_huggingface(directory, dims, weights if encoder else files.decoder_of(weights), config=config)
    order = [*range(256)][:: -1 if backwards else 1]
    vocabulary = {bytes_to_unicode(bytes([byte])): index for index, byte in enumerate(order)}
    (directory / "vocab.json").write_text(json.dumps({**vocabulary, "<|endoftext|>": 256}))
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    at = tmp_path_factory.mktemp("models")
    big = write(at / "big", BIG)
    of_big = {"encoder_sha256": encoder_digest(open_checkpoint(big)), "draft_vocabulary": [1, 2, 256]}
    others = {
        "n_mels": {"n_mels": 16},
        "n_audio_ctx": {"n_audio_ctx": 24},
        "n_text_ctx": {"n_text_ctx": 32},
        "fewer words": {"n_vocab": BIG.n_vocab - 1},
    }
    return {
        "big": big,
        "small": write(at / "small", SMALL, seed=1),
        "twin": write(at / "twin", SMALL),
        "decoder": write(at / "decoder", SMALL, encoder=False, harken=of_big),
        "stray": write(at / "stray", SMALL, encoder=False, harken={"encoder_sha256": "0f" * 32}),
        "wide": write(at / "wide", replace(SMALL, n_audio_state=64, n_text_state=64), encoder=False),
        "other words": write(at / "other words", SMALL, backwards=True),
        **{name: write(at / name, replace(SMALL, **changes)) for name, changes in others.items()},
    }


def make_speculative_decoder(assistant, model, factory=FACTORY):
    checkpoint = open_checkpoint(model)
    tokenizer = checkpoint.vocabulary.tokenizer(checkpoint.dims.n_vocab)
    opened = factory.open_assistant(assistant, checkpoint, tokenizer, model_name="the model", download=False)
    return factory.make_speculative_decoder(opened, checkpoint, clock=float)


def described(decoder):
    """Return whether it drafts by n-grams, the layers of its assistant, and whether that shares the encoder."""
    if (assistant := decoder.assistant) is None:
        return decoder.ngram, None, None
    dims = assistant.backend.dims
    assert dims.has_encoder is not assistant.shares_encoder
    return decoder.ngram, dims.n_text_layer, assistant.shares_encoder


# --- the assistant -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_all_sizes(tmp_path_factory):
    """Models of the compiled engine with decoders of 1, 19 and 20 layers, one of other words and one damaged."""
    at = tmp_path_factory.mktemp("models")
    one = replace(FITTING, n_text_layer=1)
    layers = {str(n): write(at / str(n), replace(one, n_text_layer=n)) for n in (1, 19, 20)}
    weights = files.random_weights(one, 1)
    weights["decoder.ln.weight"][0] = np.nan
    files.write_huggingface(shutil.copytree(layers["1"], at / "damaged"), one, weights)
    return layers | {"other words": write(at / "other words", one, backwards=True), "damaged": at / "damaged"}


@pytest.mark.parametrize(
    ("model", "available", "found"),
    [
        ("20", {"tiny": "1"}, True),
        ("20", {"tiny.en": "other words", "tiny": "1"}, True),
        ("20", {"tiny.en": "1"}, True),
        ("20", {}, False),
        ("19", {"tiny": "1"}, False),  # too small for an assistant with an encoder of its own
        ("20", {"tiny": "other words"}, False),
        ("20", {"tiny": "damaged"}, False),
    ],
)
def test_by_default_a_local_model_drafts_that_is_far_smaller_and_has_the_vocabulary(
    of_all_sizes, monkeypatch, model, available, found
):
    def resolve(name, *, download, revision=None):
        if isinstance(name, Path):
            return name
        assert not download, "auto must not download"
        if name not in available:
            raise CheckpointNotFound(f"{name}: not on this machine")
        return of_all_sizes[available[name]]

    path = of_all_sizes[model]
    for module in (backend_factory, api):
        monkeypatch.setattr(module, "resolve_model", resolve)
    assert harken.load(path).speculator is None, "models smaller than small are not drafted for"
    monkeypatch.setattr(backend_factory, "LEAST_WEIGHTS", 0)
    speculator = harken.load(path).speculator
    assert (speculator is not None) is found
    if speculator:
        assert described(speculator) == (False, 1, True)
    for others in ({"assistant": "none"}, {"assistant": None}, {"backend": "numpy"}):
        assert harken.load(path, **others).speculator is None
    assert described(harken.load(path, assistant="ngram").speculator) == (True, None, None)


@pytest.mark.real
def test_published_small_is_drafted_for_by_tiny_with_the_changes_that_come_with_harken(monkeypatch):
    monkeypatch.setenv("HARKEN_MODEL_DIR", str(model_path("small").parent))
    model_path("tiny")
    speculator = make_speculative_decoder("auto", model_path("small"), BackendFactory())
    assert speculator.detail == "a decoder of 4 layers, 384 wide, with the model's encoder"


@pytest.mark.parametrize(("assistant", "shares"), [("small", False), ("twin", True), ("decoder", True)])
def test_named_assistant_shares_the_encoder_if_it_is_the_same(models, assistant, shares):
    decoder = make_speculative_decoder(models[assistant], models["big"])
    assert described(decoder) == (False, 3, shares)


def test_draft_vocabulary_limits_the_logits_of_the_assistant(models):
    backend = make_speculative_decoder(models["decoder"], models["big"]).assistant.backend
    features = backend.reuse_encoder_output(
        FACTORY.make_backend(open_checkpoint(models["big"])).encode(np.zeros((1, 8, 24), np.float32))
    )
    ids, logprobs = backend.open_session(features, [0], 16).extend([[257, 258]]).top(9)
    assert sorted(ids[0].tolist()) == [1, 2, 256]
    assert np.exp(logprobs).sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("assistant", "kind", "parts"),
    [
        ("fewer words", OptionError, ["1864 tokens of {big}", "has 1863"]),
        ("other words", OptionError, ["1864 tokens of {big}", "has 1864, but not the same"]),
        ("n_mels", OptionError, ["n_mels=8, as {big}", "has 16"]),
        ("n_audio_ctx", OptionError, ["n_audio_ctx=12, as {big}", "has 24"]),
        ("n_text_ctx", OptionError, ["n_text_ctx=16, as {big}", "has 32"]),
        ("nobody", CheckpointNotFound, ["no such model"]),
        ("no/where", CheckpointNotFound, ["no such file"]),
        ("stray", CheckpointError, ["made for the encoder 0f0f0f0f"]),
        ("wide", CheckpointError, ["made for n_audio_state=64", "has n_audio_state=32"]),
    ],
)
def test_unfit_assistant_is_refused_in_one_line_before_the_model_is_loaded(
    models, monkeypatch, assistant, kind, parts
):
    """But for a decoder that was made for another model."""
    loaded = []

    def make_backend(self, checkpoint):
        loaded.append(checkpoint)
        return SimpleNamespace(clock=float)

    monkeypatch.setattr(BackendFactory, "make_backend", make_backend)
    named = models.get(assistant) or (Path(assistant) if "/" in assistant else assistant)
    with pytest.raises(kind) as caught:
        harken.load(models["big"], assistant=named, download=False)
    assert kind is CheckpointError or not loaded
    message = str(caught.value)
    assert "\n" not in message
    for part in [assistant, *parts]:
        assert part.format(big=models["big"]) in message


def test_mistyped_assistant_is_refused_before_the_model_is_looked_for_and_a_decoder_alone_as_a_model(models):
    with pytest.raises(CheckpointNotFound, match="nobody: no such model"):
        harken.load("someone/w", assistant="nobody", download=False)
    with pytest.raises(CheckpointError, match="has no encoder: give it as assistant"):
        harken.load(models["decoder"], backend="numpy")


# --- the CPU engine ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitting(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models") / "fitting", FITTING)


@pytest.fixture
def library(monkeypatch):
    """A stand-in for the native library, as far as the choice of a backend looks at it."""
    from harken.backends.native import library

    monkeypatch.setattr(library, "unavailable_reason", lambda: None)
    return library


@pytest.mark.parametrize(
    ("precision", "dims", "expected"),
    [
        ("auto", FITTING, "native"),
        ("int8", FITTING, "native"),
        ("fp32", FITTING, "native"),
        ("bf16", FITTING, "onnx"),
        ("auto", SMALL, "onnx"),
        ("auto", replace(FITTING, n_text_state=48, n_text_head=3), "onnx"),
    ],
)
def test_auto_is_native_where_precision_and_dimensions_fit(library, precision, dims, expected):
    assert BackendFactory(precision=precision)._choose_backend(dims) == expected


@pytest.mark.parametrize(
    "change", [{"n_audio_head": 8}, {"n_text_head": 8}, {"n_text_state": 48, "n_text_head": 3}]
)
def test_model_whose_heads_do_not_fit_is_refused_with_the_extra_that_takes_it(change):
    with pytest.raises(OptionError) as caught:
        NativeBackend(replace(FITTING, **change), StoredWeights({}, "digest"))
    assert re.search(r"backend='onnx' \(pip install '\.\[onnx\]'.*heads of a multiple of 16", str(caught.value))
    assert ", ".join(f"{name}={value}" for name, value in change.items()) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("built", [False, True])
def test_auto_is_onnx_where_the_library_cannot_be_loaded_and_says_so_once_if_it_was_built(
    library, monkeypatch, caplog, fitting, tmp_path, built
):
    path = tmp_path / "_harken.so"
    if built:
        path.touch()
    monkeypatch.setattr(backend_factory, "library_path", lambda: path)
    monkeypatch.setattr(library, "unavailable_reason", lambda: f"{path} is stale")
    for _ in range(2):
        factory = BackendFactory(threads=1, cache=tmp_path)
        assert kind(factory.make_backend(open_checkpoint(fitting))) == ("onnx", "int8")
    said = f"harken: {path} is stale; backend onnx takes its place"
    assert caplog.messages == [said] * built


def kind(backend):
    return backend.capabilities.name, backend.capabilities.precision


@pytest.mark.parametrize(
    ("precision", "reason", "message"),
    [
        ("auto", "it was not built", "it was not built; pip install {} installs an engine"),
        ("bf16", None, "precision bf16 needs ONNX Runtime: pip install {}"),
    ],
)
def test_without_onnx_what_needs_it_names_the_extra(library, monkeypatch, fitting, precision, reason, message):
    monkeypatch.setattr(library, "unavailable_reason", lambda: reason)
    monkeypatch.setattr(backend_factory, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable) as caught:
        BackendFactory(precision=precision).make_backend(open_checkpoint(fitting))
    assert str(caught.value).startswith(message.format("'.[onnx]' in a clone of harken"))
    with pytest.raises(BackendUnavailable, match="backend onnx needs ONNX Runtime: pip install"):
        BackendFactory(backend="onnx").make_backend(open_checkpoint(fitting))


def test_missing_pytorch_is_reported_with_its_install_command(fitting, monkeypatch):
    monkeypatch.delitem(sys.modules, "harken.backends.torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    message = (
        r"torch is not installed, which backend torch needs: pip install '\.\[torch\]' in a clone of harken$"
    )
    with pytest.raises(BackendUnavailable, match=message):
        harken.load(fitting, backend="torch")


@pytest.mark.parametrize(
    ("engine", "precision", "expected"), [("native", "auto", "int8"), ("onnx", "fp32", "fp32")]
)
def test_assistant_on_the_cpu_has_int4_weights_whatever_the_model_has(
    fitting, tmp_path, engine, precision, expected
):
    factory = BackendFactory(backend=engine, precision=precision, threads=1, cache=tmp_path)
    try:
        model = factory.make_backend(open_checkpoint(fitting))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    assistant = make_speculative_decoder(fitting, fitting, factory).assistant
    assert assistant is not None
    assert (kind(model), kind(assistant.backend)) == ((engine, expected), (engine, "int4"))
    check_draft(model, assistant.backend)


def test_assistant_that_does_not_fit_reuses_the_features_of_a_native_model(fitting, tmp_path):
    factory = BackendFactory(threads=1, cache=tmp_path)
    model = factory.make_backend(open_checkpoint(fitting))
    narrow = replace(FITTING, n_audio_layer=0, n_text_state=64, n_text_head=8)
    assistant = factory.make_backend(
        open_checkpoint(write(tmp_path / "narrow", narrow, encoder=False), assistant=True), shares_encoder=True
    )
    assert kind(assistant)[0] == "onnx"
    check_draft(model, assistant)


def test_windows_that_an_assistant_cannot_join_are_drafted_for_apart(tmp_path, monkeypatch):
    dims = replace(FITTING, n_mels=80, n_audio_ctx=1500, n_text_ctx=64)
    narrow = write(tmp_path / "narrow", replace(dims, n_audio_layer=0, n_text_head=8), encoder=False)
    recognizer = harken.load(write(tmp_path / "model", dims), assistant=narrow, threads=1)
    backends = recognizer.backend, recognizer.speculator.assistant.backend
    assert [kind(backend)[0] for backend in backends] == ["native", "onnx"]
    joined = []
    monkeypatch.setattr(
        DraftContext, "join", classmethod(lambda cls, contexts: joined.append(len(contexts)) or contexts[0])
    )
    noise = [np.random.default_rng(0).standard_normal(16_000 * seconds, np.float32) for seconds in (3, 9, 20)]
    options = {"vad": False, "fill_gaps": False, "batch_size": 4, "temperatures": (0.0,), "timestamps": False}
    for recording in recognizer.transcribe_many(noise, **options):
        recording.result()
    assert {*joined} == {1}


def check_draft(model, assistant):
    """Check that an assistant decodes what its model has encoded."""
    features = model.encode(np.zeros((1, FITTING.n_mels, 24), np.float32))
    session = assistant.open_session(assistant.reuse_encoder_output(features), [0], 16)
    assert session.extend([[1, 2]]).top(1)[0].shape == (1, 1)


# --- options -----------------------------------------------------------------------------------------------


def test_gpu_and_hashed_attention_choose_torch():
    chosen = [BackendFactory(device="cuda:1"), BackendFactory(device="mps"), BackendFactory(attention="lsh")]
    assert [factory.backend for factory in chosen] == ["torch"] * 3
    assert BackendFactory(device="cpu").backend == "auto"


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"backend": "abacus"}, "auto or "),
        ({"backend": "onnx", "device": "cuda"}, "auto or cpu with backend='onnx'"),
        ({"threads": 0}, "an integer from 1 to 1024"),
        ({"threads": 2000}, "an integer from 1 to 1024"),
        # What a backend would ignore is refused, too.
        ({"backend": "numpy", "precision": "int8"}, "auto or fp32 with backend='numpy'"),
        ({"backend": "numpy", "threads": 2}, "no number with backend='numpy', whose threads numpy chooses"),
        ({"backend": "native", "precision": "bf16"}, "auto or fp32 or int16 or int8 with backend='native'"),
        ({"backend": "torch", "lsh_rounds": 2}, "3 without attention='lsh'"),
        ({"lsh_bucket_size": 32}, "64 without attention='lsh'"),
        ({"backend": "torch", "attention": "hashed"}, "full or lsh"),
        ({"backend": "native", "attention": "lsh"}, "full with backend='native'"),
        ({"backend": "torch", "lsh_rounds": -1}, "an integer from 0 to 64"),
        ({"backend": "torch", "lsh_bucket_size": 0}, "an integer from 1 to 1500"),
    ],
)
def test_option_that_is_not_allowed_is_refused_by_its_name(options, allowed):
    """The last one is to blame."""
    *_, (name, value) = options.items()
    with pytest.raises(OptionError) as caught:
        BackendFactory(**options)
    assert str(caught.value).startswith(f"{name}={value!r}: allowed is {allowed}")
    assert caught.value.field == name
