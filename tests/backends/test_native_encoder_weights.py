"""The packed weights of an encoder: what is folded into them, the order of their columns, and the name of the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harken.backends.native.encoder_weights import EncoderWeights
from harken.backends.native.packed_file import Arrays, map_packed, write_packed
from harken.backends.native.packing import padded_rows
from harken.contract import Floats
from packed_matrices import unpack_rows
from tiny_models import DIMS, make_weights

CONTENTS = EncoderWeights(DIMS)
STATE = DIMS.n_audio_state
SCALE = (STATE // DIMS.n_audio_head) ** -0.5
LAYERS = range(DIMS.n_audio_layer)


@pytest.fixture(scope="module")
def weights() -> dict[str, Floats]:
    return make_weights()


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Floats]) -> Arrays:
    path = tmp_path_factory.mktemp("packed") / "encoder"
    write_packed(path, weights, CONTENTS)
    return map_packed(path, CONTENTS)


def check(arrays: Arrays, name: str, weight: Floats, bias: Floats) -> None:
    """Compare a packed layer with what it stands for: weights to half a step, biases to rounding."""
    unpacked, steps = unpack_rows(arrays, name, weight.shape[1])
    assert unpacked.shape == weight.shape
    assert (np.abs(unpacked - weight) <= 0.51 * steps).all()
    np.testing.assert_allclose(arrays[f"{name}.bias"], bias, rtol=1e-6, atol=1e-6)


def normalise(x: Floats) -> Floats:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)


def test_columns_of_a_convolution_are_three_frames_of_all_channels_in_whole_groups(
    arrays: Arrays, weights: dict[str, Floats]
) -> None:
    for name, channels in (("conv1", DIMS.n_mels), ("conv2", STATE)):
        weight = weights[f"encoder.{name}.weight"]
        padded = padded_rows(channels)
        unpacked, steps = unpack_rows(arrays, name, 3 * padded)
        for frame in range(3):
            for channel in range(channels):
                error = np.abs(unpacked[:, frame * padded + channel] - weight[:, channel, frame])
                assert (error <= 0.51 * steps[:, 0]).all()
            assert not unpacked[:, frame * padded + channels : (frame + 1) * padded].any()
        np.testing.assert_array_equal(arrays[f"{name}.bias"], weights[f"encoder.{name}.bias"])


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_behind_no_normalisation_are_plain(
    arrays: Arrays, weights: dict[str, Floats], layer: int
) -> None:
    for name, source in (("out", "attn.out"), ("mlp_out", "mlp.2")):
        weight, bias = (weights[f"encoder.blocks.{layer}.{source}.{part}"] for part in ("weight", "bias"))
        check(arrays, f"layers.{layer}.{name}", weight, bias)


@pytest.mark.parametrize("layer", LAYERS)
def test_attention_takes_over_the_normalisation_and_the_scale_of_queries_and_keys_lie_before_values(
    arrays: Arrays, weights: dict[str, Floats], layer: int
) -> None:
    block = f"encoder.blocks.{layer}"
    gain, shift = weights[f"{block}.attn_ln.weight"], weights[f"{block}.attn_ln.bias"]
    parts = {}
    for name, factor in (("query", SCALE), ("key", 1), ("value", 1)):
        weight = weights[f"{block}.attn.{name}.weight"]
        bias = weights.get(f"{block}.attn.{name}.bias", np.zeros(STATE))
        parts[name] = factor * weight * gain, factor * (weight @ shift + bias)
    check(arrays, f"layers.{layer}.query", *parts["query"])
    weight, bias = (np.concatenate(sides) for sides in zip(parts["key"], parts["value"], strict=True))
    check(arrays, f"layers.{layer}.key_value", weight, bias)


@pytest.mark.parametrize("layer", LAYERS)
def test_folded_layer_gives_what_normalisation_and_layer_give(
    arrays: Arrays, weights: dict[str, Floats], layer: int
) -> None:
    x = np.random.default_rng(0).standard_normal((20, STATE)).astype(np.float32)
    block, name = f"encoder.blocks.{layer}", f"layers.{layer}.mlp_in"
    normalised = normalise(x) * weights[f"{block}.mlp_ln.weight"] + weights[f"{block}.mlp_ln.bias"]
    expected = normalised @ weights[f"{block}.mlp.0.weight"].T + weights[f"{block}.mlp.0.bias"]
    unpacked, _ = unpack_rows(arrays, name, STATE)
    actual = normalise(x) @ unpacked.T + arrays[f"{name}.bias"]
    assert np.abs(actual - expected).max() < 1e-3 * expected.std()


def test_positions_and_the_last_normalisation_are_not_changed(
    arrays: Arrays, weights: dict[str, Floats]
) -> None:
    for name, source in (
        ("positions", "positional_embedding"),
        ("last_gain", "ln_post.weight"),
        ("last_bias", "ln_post.bias"),
    ):
        np.testing.assert_array_equal(arrays[name], weights[f"encoder.{source}"])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_weights_of_the_checkpoint_may_have_16_bits(tmp_path: Path, dtype: type[np.floating]) -> None:
    weights = {name: array.astype(np.float16) for name, array in make_weights().items()}
    write_packed(tmp_path / "half", weights, CONTENTS)
    write_packed(tmp_path / "same", {name: array.astype(dtype) for name, array in weights.items()}, CONTENTS)
    assert (tmp_path / "half").read_bytes() == (tmp_path / "same").read_bytes()


def test_keys_differ_by_the_dimensions_of_the_encoder() -> None:
    changes = [
        {"n_mels": 16},
        {"n_audio_ctx": 30},
        {"n_audio_state": 128},
        {"n_audio_head": 4},
        {"n_audio_layer": 1},
    ]
    keys = {EncoderWeights(replace(DIMS, **change)).key for change in changes}
    assert len(keys | {CONTENTS.key}) == len(changes) + 1


def test_encoders_of_different_decoders_share_a_file() -> None:
    assert EncoderWeights(replace(DIMS, n_text_layer=1, n_vocab=DIMS.n_vocab + 1)).key == CONTENTS.key
