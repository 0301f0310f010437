"""Tests of quantised weights: exactly as the format defines them, and within half a quantisation step."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import checkpoint_files as files
from harken.checkpoints import open_checkpoint
from harken.checkpoints.ggml_types import DTYPES
from harken.errors import CheckpointError

WEIGHTS = files.random_weights(dtype=np.float32)
MATRIX = "decoder.blocks.1.mlp.2.weight"


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_ggml_blocks_are_within_half_a_step(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(files.write_ggml(tmp_path / "m.bin", files.TINY, WEIGHTS, kind))
    assert checkpoint.stored_dtype == kind
    found = checkpoint.weights[MATRIX]
    assert found.dtype == np.float32
    blocks = WEIGHTS[MATRIX].reshape(-1, 32)
    # Half a step between levels, or a whole step at the end of a range that has no level of its own. Scale and
    # minimum are rounded to float16.
    levels = {"4": 16, "5": 32, "8": 255}[kind[1]]
    extent = np.ptp(blocks, 1) if kind.endswith("_1") else 2 * np.abs(blocks).max(1)
    step = extent / (levels - 1 if kind.endswith("_1") or kind == "q8_0" else levels)
    worst = 1.0 if kind in ("q4_0", "q5_0") else 0.5
    bound = worst * step + np.abs(blocks).max(1) * 2.0**-10
    assert np.all(np.abs(found.reshape(-1, 32) - blocks).max(1) <= bound)


def test_every_type_of_ggml_is_dequantised_as_its_own_package_does() -> None:
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
def test_mlx_weights_are_codes_times_scales_plus_biases(tmp_path: Path, bits: int) -> None:
    """After mlx/backend/cpu/quantized.cpp: code number i of a row has bits i * bits onwards of its words."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (128, 32))
    scales, biases = rng.standard_normal((2, 128, 1), np.float32)
    rows = [
        sum(int(code) << bits * i for i, code in enumerate(row)).to_bytes(4 * bits, "little") for row in codes
    ]
    files.write_mlx(tmp_path, files.TINY, WEIGHTS)
    layer, weights = "encoder.blocks.0.mlp1", dict(np.load(tmp_path / "weights.npz"))
    words = np.frombuffer(b"".join(rows), "<u4").reshape(128, bits)
    quantised = {f"{layer}.weight": words, f"{layer}.scales": scales, f"{layer}.biases": biases}
    np.savez(tmp_path / "weights.npz", **{**weights, **quantised})
    with pytest.raises(CheckpointError, match=r"is quantised, config\.json says not how"):
        open_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": bits}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = open_checkpoint(tmp_path).weights["encoder.blocks.0.mlp.0.weight"]
    np.testing.assert_allclose(found, codes * scales + biases, rtol=1e-5)


@pytest.mark.parametrize("kind", ["q4_0", "q8_0"])
def test_ggml_vectors_and_convolutions_are_not_quantised(tmp_path: Path, kind: str) -> None:
    weights = open_checkpoint(files.write_ggml(tmp_path / "m.bin", files.TINY, WEIGHTS, kind)).weights
    for name in ("decoder.positional_embedding", "decoder.ln.bias", "encoder.conv1.bias"):
        np.testing.assert_array_equal(weights[name], WEIGHTS[name])
    np.testing.assert_array_equal(weights["encoder.conv2.weight"], WEIGHTS["encoder.conv2.weight"].astype("f2"))


@pytest.mark.parametrize("precision", ["int8", "int16"])
def test_ctranslate2_weights_are_within_half_a_step(tmp_path: Path, precision: str) -> None:
    checkpoint = open_checkpoint(files.write_ctranslate2(tmp_path, files.TINY, WEIGHTS, precision))
    assert checkpoint.stored_dtype == precision
    assert set(checkpoint.weights) == set(WEIGHTS)
    for name, values in WEIGHTS.items():
        found = checkpoint.weights[name]
        assert found.dtype == np.float32
        if values.ndim == 1 or "positional" in name:
            np.testing.assert_array_equal(found, values)
        else:
            assert np.all(np.abs(found - values) <= half_step(name, values, precision)), name


def half_step(name: str, values: files.Array, precision: str) -> npt.NDArray[np.float32]:
    """Return half the distance of two codes: the maximum of a row has code 127, that of a packed array 1024."""
    largest = np.abs(values.reshape(len(values), -1)).max(1).reshape(-1, *[1] * (values.ndim - 1))
    if precision == "int8":
        return largest / 127 / 2 * 1.0001
    packed = {"cross_attn": ("key", "value"), "attn": ("query", "key", "value")}
    module, part = name.removesuffix(".weight").split(".")[-2:]
    if part in packed.get(module, ()):
        largest = max(np.abs(WEIGHTS[name.replace(part, other)]).max() for other in packed[module])
    return np.float32(np.max(largest)) / 1024 / 2 * np.float32(1.0001)


def test_ctranslate2_bfloat16_is_exact(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(files.write_ctranslate2(tmp_path, files.TINY, WEIGHTS, "bfloat16"))
    assert checkpoint.stored_dtype == "bfloat16"
    for name, values in WEIGHTS.items():
        expected = (files.bfloat16_bits(values).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(checkpoint.weights[name], expected)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_ctranslate2_scale_that_is_not_finite_and_positive_is_rejected(tmp_path: Path, scale: float) -> None:
    path = files.write_ctranslate2(tmp_path, files.TINY, WEIGHTS, "int8") / "model.bin"
    data = bytearray(path.read_bytes())
    at = data.index(b"decoder/embeddings/weight_scale\0") + 32 + 1 + 4 + 1 + 4
    data[at : at + 4] = struct.pack("<f", scale)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="is not finite and positive"):
        open_checkpoint(path).weights["decoder.token_embedding.weight"]


@pytest.mark.parametrize("quantisation", [None, "float16", "bfloat16", "int8", "int8_float16", "int16"])
def test_files_of_ctranslate2_itself_are_read(tmp_path: Path, quantisation: str | None) -> None:
    """The same model, serialised by CTranslate2 itself."""
    specs = pytest.importorskip("ctranslate2.specs", reason="ctranslate2 is not installed")
    dims = files.TINY
    spec = specs.WhisperSpec(dims.n_audio_layer, dims.n_audio_head, dims.n_text_layer, dims.n_text_head)
    for name, values in files._ctranslate2_arrays(dims, WEIGHTS).items():
        module, _, leaf = name.rpartition("/")
        setattr(specs.model_spec.index_spec(spec, module), leaf, values.copy())
    spec.decoder.projection.weight = WEIGHTS["decoder.token_embedding.weight"].copy()
    spec.register_vocabulary([str(token) for token in range(dims.n_vocab)])
    spec.validate()
    spec.optimize(quantisation)
    spec._serialize(str(tmp_path / "model.bin"))
    checkpoint = open_checkpoint(tmp_path)
    step = {None: 0.0, "float16": 2**-11, "bfloat16": 2**-8, "int8": 1 / 254, "int8_float16": 1 / 254}
    for name, values in WEIGHTS.items():
        found = checkpoint.weights[name]
        if quantisation == "int16" and values.ndim > 1 and "positional" not in name:
            bound = half_step(name, values, "int16")
        else:
            bound = np.abs(values).max() * step.get(quantisation, 0.0) * 1.0001
        assert np.all(np.abs(found.astype(np.float32) - values) <= bound), name
