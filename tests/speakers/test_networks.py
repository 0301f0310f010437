"""The two networks of diarization and the filter bank: what they compute, stored graphs, files of something else."""

import re
import sys

import numpy as np
import pytest

from harken.audio import load_audio
from harken.errors import CheckpointError
from harken.speakers.embedding import EmbeddingModel, fbank
from harken.speakers.pieces import N_FRAMES, STEP_SAMPLES, WINDOW_SAMPLES, SegmentationModel
from real_models import EXAMPLE, model_path
from tiny_campplus import SIZE, campplus_weights, write_campplus


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedding")
    return EmbeddingModel(write_campplus(folder / "tiny.pt", campplus_weights()), threads=1, cache=folder)


def noise(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def test_an_embedding_has_length_one_and_does_not_depend_on_the_other_pieces(model):
    pieces = [noise(samples, i) for i, samples in enumerate([16_000, 9_000, 16_000, 100] * 4)]
    together = model.embed(pieces)
    assert (together.shape, together.dtype) == ((16, SIZE), np.float32)
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(16), abs=1e-6)
    alone = np.concatenate([model.embed([piece]) for piece in pieces])
    assert np.abs(together - alone).max() < 1e-5
    assert model.embed([]).shape == (0, SIZE)


def test_a_short_piece_is_repeated_and_one_without_samples_refused(model):
    piece = noise(1000)
    assert np.array_equal(model.embed([piece]), model.embed([np.tile(piece, 5)[:4800]]))
    with pytest.raises(ValueError, match="no samples"):
        model.embed([noise(16_000), np.empty(0, np.float32)])


def test_a_stored_graph_is_used_again_and_other_weights_have_another(model, tmp_path, monkeypatch):
    pieces = [noise(16_000)]
    paths = [write_campplus(tmp_path / f"{seed}.pt", campplus_weights(seed)) for seed in (0, 1)]
    same, other = (EmbeddingModel(path, threads=1, cache=tmp_path).embed(pieces) for path in paths)
    assert np.array_equal(same, model.embed(pieces))
    assert np.abs(other - same).max() > 0.01
    monkeypatch.setitem(sys.modules, "harken.backends.onnx.builder", None)  # building again would import it
    assert np.array_equal(EmbeddingModel(paths[1], threads=1, cache=tmp_path).embed(pieces), other)


def without(name):
    return lambda weights: weights.pop(name)


def replaced(name, values):
    return lambda weights: weights.update({name: np.asarray(values, np.float32)})


LAYER = "xvector.block2.tdnnd1"
DAMAGES = [
    (lambda weights: weights.clear(), "not a CAM++ model: weight head.conv1.weight is missing"),
    (without("xvector.block1.tdnnd1.linear1.weight"), "weight xvector.block1.tdnnd1.linear1.weight is missing"),
    (without(f"{LAYER}.cam_layer.linear1.bias"), f"weight {LAYER}.cam_layer.linear1.bias is missing"),
    (
        replaced(f"{LAYER}.linear1.weight", np.ones((4, 4, 1))),
        f"weight {LAYER}.linear1.weight has shape (4, 4, 1), allowed is (any, 5, 1)",
    ),
    (
        replaced("xvector.dense.linear.weight", np.ones((4, 12))),
        "weight xvector.dense.linear.weight has shape (4, 12), allowed is (any, any, 1)",
    ),
    (replaced("xvector.tdnn.linear.weight", np.ones((6, 16, 5))), "a CAM++ model for 64 bands, allowed is 80"),
    (replaced("head.bn1.bias", [0, np.nan]), "weight head.bn1.bias has values that are not finite"),
    (replaced("head.bn1.running_var", [1, -1]), "weight head.bn1.running_var has negative values"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGES)
def test_a_file_of_something_else_is_named(tmp_path, change, message):
    weights = campplus_weights()
    change(weights)
    path = write_campplus(tmp_path / "other.pt", weights)
    with pytest.raises(CheckpointError, match=rf"^{re.escape(str(path))}: .*{re.escape(message)}[^\n]*$"):
        EmbeddingModel(path, threads=1, cache=tmp_path)


def another_graph():
    from onnx import TensorProto, helper

    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 4]) for name in ("input", "output")]
    graph = helper.make_graph([helper.make_node("Relu", ["input"], ["output"])], "other", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return model.SerializeToString()


def test_a_missing_or_damaged_file_is_named(tmp_path):
    for number, content in enumerate((None, b"", b"not a zip archive", bytes(1000), another_graph())):
        path = tmp_path / f"{number}.model"
        if content is not None:
            path.write_bytes(content)
            with pytest.raises(CheckpointError, match=f"{path}: is damaged, or not segmentation-3"):
                SegmentationModel(path, threads=1)
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            EmbeddingModel(path, threads=1, cache=tmp_path)


def test_loudness_does_not_matter_and_digital_silence_has_no_bands():
    quiet = noise(16_000, 1) / 10
    assert np.abs(fbank(quiet * 16) - fbank(quiet)).max() < 1e-4
    assert not fbank(np.zeros(8000, np.float32)).any()


@pytest.mark.real
def test_speech_is_active_where_it_is_loud():
    speech = np.zeros(WINDOW_SAMPLES, np.float32)
    speech[3 * 16_000 :] = load_audio(EXAMPLE)[: WINDOW_SAMPLES - 3 * 16_000]
    model = SegmentationModel(model_path("speakers") / "segmentation-3.0.onnx", threads=1)
    together = model.activities(np.stack([speech, np.zeros_like(speech)]))
    assert together.shape == (2, N_FRAMES, 3)
    assert not together[1].any()
    active = together[0].any(axis=1)
    assert np.flatnonzero(active)[0] * STEP_SAMPLES == pytest.approx(3.3 * 16_000, abs=0.2 * 16_000)
    assert active.mean() > 0.4
    assert together[0].sum(axis=1).max() == 1, "one person speaks"
    np.testing.assert_array_equal(model.activities(speech[None])[0], together[0])
