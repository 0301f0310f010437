"""Checkpoint formats: one random model, written in every format, is read back unchanged, or within half a step."""

import json
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import checkpoint_files as files
from harken.checkpoints import open_checkpoint
from harken.checkpoints.ggml_types import DTYPES
from harken.checkpoints.graph_weights import Constant, Node, weights_of_graph
from harken.checkpoints.model_files import LazyTensor
from harken.errors import CheckpointError, CheckpointNotFound

HALF = files.random_weights()
SINGLE = files.random_weights(dtype=np.float32)
BFLOAT16 = {name: files.bfloat16_bits(values) for name, values in SINGLE.items()}
AS_SINGLE = {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, bits in BFLOAT16.items()}
MATRICES = {name for name, values in SINGLE.items() if values.ndim > 1 and "positional" not in name}
MATRICES_HALF = {name: values.astype("f2" if name in MATRICES else "f4") for name, values in SINGLE.items()}
EMBEDDING = "decoder.token_embedding.weight"

WITHOUT_LOSS = (
    *("openai", "safetensors", "sharded", "torch-bin", "torch-shards", "ctranslate2"),
    *("gguf", "onnx", "onnx-external", "openvino"),
)
EXACT = [
    *((name, files.FORMATS[name], half, half, "float16") for name in WITHOUT_LOSS for half in [HALF]),
    *((name, files.FORMATS[name], single, single, "float32") for name in WITHOUT_LOSS for single in [SINGLE]),
    *((name, files.FORMATS[name], BFLOAT16, AS_SINGLE, "bfloat16") for name in ("safetensors", "torch-bin")),
    ("ctranslate2", partial(files.write_ctranslate2, precision="bfloat16"), SINGLE, AS_SINGLE, "bfloat16"),
    ("ggml", files.FORMATS["ggml"], SINGLE, MATRICES_HALF, "float16"),
    ("ggml", lambda folder, *model: files.write_ggml(folder / "m", *model, "f32"), SINGLE, SINGLE, "float32"),
]


def assert_read_as(path, expected, format, dtype):
    checkpoint = open_checkpoint(path)
    assert (checkpoint.format, checkpoint.dims, checkpoint.stored_dtype) == (format, files.TINY, dtype)
    assert set(checkpoint.weights) == set(expected)
    for name, values in expected.items():
        assert checkpoint.weights[name].dtype == values.dtype, name
        np.testing.assert_array_equal(checkpoint.weights[name], values, err_msg=name)


@pytest.mark.parametrize(("name", "write", "weights", "expected", "dtype"), EXACT)
def test_stored_weights_are_read_exactly(tmp_path, name, write, weights, expected, dtype):
    format = name.partition("-")[0]
    format = "huggingface" if format in ("safetensors", "sharded", "torch") else format
    assert_read_as(write(tmp_path, files.TINY, weights), expected, format, dtype)


@pytest.mark.parametrize("npz", [True, False], ids=["npz", "safetensors"])
def test_mlx_has_its_layout_turned_and_the_positions_computed(tmp_path, npz):
    checkpoint = open_checkpoint(files.write_mlx(tmp_path, files.TINY, HALF, npz=npz))
    assert (checkpoint.format, checkpoint.dims, {*checkpoint.weights}) == ("mlx", files.TINY, {*HALF})
    for name, values in HALF.items():
        if name != "encoder.positional_embedding":
            np.testing.assert_array_equal(checkpoint.weights[name], values, err_msg=name)
    positions = checkpoint.weights["encoder.positional_embedding"]
    np.testing.assert_allclose(positions[3, [0, 16]], [np.sin(3), np.cos(3)], rtol=1e-5)
    np.testing.assert_allclose(positions[3, [15, 31]], [np.sin(3e-4), np.cos(3e-4)], rtol=1e-5)


def test_layers_of_low_rank_are_the_product_of_their_factors(tmp_path):
    """As in lite-whisper, whose layers compute ``x @ weight1 @ weight2 + bias``, those of the keys too."""
    rng, config = np.random.default_rng(0), {"model_type": "lite-whisper"}
    stored, products = dict(SINGLE), {}
    for layer, rows in (("encoder.blocks.1.mlp.0", 128), ("encoder.blocks.0.attn.key", 32)):
        first, second = rng.standard_normal((32, 5), np.float32), rng.standard_normal((5, rows), np.float32)
        factors = {"weight1": first, "weight2": second, "bias": np.ones(rows, np.float32)}
        stored |= {f"{layer}.{leaf}": values for leaf, values in factors.items()}
        products[f"{layer}.weight"] = (first @ second).T
        del stored[f"{layer}.weight"]
    weights = open_checkpoint(files.write_huggingface(tmp_path, files.TINY, stored, config=config)).weights
    assert set(weights) == set(SINGLE)
    for name, product in products.items():
        np.testing.assert_allclose(weights[name], product, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(weights.factors[f"{name}.A"], stored[f"{name}1"].T)
        np.testing.assert_array_equal(weights.factors[f"{name}.B"], stored[f"{name}2"].T)
    stored["encoder.blocks.1.mlp.0.weight2"] = stored["encoder.blocks.1.mlp.0.weight2"].T
    path = files.write_huggingface(tmp_path, files.TINY, stored, config=config)
    message = r"encoder\.blocks\.1\.mlp\.0 has factors of the shapes \(32, 5\) and \(128, 5\)"
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def write_compiled(directory, output):
    """Write a model as it is saved after torch.compile, with the matrix of the output beside the embedding."""
    config = {"tie_word_embeddings": False}
    files.write_huggingface(directory, files.TINY, {}, config=config)
    tensors = {f"_orig_mod.{files.huggingface_name(name)}": values for name, values in HALF.items()}
    files.write_safetensors(directory / "model.safetensors", {"_orig_mod.proj_out.weight": output, **tensors})
    return directory


def test_the_output_is_the_embedding(tmp_path):
    assert_read_as(write_compiled(tmp_path / "same", HALF[EMBEDDING]), HALF, "huggingface", "float16")
    wider = write_compiled(tmp_path / "same", HALF[EMBEDDING].astype(np.float32))
    np.testing.assert_array_equal(open_checkpoint(wider).weights[EMBEDDING], HALF[EMBEDDING])
    other = {"proj_out.weight": HALF[EMBEDDING] + np.float16(1)}
    for path in (
        write_compiled(tmp_path / "other", *other.values()),
        files.write_huggingface(
            tmp_path / "tied", files.TINY, HALF | other, config={"tie_word_embeddings": True}
        ),
        write_compiled(tmp_path / "wider", other["proj_out.weight"].astype(np.float32)),
        files.write_gguf(tmp_path / "other.gguf", files.TINY, HALF | other),
    ):
        with pytest.raises(CheckpointError, match=r"proj_out\.weight and the token embedding differ"):
            open_checkpoint(path)


@pytest.mark.parametrize("writer", ["safetensors", "sharded", "torch-bin", "ggml", "gguf", "mlx"])
def test_two_weights_of_one_name_are_refused(tmp_path, writer):
    """As in files of a training that hold the model and its teacher."""
    both = HALF | {"teacher.decoder.ln.bias": HALF["decoder.ln.bias"]}
    path = files.FORMATS[writer](tmp_path, files.TINY, both)
    with pytest.raises(
        CheckpointError, match=r"holds decoder\.ln\.bias twice, as '.+' and '.*teacher\.decoder"
    ):
        open_checkpoint(path)


@pytest.mark.parametrize("writer", ["safetensors", "gguf", "mlx", "onnx", "openvino"])
def test_alignment_heads_are_those_beside_the_weights(tmp_path, writer):
    path = files.FORMATS[writer](tmp_path, files.TINY, HALF)
    (tmp_path / "generation_config.json").write_text('{"alignment_heads": [[1, 0], [2, 3]]}')
    expected = ((1, 0),) if writer == "mlx" else ((1, 0), (2, 3))  # its own file holds them
    assert open_checkpoint(path).alignment_heads == expected


def test_names_of_a_model_trained_in_several_processes_are_known(tmp_path):
    wrapped = {f"module.{name}": values for name, values in HALF.items()}
    assert_read_as(files.write_openai(tmp_path / "m.pt", files.TINY, wrapped), HALF, "openai", "float16")


def test_weights_of_a_variant_and_in_float64_are_read(tmp_path):
    double = {name: values.astype(np.float64) for name, values in SINGLE.items()}
    one = files.write_huggingface(tmp_path / "one", files.TINY, double)
    (one / "model.safetensors").rename(one / "model.fp64.safetensors")
    assert_read_as(one, SINGLE, "huggingface", "float64")
    shards = files.write_huggingface(tmp_path / "shards", files.TINY, HALF, shards=2)
    (shards / "model.safetensors.index.json").rename(shards / "model.safetensors.index.fp16.json")
    assert_read_as(shards, HALF, "huggingface", "float16")


def test_weights_are_read_only_and_read_on_each_access_but_not_to_know_their_names(tmp_path):
    path = files.write_openai(tmp_path / "m.pt", files.TINY, HALF)
    weights, name = open_checkpoint(path).weights, "decoder.ln.weight"
    assert weights.shape(name) == (32,)
    assert weights[name] is not weights[name]
    with pytest.raises(ValueError, match="read-only"):
        weights[name][0] = 1
    path.unlink()
    assert name in weights
    assert "decoder.ln" not in weights
    assert len(weights) == len(HALF)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        weights[name]


@pytest.mark.parametrize("writer", [*WITHOUT_LOSS, "ggml", "mlx"])
def test_digest_changes_with_the_last_weight_and_the_number_of_heads(tmp_path, writer):
    last = "decoder.blocks.2.mlp.2.weight"
    other = {**HALF, last: HALF[last].copy()}
    other[last][-1, -1] += 1
    heads = replace(files.TINY, n_text_head=2)
    digests = []
    for number, (dims, weights) in enumerate(
        ((files.TINY, HALF), (files.TINY, HALF), (files.TINY, other), (heads, HALF))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        digests.append(open_checkpoint(files.FORMATS[writer](folder, dims, weights)).weights.digest)
    assert digests[0] == digests[1]
    assert len({*digests}) == 3


def test_a_directory_that_cannot_be_read_is_not_called_empty(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", refuse)  # root may read everything
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        open_checkpoint(tmp_path)


def test_format_is_detected_by_content_and_the_only_weight_file_of_a_directory_is_opened(tmp_path):
    assert open_checkpoint(files.write_openai(tmp_path / "ggml.bin", files.TINY, HALF)).format == "openai"
    assert open_checkpoint(files.write_ggml(tmp_path / "m.pt", files.TINY, HALF)).format == "ggml"
    with pytest.raises(CheckpointError, match="2 files that may hold weights; allowed are a CTranslate2"):
        open_checkpoint(tmp_path)
    (tmp_path / "ggml.bin").unlink()
    assert open_checkpoint(tmp_path).path == tmp_path / "m.pt"
    (tmp_path / "m.pt").unlink()
    with pytest.raises(CheckpointError, match="0 files that may hold weights"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointNotFound, match="absent: no such file or directory"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(
        CheckpointError, match=f"{os.devnull}: is a device, a pipe or a folder; allowed are a CTransl"
    ):
        open_checkpoint(os.devnull)


@pytest.mark.parametrize("writer", ["safetensors", "gguf", "mlx", "onnx", "openvino"])
def test_a_wrong_dimension_is_blamed_on_the_configuration_that_declares_it(tmp_path, writer):
    path, config = files.FORMATS[writer](tmp_path, files.TINY, HALF), tmp_path / "config.json"
    declared = json.loads(config.read_text()) if config.exists() else {}
    config.write_text(json.dumps(declared | {"n_vocab" if writer == "mlx" else "vocab_size": 97}))
    with pytest.raises(
        CheckpointError, match=r"config\.json: declares n_vocab=97, its weights have n_vocab=96"
    ):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("norm", "module", "expected"),
    [
        ("decoder.blocks.2.cross_attn_ln", "query_5", "decoder.blocks.2.cross_attn.query.weight"),
        ("decoder.blocks.1.mlp_ln", "mlp.mlp.0_1", "decoder.blocks.1.mlp.0.weight"),
        ("encoder.ln_post", "value_1", "decoder.blocks.1.cross_attn.value.weight"),
    ],
)
def test_module_that_runs_outside_of_its_block_belongs_to_that_of_the_normalisation_before_it(
    norm, module, expected
):
    """As in graphs of sherpa-onnx; behind the encoder's last one it reads the whole encoder's output."""
    gain, matrix = (LazyTensor(shape, "float32", lambda: np.empty(0)) for shape in ((32,), (32, 48)))
    constants = {"g": Constant(f"{norm}.weight", gain), "m": Constant("onnx::MatMul_1", matrix)}
    nodes = [Node("", "LayerNormalization", ("x", "g")), Node(module, "MatMul", ("y", "m"))]
    found = weights_of_graph(nodes, constants, norm.partition(".")[0])
    assert {name: tensor.shape for name, tensor in found.items()} == {
        f"{norm}.weight": (32,),
        expected: (48, 32),
    }


# --- quantised ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_ggml_blocks_are_within_half_a_step_and_all_but_matrices_exact(tmp_path, kind):
    checkpoint = open_checkpoint(files.write_ggml(tmp_path / "m.bin", files.TINY, SINGLE, kind))
    assert checkpoint.stored_dtype == kind
    for name, values in SINGLE.items():
        found = checkpoint.weights[name]
        if name not in MATRICES or values.ndim == 3:
            np.testing.assert_array_equal(found, MATRICES_HALF[name], err_msg=name)
            continue
        assert found.dtype == np.float32
        blocks = values.reshape(-1, 32)
        # Half a step between levels, or a whole step at the end of a range that has no level of its own. Scale and
        # minimum are rounded to float16.
        levels = {"4": 16, "5": 32, "8": 255}[kind[1]]
        extent = np.ptp(blocks, 1) if kind.endswith("_1") else 2 * np.abs(blocks).max(1)
        step = extent / (levels - 1 if kind.endswith("_1") or kind == "q8_0" else levels)
        worst = 1.0 if kind in ("q4_0", "q5_0") else 0.5
        bound = worst * step + np.abs(blocks).max(1) * 2.0**-10
        assert np.all(np.abs(found.reshape(-1, 32) - blocks).max(1) <= bound), name


def test_every_type_of_ggml_is_dequantised_as_its_own_package_does():
    """On random bytes; the types with tables are decoded by that package."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    rng = np.random.default_rng(3)
    for number, dtype in DTYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert gguf.GGML_QUANT_SIZES[kind] == (dtype.block_items, dtype.block_bytes), dtype.name
        blocks = rng.integers(0, 256, (50, dtype.block_bytes), np.uint8)
        with np.errstate(invalid="ignore", over="ignore"):
            expected = gguf.quants.dequantize(blocks, kind).ravel()
            np.testing.assert_array_equal(dtype.decode(blocks).ravel(), expected, err_msg=dtype.name)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_mlx_weights_are_codes_times_scales_plus_biases(tmp_path, bits):
    """After mlx/backend/cpu/quantized.cpp: code number i of a row has bits i * bits onwards of its words."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (128, 32))
    scales, biases = rng.standard_normal((2, 128, 1), np.float32)
    rows = [
        sum(int(code) << bits * i for i, code in enumerate(row)).to_bytes(4 * bits, "little") for row in codes
    ]
    files.write_mlx(tmp_path, files.TINY, SINGLE)
    layer, weights = "encoder.blocks.0.mlp1", dict(np.load(tmp_path / "weights.npz"))
    words = np.frombuffer(b"".join(rows), "<u4").reshape(128, bits)
    quantised = {f"{layer}.weight": words, f"{layer}.scales": scales, f"{layer}.biases": biases}
    np.savez(tmp_path / "weights.npz", **{**weights, **quantised})
    with pytest.raises(CheckpointError, match=r"is quantised, config\.json says not how"):
        open_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    own = {"group_size": 32, "bits": bits}
    for quantization in (own, {"group_size": 64, "bits": 6, layer: own}):
        config["quantization"] = quantization
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = open_checkpoint(tmp_path).weights["encoder.blocks.0.mlp.0.weight"]
        np.testing.assert_allclose(found, codes * scales + biases, rtol=1e-5)


@pytest.mark.parametrize(
    ("mode", "group", "number", "scale"),
    [
        ("mxfp4", 32, "float4_e2m1fn", "float8_e8m0fnu"),
        ("mxfp8", 32, "float8_e4m3fn", "float8_e8m0fnu"),
        ("nvfp4", 16, "float4_e2m1fn", "float8_e4m3fn"),
    ],
)
def test_mlx_weights_may_be_small_floating_point_numbers(tmp_path, mode, group, number, scale):
    """Every code of each type, as another package reads them; the codes that it takes for no number are left out."""
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes comes with onnx")
    bits = 8 if mode == "mxfp8" else 4
    numbers = np.arange(1 << bits, dtype=np.uint8).view(getattr(ml_dtypes, number)).astype(np.float32)
    scales = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, scale)).astype(np.float32)
    rng = np.random.default_rng(group)
    codes = rng.choice(np.flatnonzero(np.isfinite(numbers)), (128, 32)).astype(np.uint8)
    in_range = np.flatnonzero(np.abs(scales) < 2.0**100)  # no product is too large for float32
    scale_codes = rng.choice(in_range, (128, 32 // group)).astype(np.uint8)
    packed = codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4
    files.write_mlx(tmp_path, files.TINY, SINGLE)
    layer, weights = "encoder.blocks.0.mlp1", dict(np.load(tmp_path / "weights.npz"))
    quantised = {f"{layer}.weight": packed.view("<u4"), f"{layer}.scales": scale_codes}
    np.savez(tmp_path / "weights.npz", **{**weights, **quantised})
    config = json.loads((tmp_path / "config.json").read_text())
    for named in ("fp2", mode):
        config["quantization"] = {"group_size": group, "bits": bits, "mode": named}
        (tmp_path / "config.json").write_text(json.dumps(config))
        if named != mode:
            with pytest.raises(
                CheckpointError, match="quantised as 'fp2'; allowed is affine, mxfp4, mxfp8, nvfp4"
            ):
                open_checkpoint(tmp_path)
    found = open_checkpoint(tmp_path).weights["encoder.blocks.0.mlp.0.weight"]
    expected = numbers[codes].reshape(128, -1, group) * scales[scale_codes][:, :, None]
    np.testing.assert_array_equal(found, expected.reshape(128, 32))


@pytest.mark.parametrize(
    ("write", "steps"),
    [
        (partial(files.write_onnx, bits=8), 127),
        (partial(files.write_onnx, bits=4), 7),
        (partial(files.write_openvino, quantised=True), 127),
    ],
)
def test_quantised_matrices_in_graphs_are_within_half_a_step(tmp_path, write, steps):
    weights = open_checkpoint(write(tmp_path, files.TINY, SINGLE)).weights
    for name, values in SINGLE.items():
        half_a_step = np.abs(values).max() / steps / 2
        np.testing.assert_allclose(weights[name], values, atol=1.02 * half_a_step, err_msg=name)


def test_fused_attention_in_a_graph_is_refused_as_such(tmp_path):
    import onnx

    path = files.write_onnx(tmp_path, files.TINY, SINGLE) / "decoder_model.onnx"
    model = onnx.load(path)
    for node in model.graph.node:
        if "self_attn.q_proj" in node.name.replace("/", "."):
            node.op_type = "Attention"
    onnx.save(model, path)
    with pytest.raises(CheckpointError, match=r"decoder_model\.onnx: the attention of its layers is fused"):
        open_checkpoint(tmp_path)


def test_a_matrix_in_blocks_that_are_no_bytes_is_refused(tmp_path):
    import onnx
    from onnx import numpy_helper

    path = files.write_onnx(tmp_path, files.TINY, SINGLE, bits=4) / "decoder_model.onnx"
    model = onnx.load(path)
    blocks = next(each for each in model.graph.initializer if each.name.endswith("_Q4"))
    numbers = numpy_helper.to_array(blocks).astype(np.float32)
    blocks.CopyFrom(numpy_helper.from_array(numbers, blocks.name))
    onnx.save(model, path)
    with pytest.raises(CheckpointError, match=r"decoder_model\.onnx: a matrix of .* in blocks is damaged"):
        open_checkpoint(tmp_path)


def ctranslate2_error(name, values, precision):
    """Return half the distance of two codes: the maximum of a row has code 127, that of a packed array 1024."""
    largest = np.abs(values).max()
    if name not in MATRICES or precision in (None, "float16", "bfloat16"):
        return largest * {"float16": 2**-11, "int8_float16": 2**-11, "bfloat16": 2**-8}.get(
            precision or "", 0.0
        )
    if precision != "int16":
        largest = np.abs(values.reshape(len(values), -1)).max(1).reshape(-1, *[1] * (values.ndim - 1))
        return largest * np.float32(1.0001 / 127 / 2)
    packed = {"cross_attn": ("key", "value"), "attn": ("query", "key", "value")}
    module, part = name.removesuffix(".weight").split(".")[-2:]
    if part in packed.get(module, ()):
        largest = max(np.abs(SINGLE[name.replace(part, other)]).max() for other in packed[module])
    return largest * np.float32(1.0001 / 1024 / 2)


def write_with_ctranslate2(folder, quantisation):
    """Write the same model with CTranslate2 itself."""
    specs = pytest.importorskip("ctranslate2.specs", reason="ctranslate2 is not installed")
    dims = files.TINY
    spec = specs.WhisperSpec(dims.n_audio_layer, dims.n_audio_head, dims.n_text_layer, dims.n_text_head)
    for name, values in files._ctranslate2_arrays(dims, SINGLE).items():
        module, _, leaf = name.rpartition("/")
        setattr(specs.model_spec.index_spec(spec, module), leaf, values.copy())
    spec.decoder.projection.weight = SINGLE[EMBEDDING].copy()
    spec.register_vocabulary([str(token) for token in range(dims.n_vocab)])
    spec.validate()
    spec.optimize(quantisation)
    spec._serialize(str(folder / "model.bin"))
    return folder


def write_ctranslate2(folder, precision):
    path = files.write_ctranslate2(folder, files.TINY, SINGLE, precision)
    assert open_checkpoint(path).stored_dtype == precision
    return path


@pytest.mark.parametrize(
    ("write", "precision"),
    [
        *((write_ctranslate2, precision) for precision in ("int8", "int16")),
        *((write_with_ctranslate2, precision) for precision in (None, "float16", "bfloat16", "int8", "int16")),
        (write_with_ctranslate2, "int8_float16"),
    ],
)
def test_ctranslate2_weights_are_within_half_a_step(tmp_path, write, precision):
    write(tmp_path, precision)
    weights = open_checkpoint(tmp_path).weights
    assert set(weights) == set(SINGLE)
    for name, values in SINGLE.items():
        error = np.abs(weights[name].astype(np.float32) - values)
        assert np.all(error <= ctranslate2_error(name, values, precision)), name
