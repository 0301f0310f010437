"""The filter bank, embeddings of pieces of speech, stored graphs, and files that hold something else."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from harken.errors import CheckpointError
from harken.speakers.embedding import N_BANDS, EmbeddingModel, fbank, frame_count
from tiny_campplus import SIZE, campplus_weights, write_campplus


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedding")
    return EmbeddingModel(write_campplus(folder / "tiny.pt", campplus_weights()), threads=1, cache=folder)


def noise(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def test_embeddings_have_length_one(model):
    embeddings = model.embed([noise(16_000), noise(24_000, 1)])
    assert embeddings.shape == (2, SIZE)
    assert embeddings.dtype == np.float32
    assert np.linalg.norm(embeddings, axis=1) == pytest.approx([1, 1], abs=1e-6)


def test_no_pieces_have_no_embeddings(model):
    assert model.embed([]).shape == (0, SIZE)


def test_an_embedding_does_not_depend_on_the_other_pieces(model):
    pieces = [noise(samples, i) for i, samples in enumerate([16_000, 9_000, 16_000, 100] * 4)]
    together = model.embed(pieces)
    alone = np.concatenate([model.embed([piece]) for piece in pieces])
    assert np.abs(together - alone).max() < 1e-5


def test_a_short_piece_is_repeated(model):
    piece = noise(1000)
    assert np.array_equal(model.embed([piece]), model.embed([np.tile(piece, 5)[:4800]]))


def test_a_piece_without_samples_is_refused(model):
    with pytest.raises(ValueError, match="no samples"):
        model.embed([noise(16_000), np.empty(0, np.float32)])


def test_a_stored_graph_is_used_again(model, tmp_path, monkeypatch):
    path = write_campplus(tmp_path / "tiny.pt", campplus_weights())
    first = EmbeddingModel(path, threads=1, cache=tmp_path).embed([noise(16_000)])
    monkeypatch.setitem(sys.modules, "harken.backends.onnx.builder", None)  # building again would import it
    assert np.array_equal(EmbeddingModel(path, threads=1, cache=tmp_path).embed([noise(16_000)]), first)


def test_other_weights_have_another_graph(model, tmp_path):
    pieces = [noise(16_000)]
    paths = [write_campplus(tmp_path / f"{seed}.pt", campplus_weights(seed)) for seed in (0, 1)]
    same, other = (EmbeddingModel(path, threads=1, cache=tmp_path).embed(pieces) for path in paths)
    assert np.array_equal(same, model.embed(pieces))
    assert np.abs(other - same).max() > 0.01


def without(name):
    return lambda weights: weights.pop(name)


def replaced(name, values):
    return lambda weights: weights.update({name: np.asarray(values, np.float32)})


LAYER = "xvector.block2.tdnnd1"
DAMAGES = {
    "another model": (
        lambda weights: weights.clear(),
        "not a CAM++ model: weight head.conv1.weight is missing",
    ),
    "a missing weight": (
        without(f"{LAYER}.cam_layer.linear1.bias"),
        f"not a CAM++ model: weight {LAYER}.cam_layer.linear1.bias is missing",
    ),
    "a narrower weight": (
        replaced(f"{LAYER}.linear1.weight", np.ones((4, 4, 1))),
        f"weight {LAYER}.linear1.weight has shape (4, 4, 1), allowed is (any, 5, 1)",
    ),
    "another number of axes": (
        replaced("xvector.dense.linear.weight", np.ones((4, 12))),
        "weight xvector.dense.linear.weight has shape (4, 12), allowed is (any, any, 1)",
    ),
    "fewer bands": (
        replaced("xvector.tdnn.linear.weight", np.ones((6, 16, 5))),
        "a CAM++ model for 64 bands, allowed is 80",
    ),
    "values that are not finite": (
        replaced("head.bn1.bias", [0, np.nan]),
        "weight head.bn1.bias has values that are not finite",
    ),
    "a negative variance": (
        replaced("head.bn1.running_var", [1, -1]),
        "weight head.bn1.running_var has negative values",
    ),
    "a layer without its block": (
        without("xvector.block1.tdnnd1.linear1.weight"),
        "not a CAM++ model: weight xvector.block1.tdnnd1.linear1.weight is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_of_something_else_is_named(tmp_path, damage):
    change, message = DAMAGES[damage]
    weights = campplus_weights()
    change(weights)
    path = write_campplus(tmp_path / "other.pt", weights)
    with pytest.raises(CheckpointError, match=re.escape(f"{path}: {message}")) as error:
        EmbeddingModel(path, threads=1, cache=tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [None, b"", b"not a zip archive"])
def test_a_missing_or_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "damaged.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        EmbeddingModel(path, threads=1, cache=tmp_path)


def kaldi_fbank(samples: np.ndarray) -> np.ndarray:
    """Compute the filter bank frame by frame in float64, as Kaldi describes it."""
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    hertz = np.arange(256) * 31.25
    mel = 1127 * np.log(1 + hertz / 700)
    edges = 1127 * np.log(1 + np.array([20.0, 8000.0]) / 700)
    step = (edges[1] - edges[0]) / 81
    rows = []
    for start in range(0, len(samples) - 399, 160):
        frame = samples[start : start + 400].astype(np.float64)
        frame -= frame.mean()
        frame -= 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * window, 512)[:256]) ** 2
        triangles = np.array([1 - np.abs(mel - (edges[0] + (band + 1) * step)) / step for band in range(80)])
        rows.append(np.log(np.maximum(np.maximum(triangles, 0) @ power, np.finfo(np.float32).eps)))
    return np.array(rows) - np.mean(rows, axis=0)


@pytest.mark.parametrize("samples", [400, 559, 560, 16_000, 10_640, 24_321])
def test_frames_are_those_of_kaldi(samples):
    noise = np.random.default_rng(samples).normal(0, 0.1, samples).astype(np.float32)
    bands = fbank(noise)
    assert bands.dtype == np.float32
    assert bands.shape == (frame_count(samples), N_BANDS)
    # Rounding in float32; the largest difference seen is 1.3e-4.
    assert np.abs(bands - kaldi_fbank(noise)).max() < 3e-4


def test_loudness_does_not_matter():
    noise = np.random.default_rng(1).normal(0, 0.01, 16_000).astype(np.float32)
    assert np.abs(fbank(noise * 16) - fbank(noise)).max() < 1e-4


def test_digital_silence_has_no_bands():
    assert not fbank(np.zeros(8000, np.float32)).any()
