"""Model files that change while they are read, and weights that are not finite: an error, never wrong text."""

import hashlib
import os
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from checkpoint_files import raises_checkpoint_error
from harken.backend_factory import BackendFactory
from harken.backends.onnx import graphs
from harken.checkpoints import model_files, open_checkpoint
from harken.errors import BackendUnavailable, CheckpointError

MEL = np.random.default_rng(1).standard_normal((1, files.TINY.n_mels, 2 * files.TINY.n_audio_ctx), np.float32)


def make_backend(path, cache, name="onnx"):
    threads = None if name == "numpy" else 1
    factory = BackendFactory(backend=name, precision="fp32", threads=threads, device="cpu", cache=cache)
    try:
        return factory.make_backend(open_checkpoint(path))
    except BackendUnavailable as error:
        pytest.skip(str(error))


def logits(backend):
    return backend.open_session(backend.encode(MEL), [0], 8).extend([[1, 2, 3]]).values


def write_model(folder, seed=0):
    """Write a model and return the file of its weights."""
    return files.write_huggingface(folder, files.TINY, files.random_weights(seed=seed)) / "model.safetensors"


def replace(path):
    """Put the file of another model in its place."""
    os.replace(write_model(path.parent / "other", seed=1), path)


def overwrite(path, *, backdated=False):
    """Write the weights of another model into the same file."""
    before, other = path.stat(), write_model(path.parent / "other", seed=1)
    assert other.stat().st_size == before.st_size
    path.write_bytes(other.read_bytes())
    if backdated:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# Elsewhere the file system does not tell when a file's attributes were set.
CHANGES = [
    overwrite,
    replace,
    Path.unlink,
    *([partial(overwrite, backdated=True)] if os.name == "posix" else []),
]


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model")


def during(monkeypatch, graph_name, change):
    """Have something happen while a graph is built for the first time, when its weights have been read in part."""
    build = getattr(graphs, graph_name)

    def build_and_change(weights, *options):
        monkeypatch.setattr(graphs, graph_name, build)
        weights["decoder.ln.weight"]
        change()
        return build(weights, *options)

    monkeypatch.setattr(graphs, graph_name, build_and_change)


@pytest.mark.parametrize("graph_name", ["encoder", "cross_kv", "decoder"])
def test_model_that_changes_while_graphs_are_built_is_refused_and_not_stored(
    model, tmp_path, monkeypatch, graph_name
):
    original = model.read_bytes()
    during(monkeypatch, graph_name, lambda: overwrite(model))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: changed while it was read"):
        make_backend(model, tmp_path / "cache")
    for thread in threading.enumerate():  # the change may still be under way while another graph has noticed it
        if thread.name == "harken-loading":
            thread.join()
    model.write_bytes(original)
    expected = logits(make_backend(model, tmp_path, "numpy"))
    np.testing.assert_allclose(logits(make_backend(model, tmp_path / "cache")), expected, atol=1e-4)


@pytest.mark.parametrize("change", CHANGES)
def test_model_that_changed_since_it_was_opened_is_refused(model, tmp_path, change):
    checkpoint = open_checkpoint(model)
    change(model)
    for backend in ("onnx", "numpy"):
        with pytest.raises(CheckpointError, match="changed while it was read; load the model again"):
            BackendFactory(backend=backend, cache=tmp_path / "cache").make_backend(checkpoint)
    assert not (tmp_path / "cache").exists()


def test_model_that_changes_while_it_is_hashed_is_refused(model, monkeypatch):
    hash_file = hashlib.file_digest

    def hash_and_change(*given):
        done = hash_file(*given)
        overwrite(model)
        return done

    checkpoint = open_checkpoint(model)
    monkeypatch.setattr(hashlib, "file_digest", hash_and_change)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        _ = checkpoint.weights.digest


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_of_a_large_file_is_kept_until_the_file_changes(model, tmp_path, monkeypatch, change):
    def digest():
        monkeypatch.setattr(model_files, "_digests", {})  # as in another process
        return open_checkpoint(model).weights.digest

    expected, hashed = digest(), []
    monkeypatch.setattr(model_files, "_LEAST_STORED_BYTES", model.stat().st_size)
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    hash_file = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: hashed.append(given) or hash_file(*given))
    assert digest() == expected
    at_first = len(hashed)
    assert digest() == expected
    assert len(hashed) == 2 * at_first - 1  # all but the weights
    change(model)
    if model.exists():
        assert digest() != expected
        assert len(hashed) == 3 * at_first - 1


def test_model_of_which_only_attributes_change_is_unchanged(model, tmp_path, monkeypatch):
    """As a hard link does, by ``cp -al`` of backups and by package managers."""
    expected = logits(make_backend(model, tmp_path, "numpy"))
    during(monkeypatch, "encoder", lambda: model.with_name("backup").hardlink_to(model))
    during(monkeypatch, "decoder", lambda: model.chmod(0o400))
    backend = make_backend(model, tmp_path / "cache")
    np.testing.assert_allclose(logits(backend), expected, atol=1e-4)
    model.chmod(0o600)
    overwrite(model)
    with pytest.raises(CheckpointError, match="changed while it was read"):
        backend.encode_chunk([backend.open_encoder(8)], MEL[:, :, :12], 8)


@pytest.mark.skipif(os.name != "posix", reason="the file system does not tell when attributes were set")
def test_attributes_may_change_again_while_the_file_is_hashed(model, monkeypatch):
    weights, hash_file, changed = open_checkpoint(model).weights, hashlib.file_digest, []

    def hash_and_change(*given):
        done = hash_file(*given)
        time.sleep(0.02)  # so that the file system tells the times apart
        changed.append(model.chmod(0o600))
        return done

    _ = weights.digest
    model.chmod(0o400)
    monkeypatch.setattr(hashlib, "file_digest", hash_and_change)
    weights.check_unchanged()
    assert changed


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_every_file_of_a_model_is_watched(tmp_path, name):
    files.write_huggingface(tmp_path, files.TINY, files.random_weights(), shards=2)
    weights = open_checkpoint(tmp_path).weights
    weights.check_unchanged()
    with (tmp_path / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(CheckpointError, match=f"{name}: changed while it was read"):
        weights.check_unchanged()


@pytest.mark.parametrize("backend", ["onnx", "numpy", "torch"])
def test_weights_that_are_not_finite_are_refused(tmp_path, backend):
    matrix = "decoder.blocks.1.mlp.0.weight"
    for name, value in (("encoder.conv1.bias", np.inf), (matrix, np.nan), (matrix, -np.inf)):
        weights = files.random_weights()
        weights[name].flat[3] = value
        path = files.write_openai(tmp_path / "model.pt", files.TINY, weights)
        with raises_checkpoint_error(rf"model\.pt: {name} holds values that are not finite", 1 << 30):
            make_backend(path, tmp_path / "cache", backend)
