"""Embeddings of pieces of speech: batches, short pieces, stored graphs, and files that hold something else."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from harken.errors import CheckpointError
from harken.speakers.embedding import EmbeddingModel
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


@pytest.mark.parametrize("content", [b"", b"not a zip archive"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "damaged.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        EmbeddingModel(path, threads=1, cache=tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path / "none.pt"))):
        EmbeddingModel(tmp_path / "none.pt", threads=1, cache=tmp_path)
