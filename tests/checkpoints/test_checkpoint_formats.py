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

WRITERS: dict[str, tuple[str, Callable[[Path, files.Arrays], Path]]] = {
    "openai": ("openai", lambda path, w: files.write_openai(path / "m.pt", files.TINY, w)),
    "safetensors": ("huggingface", lambda path, w: files.write_huggingface(path, files.TINY, w)),
    "sharded": ("huggingface", lambda path, w: files.write_huggingface(path, files.TINY, w, shards=3)),
    "torch-bin": ("huggingface", lambda path, w: files.write_huggingface(path, files.TINY, w, torch=True)),
    "torch-shards": (
        "huggingface",
        lambda path, w: files.write_huggingface(path, files.TINY, w, torch=True, shards=2),
    ),
    "ctranslate2": ("ctranslate2", lambda path, w: files.write_ctranslate2(path, files.TINY, w)),
}


@pytest.mark.parametrize("weights", [HALF, SINGLE], ids=["float16", "float32"])
@pytest.mark.parametrize("writer", WRITERS)
def test_stored_weights_are_read_exactly(tmp_path: Path, writer: str, weights: files.Arrays) -> None:
    format, write = WRITERS[writer]
    checkpoint = open_checkpoint(write(tmp_path, weights))
    assert (checkpoint.format, checkpoint.dims) == (format, files.TINY)
    assert checkpoint.stored_dtype == weights["decoder.token_embedding.weight"].dtype.name
    assert_equal(checkpoint.weights, weights)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_ggml_vectors_are_float32(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(files.write_ggml(tmp_path / "ggml.bin", files.TINY, SINGLE, kind))
    matrices = {name for name, values in SINGLE.items() if values.ndim > 1 and "positional" not in name}
    narrow = np.float16 if kind == "f16" else np.float32
    expected = {name: v.astype(narrow if name in matrices else np.float32) for name, v in SINGLE.items()}
    assert (checkpoint.format, checkpoint.dims) == ("ggml", files.TINY)
    assert_equal(checkpoint.weights, expected)


@pytest.mark.parametrize("writer", ["safetensors", "torch-bin"])
def test_bfloat16_is_converted_to_equal_float32(tmp_path: Path, writer: str) -> None:
    checkpoint = open_checkpoint(WRITERS[writer][1](tmp_path, BFLOAT16))
    assert checkpoint.stored_dtype == "bfloat16"
    expected = {n: (bits.astype(np.uint32) << 16).view(np.float32) for n, bits in BFLOAT16.items()}
    assert_equal(checkpoint.weights, expected)


def assert_equal(found: files.Arrays, expected: files.Arrays) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype, name
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_weights_are_read_only_and_read_on_each_access(tmp_path: Path) -> None:
    weights = open_checkpoint(files.write_openai(tmp_path / "m.pt", files.TINY, HALF)).weights
    name = "decoder.ln.weight"
    assert weights.shape(name) == (32,)
    assert weights[name] is not weights[name]
    with pytest.raises(ValueError, match="read-only"):
        weights[name][0] = 1


def test_membership_and_size_do_not_read_the_file(tmp_path: Path) -> None:
    path = files.write_openai(tmp_path / "m.pt", files.TINY, HALF)
    weights = open_checkpoint(path).weights
    path.unlink()
    assert "decoder.ln.weight" in weights
    assert "decoder.ln" not in weights
    assert len(weights) == len(HALF)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        weights["decoder.ln.weight"]


@pytest.mark.parametrize("writer", [*WRITERS, "ggml"])
def test_digest_changes_with_the_last_weight(tmp_path: Path, writer: str) -> None:
    def digest(folder: str, weights: files.Arrays) -> str:
        (tmp_path / folder).mkdir()
        if writer == "ggml":
            path = files.write_ggml(tmp_path / folder / "ggml.bin", files.TINY, weights)
        else:
            path = WRITERS[writer][1](tmp_path / folder, weights)
        return open_checkpoint(path).weights.digest

    last = "decoder.blocks.2.mlp.2.weight"
    other = {**HALF, last: HALF[last].copy()}
    other[last][-1, -1] += 1
    assert digest("a", HALF) == digest("b", HALF)
    assert digest("a2", HALF) != digest("c", other)


def test_digest_changes_with_the_number_of_heads(tmp_path: Path) -> None:
    one = files.write_huggingface(tmp_path / "1", files.TINY, HALF)
    two = files.write_huggingface(tmp_path / "2", replace(files.TINY, n_text_head=2), HALF)
    assert open_checkpoint(one).weights.digest != open_checkpoint(two).weights.digest


# --- detection of the format by content --------------------------------------------------------------------


def test_format_is_detected_by_content_not_by_name(tmp_path: Path) -> None:
    assert open_checkpoint(files.write_openai(tmp_path / "ggml.bin", files.TINY, HALF)).format == "openai"
    assert open_checkpoint(files.write_ggml(tmp_path / "m.pt", files.TINY, HALF)).format == "ggml"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty; allowed are"),
        (b"ID3\x04", "not a model in a known format; allowed are a CTranslate2 directory"),
        (b"GGUF\x03\0\0\0", "a GGUF file, which whisper.cpp does not use"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "saved by a torch older than 1.6"),
        (b"lmgg", "truncated: 40 bytes expected, 0 are left"),
        (b"\x06\0\0\0\x10\0TransformerSpec\0\x07\0\0\0", "TransformerSpec revision 7: allowed is version 6"),
        (b"PK\3\4" + bytes(50), "not a zip archive"),
        (b'{"weight_map": 3}', "config.json: is missing"),
    ],
)
def test_file_of_another_kind_is_rejected_with_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason) as caught:
        open_checkpoint(path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


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


# --- weights that are not those of Whisper -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"encoder.conv1.weight": None}, "not a Whisper model: weight encoder.conv1.weight is missing"),
        ({"decoder.ln.bias": None}, "misses weights, 1 in all, the first is 'decoder.ln.bias'"),
        (
            {"decoder.lora.weight": np.ones(3, "f4")},
            "has unknown weights, 1 in all, the first is 'decoder.lora",
        ),
        ({"decoder.ln.bias": np.ones(31, "f4")}, r"decoder.ln.bias has shape \(31,\), allowed is \(32,\)"),
        ({"encoder.conv1.weight": np.ones((8, 3), "f4")}, "allowed are 3 axes"),
        ({"decoder.positional_embedding": np.ones((17, 32), "f4")}, "declares n_text_ctx=16, its weights have"),
        ({"decoder.blocks.7.ln": np.ones(3, "f4")}, "declares n_text_layer=3, its weights have n_text_layer=4"),
    ],
)
def test_weights_that_do_not_match_the_dimensions_are_rejected(
    tmp_path: Path, change: dict[str, files.Array | None], reason: str
) -> None:
    weights = {name: values for name, values in {**HALF, **change}.items() if values is not None}
    with pytest.raises(CheckpointError, match=reason):
        open_checkpoint(files.write_openai(tmp_path / "m.pt", files.TINY, weights))
