"""Tests of checkpoint formats: one random model, written in every format, is read back unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from harken.checkpoints import open_checkpoint
from harken.errors import CheckpointError, CheckpointNotFound

HALF = files.random_weights()
SINGLE = files.random_weights(dtype=np.float32)
BFLOAT16 = {name: files.bfloat16_bits(values) for name, values in SINGLE.items()}
AS_SINGLE = {name: (bits.astype(np.uint32) << 16).view(np.float32) for name, bits in BFLOAT16.items()}

WITHOUT_LOSS = (
    *("openai", "safetensors", "sharded", "torch-bin", "torch-shards", "ctranslate2"),
    *("gguf", "onnx", "onnx-external", "openvino"),
)


def assert_read_as(path: Path, expected: files.Arrays, format: str, dtype: str) -> None:
    checkpoint = open_checkpoint(path)
    assert (checkpoint.format, checkpoint.dims, checkpoint.stored_dtype) == (format, files.TINY, dtype)
    assert set(checkpoint.weights) == set(expected)
    for name, values in expected.items():
        assert checkpoint.weights[name].dtype == values.dtype, name
        np.testing.assert_array_equal(checkpoint.weights[name], values, err_msg=name)


@pytest.mark.parametrize("weights", [HALF, SINGLE], ids=["float16", "float32"])
@pytest.mark.parametrize("writer", WITHOUT_LOSS)
def test_stored_weights_are_read_exactly(tmp_path: Path, writer: str, weights: files.Arrays) -> None:
    format = writer.partition("-")[0]
    format = "huggingface" if format in ("safetensors", "sharded", "torch") else format
    dtype = weights["decoder.token_embedding.weight"].dtype.name
    assert_read_as(files.FORMATS[writer](tmp_path, files.TINY, weights), weights, format, dtype)


@pytest.mark.parametrize("npz", [True, False], ids=["npz", "safetensors"])
def test_mlx_has_its_layout_turned_and_the_positions_computed(tmp_path: Path, npz: bool) -> None:
    checkpoint = open_checkpoint(files.write_mlx(tmp_path, files.TINY, HALF, npz=npz))
    assert (checkpoint.format, checkpoint.dims, {*checkpoint.weights}) == ("mlx", files.TINY, {*HALF})
    for name, values in HALF.items():
        if name != "encoder.positional_embedding":
            np.testing.assert_array_equal(checkpoint.weights[name], values, err_msg=name)
    positions = checkpoint.weights["encoder.positional_embedding"]
    np.testing.assert_allclose(positions[3, [0, 16]], [np.sin(3), np.cos(3)], rtol=1e-5)
    np.testing.assert_allclose(positions[3, [15, 31]], [np.sin(3e-4), np.cos(3e-4)], rtol=1e-5)


@pytest.mark.parametrize("write", [files.write_onnx, files.write_openvino])
def test_matrices_of_8_bits_in_graphs_are_within_half_a_step(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    weights = open_checkpoint(write(tmp_path, files.TINY, SINGLE, quantised=True)).weights
    for name, values in SINGLE.items():
        np.testing.assert_allclose(weights[name], values, atol=np.abs(values).max() / 250, err_msg=name)


def test_layers_of_low_rank_are_the_product_of_their_factors(tmp_path: Path) -> None:
    """As in lite-whisper, whose layers compute ``x @ weight1 @ weight2 + bias``, those of the keys too."""
    rng, config = np.random.default_rng(0), {"model_type": "lite-whisper"}
    stored, products = dict(SINGLE), {}
    for layer, rows in (("encoder.blocks.1.mlp.0", 128), ("encoder.blocks.0.attn.key", 32)):
        first, second = rng.standard_normal((32, 5), np.float32), rng.standard_normal((5, rows), np.float32)
        stored |= {
            f"{layer}.weight1": first,
            f"{layer}.weight2": second,
            f"{layer}.bias": np.ones(rows, np.float32),
        }
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
    with pytest.raises(
        CheckpointError, match=r"encoder\.blocks\.1\.mlp\.0 has factors of the shapes \(32, 5\) and \(128, 5\)"
    ):
        open_checkpoint(path)


@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f16", np.float16)])
def test_ggml_vectors_are_float32(tmp_path: Path, kind: str, dtype: type) -> None:
    matrices = {name for name, values in SINGLE.items() if values.ndim > 1 and "positional" not in name}
    expected = {name: v.astype(dtype if name in matrices else np.float32) for name, v in SINGLE.items()}
    path = files.write_ggml(tmp_path / "ggml.bin", files.TINY, SINGLE, kind)
    assert_read_as(path, expected, "ggml", np.dtype(dtype).name)


OUTPUT = "_orig_mod.proj_out.weight"


def write_compiled(directory: Path, output: files.Array) -> Path:
    """Write a model as it is saved after torch.compile, with the matrix of the output beside the embedding."""
    config = {"tie_word_embeddings": False}
    files.write_huggingface(directory, files.TINY, HALF, prefix="_orig_mod.", config=config)
    tensors = {f"_orig_mod.{files.huggingface_name(name)}": values for name, values in HALF.items()}
    files.write_safetensors(directory / "model.safetensors", {OUTPUT: output, **tensors})
    return directory


def test_the_output_is_the_embedding(tmp_path: Path) -> None:
    embedding = HALF["decoder.token_embedding.weight"]
    assert_read_as(write_compiled(tmp_path / "same", embedding), HALF, "huggingface", "float16")
    with pytest.raises(CheckpointError, match=r"proj_out\.weight and the token embedding differ"):
        open_checkpoint(write_compiled(tmp_path / "other", embedding + np.float16(1)))


def test_weights_of_a_variant_and_in_float64_are_read(tmp_path: Path) -> None:
    double = {name: values.astype(np.float64) for name, values in SINGLE.items()}
    one = files.write_huggingface(tmp_path / "one", files.TINY, double)
    (one / "model.safetensors").rename(one / "model.fp64.safetensors")
    assert_read_as(one, SINGLE, "huggingface", "float64")
    shards = files.write_huggingface(tmp_path / "shards", files.TINY, HALF, shards=2)
    (shards / "model.safetensors.index.json").rename(shards / "model.safetensors.index.fp16.json")
    assert_read_as(shards, HALF, "huggingface", "float16")


@pytest.mark.parametrize("writer", ["safetensors", "torch-bin"])
def test_bfloat16_is_converted_to_equal_float32(tmp_path: Path, writer: str) -> None:
    path = files.FORMATS[writer](tmp_path, files.TINY, BFLOAT16)
    assert_read_as(path, AS_SINGLE, "huggingface", "bfloat16")


def test_weights_are_read_only_and_read_on_each_access_but_not_to_know_their_names(tmp_path: Path) -> None:
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
def test_digest_changes_with_the_last_weight(tmp_path: Path, writer: str) -> None:
    last = "decoder.blocks.2.mlp.2.weight"
    other = {**HALF, last: HALF[last].copy()}
    other[last][-1, -1] += 1
    digests = []
    for number, weights in enumerate((HALF, HALF, other)):
        folder = tmp_path / str(number)
        folder.mkdir()
        digests.append(open_checkpoint(files.FORMATS[writer](folder, files.TINY, weights)).weights.digest)
    assert digests[0] == digests[1] != digests[2]


def test_digest_changes_with_the_number_of_heads(tmp_path: Path) -> None:
    one = files.write_huggingface(tmp_path / "1", files.TINY, HALF)
    two = files.write_huggingface(tmp_path / "2", replace(files.TINY, n_text_head=2), HALF)
    assert open_checkpoint(one).weights.digest != open_checkpoint(two).weights.digest


def test_format_is_detected_by_content_not_by_name(tmp_path: Path) -> None:
    assert open_checkpoint(files.write_openai(tmp_path / "ggml.bin", files.TINY, HALF)).format == "openai"
    assert open_checkpoint(files.write_ggml(tmp_path / "m.pt", files.TINY, HALF)).format == "ggml"


def test_the_only_weight_file_of_a_directory_is_opened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="absent: no such file or directory"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="0 files that may hold weights"):
        open_checkpoint(tmp_path)
    files.write_ggml(tmp_path / "ggml-tiny.bin", files.TINY, HALF)
    assert open_checkpoint(tmp_path).path == tmp_path / "ggml-tiny.bin"
    files.write_openai(tmp_path / "tiny.pt", files.TINY, HALF)
    with pytest.raises(CheckpointError, match="2 files that may hold weights; allowed are a CTranslate2"):
        open_checkpoint(tmp_path)
