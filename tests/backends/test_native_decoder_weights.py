"""The packed weights of a decoder: what every array of the file stands for, and the name of the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harken.backends.native.decoder_weights import DecoderWeights
from harken.backends.native.packed_file import Arrays, map_packed, write_packed
from harken.backends.native.packing import BLOCK, GROUP, from_bfloat16
from harken.backends.onnx.rotation import LM_HEAD, RotatedWeights
from harken.contract import Floats
from packed_matrices import unpack_rows
from tiny_models import DIMS, make_weights

BLOCK_0 = "decoder.blocks.0"
SUBSET = np.arange(3, DIMS.n_vocab, 7)
INT8 = DecoderWeights(dims=DIMS, bits=8)
LARGEST_ERROR = {8: 0.0041, 4: 0.13}
"""Relative to the largest magnitude of a block: half a step of 8 bits; of 4 bits a whole one, where 8 becomes 7."""


def pack(path: Path, contents: DecoderWeights) -> Arrays:
    write_packed(path, make_weights(), contents)
    return map_packed(path, contents)


def unpack_blocks(arrays: Arrays, name: str, columns: int, bits: int) -> Floats:
    """Return the weights that the integers and scales of a matrix stand for, with the rows of the padding."""
    weights = np.empty((len(arrays[f"{name}.weights"]) * GROUP, columns), np.float32)
    scales = from_bfloat16(np.ascontiguousarray(arrays[f"{name}.scales"]))
    for row in range(len(weights)):
        group, lane = divmod(row, GROUP)
        stored = arrays[f"{name}.weights"][group, :, lane]
        if bits == 4:
            stored = np.stack([stored & 15, stored >> 4], axis=1).astype(np.int8) - 8
        weights[row] = stored.reshape(-1) * np.repeat(scales[group, :, lane], BLOCK)
    return weights


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("subset", [None, SUBSET], ids=["all tokens", "some tokens"])
def test_file_holds_the_rotated_weights(tmp_path: Path, bits: int, subset: Any) -> None:
    arrays = pack(tmp_path / "packed", DecoderWeights(dims=DIMS, bits=bits, vocab_subset=subset))
    rotated = RotatedWeights(make_weights(), DIMS)
    scale = np.float32((DIMS.n_text_state // DIMS.n_text_head) ** -0.5)
    head_rows = slice(None) if subset is None else subset
    cases = {
        "head": (rotated[f"{LM_HEAD}.weight"][head_rows], rotated[f"{LM_HEAD}.bias"][head_rows]),
        "layers.0.query": tuple(rotated[f"{BLOCK_0}.attn.query.{part}"] * scale for part in ("weight", "bias")),
        "layers.0.cross_query": tuple(
            rotated[f"{BLOCK_0}.cross_attn.query.{part}"] * scale for part in ("weight", "bias")
        ),
        "layers.0.mlp_out": tuple(rotated[f"{BLOCK_0}.mlp.2.{part}"] for part in ("weight", "bias")),
        "layers.0.key": (rotated[f"{BLOCK_0}.attn.key.weight"], None),
    }
    for name, (weight, bias) in cases.items():
        unpacked = unpack_blocks(arrays, name, weight.shape[1], bits)
        peaks = np.repeat(np.abs(weight.reshape(len(weight), -1, BLOCK)).max(axis=2), BLOCK, axis=1)
        assert (np.abs(unpacked[: len(weight)] - weight) <= LARGEST_ERROR[bits] * peaks).all()
        assert not unpacked[len(weight) :].any()
        if bias is None:
            assert f"{name}.bias" not in arrays
        else:
            np.testing.assert_array_equal(arrays[f"{name}.bias"][: len(bias)], bias)
            assert not arrays[f"{name}.bias"][len(bias) :].any()
    np.testing.assert_array_equal(arrays["positions"], rotated["decoder.positional_embedding"])
    embedding = rotated["decoder.token_embedding.weight"].astype(np.float16)
    np.testing.assert_array_equal(arrays["embedding"], embedding)


@pytest.mark.parametrize("bits", [8, 4])
def test_cross_keys_and_values_are_the_plain_weights_in_16_bits(tmp_path: Path, bits: int) -> None:
    arrays, weights = pack(tmp_path / "packed", DecoderWeights(dims=DIMS, bits=bits)), make_weights()
    for layer in range(DIMS.n_text_layer):
        for name, source in (("cross_key", "cross_attn.key"), ("cross_value", "cross_attn.value")):
            weight = weights[f"decoder.blocks.{layer}.{source}.weight"]
            unpacked, steps = unpack_rows(arrays, f"layers.{layer}.{name}", DIMS.n_audio_state)
            assert (np.abs(unpacked - weight) <= 0.51 * steps).all()
        values = f"decoder.blocks.{layer}.cross_attn.value.bias"
        np.testing.assert_array_equal(arrays[f"layers.{layer}.cross_value.bias"], weights[values])
        assert f"layers.{layer}.cross_key.bias" not in arrays


def test_matrices_of_a_layer_are_those_of_its_arrays_in_the_order_of_the_library() -> None:
    names = [matrix.name for matrix in INT8.layer_matrices(1)]
    assert names == [
        f"layers.1.{name}"
        for name in (
            *("query", "key", "value", "out", "cross_query", "cross_out", "mlp_in", "mlp_out"),
            *("cross_key", "cross_value"),
        )
    ]


def test_each_format_has_a_key_of_its_own() -> None:
    formats = [
        INT8,
        DecoderWeights(dims=DIMS, bits=4),
        DecoderWeights(dims=DIMS, bits=8, vocab_subset=SUBSET),
        DecoderWeights(dims=DIMS, bits=8, vocab_subset=SUBSET[1:]),
        DecoderWeights(dims=replace(DIMS, n_text_head=4), bits=8),
        DecoderWeights(dims=replace(DIMS, n_text_layer=1), bits=8),
    ]
    assert len({contents.key for contents in formats}) == len(formats)


def test_decoders_with_and_without_an_encoder_share_a_file() -> None:
    assert DecoderWeights(dims=DIMS.without_encoder(), bits=8).key == INT8.key
