"""Adapters: weights that a file changes, in every backend, and files that are refused."""

import json
import re

import numpy as np
import pytest

import harken
from checkpoint_files import huggingface_name, raises_checkpoint_error, random_weights, write_peft
from harken.backend_factory import BackendFactory
from harken.checkpoints import encoder_digest, open_checkpoint, with_adapters
from harken.checkpoints.adapter import ADAPTER_FILE, adapted_names, serialize_adapter
from harken.checkpoints.huggingface import export
from harken.checkpoints.peft import PEFT_CONFIG
from harken.checkpoints.safetensors import read_tensors, serialize_tensors
from harken.errors import CheckpointNotFound, OptionError
from tiny_models import DIMS, TOKENIZER, make_backend, make_mel
from training_data import write_model

RANK = 3
BACKENDS = ("numpy", "native-int8", "onnx-fp32", "torch-fp32")


def make_factors(names):
    """Draw the factors of a change to some matrices of the tiny model."""
    rng = np.random.default_rng(5)
    shapes = {"A": (RANK, DIMS.n_audio_state), "B": (DIMS.n_audio_state, RANK)}
    return {
        f"{name}.{factor}": 0.1 * rng.standard_normal(shape, np.float32)
        for name in names
        for factor, shape in shapes.items()
    }


def write_adapter(path, factors, digest):
    path.write_bytes(b"".join(serialize_adapter(factors, digest, hears="live")))
    return path


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def factors(stock):
    return make_factors(adapted_names(stock.weights))


@pytest.fixture(scope="module")
def adapter(stock, factors, tmp_path_factory):
    path = tmp_path_factory.mktemp("adapter") / ADAPTER_FILE
    return write_adapter(path, factors, encoder_digest(stock))


def test_an_adapter_adds_the_product_of_its_factors_to_the_matrices_it_names(stock, factors, adapter):
    adapted = with_adapters(stock, adapter)
    assert len(adapted_names(stock.weights)) == 4 * DIMS.n_audio_layer
    for name, values in stock.weights.items():
        expected = values.astype(np.float32)
        if f"{name}.A" in factors:
            a, b = (factors[f"{name}.{factor}"].astype(np.float16).astype(np.float32) for factor in "AB")
            expected = expected + b @ a
        np.testing.assert_array_equal(adapted.weights[name], expected)
    folder = with_adapters(stock, adapter.parent)
    assert folder.weights.digest == adapted.weights.digest != stock.weights.digest
    assert adapted.dims == stock.dims


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_computes_with_the_changed_weights(name, stock, adapter, tmp_path):
    kind, _, precision = name.partition("-")
    if kind == "torch":
        pytest.importorskip("torch")
    adapted = with_adapters(stock, adapter)
    threads = None if kind == "numpy" else 1
    factory = BackendFactory(
        backend=kind, precision=precision or "auto", device="cpu", threads=threads, cache=tmp_path
    )
    mel = make_mel(1)
    outputs = [
        backend.encoder_output(backend.encode(mel))
        for backend in (
            factory.make_backend(stock),
            factory.make_backend(adapted),  # with the cache of the stock weights beside it
            make_backend(name, tmp_path / "merged", {**adapted.weights}),
        )
    ]
    np.testing.assert_array_equal(outputs[1], outputs[2])
    assert np.abs(outputs[1] - outputs[0]).max() > 0.1


def test_load_takes_an_adapter_with_which_nothing_decodes_exactly_and_none_gives_the_stock_weights(
    stock, adapter
):
    plain, none, adapted = (
        harken.load(stock.path.parent, backend="numpy", adapter=each) for each in (None, "none", adapter)
    )
    outputs = [each.backend.encoder_output(each.backend.encode(make_mel(1))) for each in (plain, none, adapted)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])
    with pytest.raises(OptionError, match="allowed is auto, fast with an adapter"):
        adapted.transcribe(np.zeros(1600, np.float32), fidelity="exact")
    plain.resolve_options(fidelity="exact")


FIRST = "encoder.blocks.0.attn.key.weight"
FACTORS_THAT_DO_NOT_FIT = [
    ({f"{FIRST}.A": None}, "allowed are (64, rank) and (rank, 64)"),
    ({f"{FIRST}.A": np.zeros((RANK, 8))}, "have the shapes (64, 3) and (3, 8)"),
    (
        make_factors(["decoder.blocks.0.attn.query.weight"]),
        "changes 'decoder.blocks.0.attn.query.weight', allowed are the matrices of the attention",
    ),
    (make_factors(["encoder.blocks.7.attn.query.weight"]), "changes 'encoder.blocks.7.attn.query.weight'"),
    ({"epochs": np.zeros(1)}, "changes ''"),
    ({f"{FIRST}.A": np.full((RANK, DIMS.n_audio_state), np.inf)}, "values that are not finite"),
]


def assert_refused(checkpoint, path, message):
    """Assert that an adapter is refused by its path when it is opened, or when the first weight is read."""
    with raises_checkpoint_error(f"{re.escape(f'{path}: ')}.*{re.escape(message)}"):
        with_adapters(checkpoint, path).weights[FIRST]


def test_an_adapter_that_does_not_fit_is_refused(stock, factors, tmp_path):
    for changes, message in FACTORS_THAT_DO_NOT_FIT:
        changed = {name: values for name, values in {**factors, **changes}.items() if values is not None}
        path = write_adapter(tmp_path / "bad.safetensors", changed, encoder_digest(stock))
        assert_refused(stock, path, message)


def test_an_adapter_of_another_model_and_a_file_that_is_none_are_refused(stock, adapter, tmp_path):
    export(tmp_path, DIMS, random_weights(DIMS, 9), TOKENIZER)
    other = open_checkpoint(tmp_path)
    made_for, found = encoder_digest(stock)[:8], encoder_digest(other)[:8]
    assert_refused(other, adapter, f"made for the encoder {made_for}, {other.path} has {found}")
    assert_refused(stock, stock.path, 'no adapter: its format is "pt", allowed is "harken-adapter-1"')
    for content, message in (
        (adapter.read_bytes()[:-10], "bytes of data"),
        (b"W + B A", ""),
        (b"".join(serialize_tensors({}, {})), "its format is null"),
    ):
        (tmp_path / "no.safetensors").write_bytes(content)
        assert_refused(stock, tmp_path / "no.safetensors", message)
    with pytest.raises(CheckpointNotFound, match=r"adapter\.safetensors: no such adapter"):
        with_adapters(stock, tmp_path)
    for path in (adapter, adapter.parent):
        with raises_checkpoint_error("give it as adapter, together with the model that it changes"):
            open_checkpoint(path)


# --- peft --------------------------------------------------------------------------------------------------

QUERY, MLP = "encoder.blocks.1.attn.query", "decoder.blocks.0.mlp.2"
EMBEDDING, NORM = "decoder.token_embedding", "decoder.ln.weight"
SAVED = "base_model.model.model.decoder.layer_norm.modules_to_save.default.weight"


def peft_name(name, rest):
    return f"base_model.model.{huggingface_name(f'{name}.weight').removesuffix('weight')}{rest}"


@pytest.fixture
def peft(stock, tmp_path):
    """Write an adapter with LoRA of two matrices and of the embedding, magnitudes, and a whole weight."""
    rng = np.random.default_rng(1)
    shapes = {name: stock.weights.shape(f"{name}.weight") for name in (QUERY, MLP, EMBEDDING)}
    arrays = {peft_name(MLP, "lora_magnitude_vector"): 1 + rng.random(shapes[MLP][0], np.float32)}
    for name in (QUERY, MLP):
        rows, columns = shapes[name]
        arrays[peft_name(name, "lora_A.weight")] = rng.standard_normal((4, columns), np.float32)
        arrays[peft_name(name, "lora_B.weight")] = rng.standard_normal((rows, 4), np.float32)
    tokens, state = shapes[EMBEDDING]
    arrays[peft_name(EMBEDDING, "lora_embedding_A")] = rng.standard_normal((4, tokens), np.float32)
    arrays[peft_name(EMBEDDING, "lora_embedding_B")] = rng.standard_normal((state, 4), np.float32)
    arrays[SAVED] = rng.random(state, np.float32)
    arrays[peft_name(MLP, "base_layer.weight")] = rng.standard_normal(shapes[MLP], np.float32)
    arrays[peft_name(QUERY, "base_layer.bias")] = rng.random(len(stock.weights[f"{QUERY}.bias"]), np.float32)
    # peft takes the first pattern that fits, and repeats the embedding's factors at the output that is tied to it.
    arrays["base_model.model.proj_out.base_layer.weight"] = np.zeros((tokens, state), np.float32)
    for output, embedding in ("AB", "BA"):
        factor = arrays[peft_name(EMBEDDING, f"lora_embedding_{embedding}")].T.copy()
        arrays[f"base_model.model.proj_out.lora_{output}.weight"] = factor
    alphas = {"self_attn.q_proj": 2, "q_proj": 16}
    return write_peft(tmp_path / "peft", arrays, alpha_pattern=alphas, use_dora=True)


def test_a_folder_that_cannot_be_searched_is_no_adapter(stock):
    with pytest.raises(CheckpointNotFound, match="no such adapter"):
        with_adapters(stock, "a" * 300)  # root may search all others


def test_an_adapter_that_peft_saved_under_a_name_is_told_for_the_folder_around_it(stock, peft):
    with pytest.raises(CheckpointNotFound, match=f"; {re.escape(str(peft))} is one$"):
        with_adapters(stock, peft.parent)


@pytest.mark.parametrize("use_rslora", [False, True])
def test_an_adapter_of_peft_changes_the_weights_as_peft_merges_it(stock, peft, use_rslora):
    """After peft/tuners/lora/layer.py and dora.py."""
    config = json.loads((peft / PEFT_CONFIG).read_text())
    (peft / PEFT_CONFIG).write_text(json.dumps(config | {"use_rslora": use_rslora}))
    rank = 2 if use_rslora else 4  # 4 is that of the factors
    arrays = {name: tensor.read() for name, tensor in read_tensors(peft / "adapter_model.safetensors").items()}
    adapted = with_adapters(stock, peft).weights
    expected = {name: values.astype(np.float32) for name, values in stock.weights.items()}

    def product(name, kind="", leaf=".weight"):
        return arrays[peft_name(name, f"lora_{kind}B{leaf}")] @ arrays[peft_name(name, f"lora_{kind}A{leaf}")]

    expected[f"{QUERY}.weight"] += 2 / rank * product(QUERY)
    expected[f"{EMBEDDING}.weight"] += 8 / rank * product(EMBEDDING, "embedding_", "").T
    changed = arrays[peft_name(MLP, "base_layer.weight")] + 8 / rank * product(MLP)
    lengths = np.linalg.norm(changed, axis=1, keepdims=True)
    expected[f"{MLP}.weight"] = changed / lengths * arrays[peft_name(MLP, "lora_magnitude_vector")][:, None]
    expected[NORM] = arrays[SAVED]
    expected[f"{QUERY}.bias"] = arrays[peft_name(QUERY, "base_layer.bias")]
    for name, values in expected.items():
        np.testing.assert_allclose(adapted[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


def test_several_adapters_are_added_one_after_the_other(stock, adapter, peft):
    both = with_adapters(stock, [adapter, peft])
    one, other = with_adapters(stock, adapter), with_adapters(stock, str(peft))
    name = f"{QUERY}.weight"
    expected = one.weights[name] + other.weights[name] - stock.weights[name].astype(np.float32)
    np.testing.assert_allclose(both.weights[name], expected, rtol=1e-4, atol=1e-5)
    assert len({each.weights.digest for each in (stock, one, other, both)}) == 4
    assert with_adapters(stock, ["none"]) is stock
    assert harken.load(stock.path.parent, backend="numpy", adapter=[adapter, peft]).dims == stock.dims


BAD_PEFT = [
    ({"peft_type": "IA3"}, "", 'an adapter of type "IA3", allowed is "LORA"'),
    ({"lora_alpha": "8"}, "", 'lora_alpha is "8"'),
    ({"lora_alpha": float("nan")}, "", "lora_alpha is NaN"),
    ({"alpha_pattern": {"(a+)+b": 1}}, "", "is not the plain name of a module"),
    ({"trainable_token_indices": [220]}, "", "trainable_token_indices is set"),
    ({"fan_in_fan_out": True}, "", "fan_in_fan_out is set"),
    ({}, "base_model.model.proj_out.lora_A.weight", "changes proj_out.weight, allowed are"),
    ({"init_lora_weights": "pissa"}, "", 'init_lora_weights is "pissa", which changes the model too'),
    ({}, "base_model.model.proj_out.weight", "to the same values"),
    ({}, "base_model.model.model.encoder.layers.9.fc1.weight", "changes 'encoder.blocks.9.mlp.0.weight' of"),
    ({}, peft_name(QUERY, "lora_A.weight"), "factors B and A have the shapes None and (4, 64)"),
]


@pytest.mark.parametrize(("config", "name", "message"), BAD_PEFT)
def test_an_adapter_of_peft_that_does_not_fit_is_refused(stock, tmp_path, config, name, message):
    arrays = {name: np.zeros((4, 64), np.float32)}
    if not name:
        factors = {"lora_A.weight": (4, 64), "lora_B.weight": (64, 4)}
        arrays = {peft_name(QUERY, part): np.zeros(shape, np.float32) for part, shape in factors.items()}
    with raises_checkpoint_error(f"{re.escape(str(tmp_path))}.*{re.escape(message)}"):
        with_adapters(stock, write_peft(tmp_path, arrays, **config))


def test_an_adapter_changes_the_embedding_and_the_output_alike(stock, tmp_path):
    name = f"{EMBEDDING}.weight"
    arrays = {peft_name(EMBEDDING, "weight"): np.ones(stock.weights.shape(name), np.float32)}
    with raises_checkpoint_error("to the same values", most_bytes=1 << 26):
        with_adapters(stock, write_peft(tmp_path / "one", arrays))
    shapes = {"A": (4, stock.dims.n_vocab), "B": (stock.dims.n_text_state, 4)}
    factors = {
        peft_name(EMBEDDING, f"lora_embedding_{part}"): np.ones(shapes[part], np.float32) for part in "AB"
    }
    with raises_checkpoint_error("to the same values", most_bytes=1 << 26):
        with_adapters(stock, write_peft(tmp_path / "factors", factors))
    arrays["base_model.model.proj_out.weight"] = arrays[peft_name(EMBEDDING, "weight")]
    assert (with_adapters(stock, write_peft(tmp_path / "both", arrays)).weights[name] == 1).all()
