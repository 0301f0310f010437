"""Weights and graphs on disk: whole, made once, and of the weights and options that were asked for."""

import os
from pathlib import Path

import numpy as np
import pytest

from harken.backends.native.weights import DecoderWeights
from harken.backends.onnx.builder import GraphBuilder
from harken.backends.onnx.runtimes import DATA_FILE, write_graph
from harken.checkpoints.alignment_heads import KeptHeads
from harken.errors import BackendUnavailable, CheckpointError, OutputError
from tiny_models import DIMS, make_backend, make_mel

STORING = ("native-int8", "onnx-fp32")


def open_stored(name, folder, weights=None, **options):
    try:
        return make_backend(name, folder, weights, **{"digest": "d"} | options)
    except BackendUnavailable as error:
        pytest.skip(str(error))


FEW = np.arange(0, DIMS.n_vocab, 7)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("native-int8", {"vocab_subset": FEW}),
        ("onnx-fp32", {"vocab_subset": FEW}),
        ("onnx-fp32", {"heads": KeptHeads(((0, 1),), ())}),
    ],
)
def test_weights_are_read_only_where_they_are_not_stored_for_the_same_options(name, other, tmp_path):
    open_stored(name, tmp_path)
    assert open_stored(name, tmp_path, {}).encode(make_mel(1)).n_windows == 1
    for options in ({"digest": "other"}, other):
        with pytest.raises(KeyError):
            open_stored(name, tmp_path, {}, **options)
    open_stored(name, tmp_path, **other)
    open_stored(name, tmp_path, {}, **other)
    with pytest.raises(KeyError):
        open_stored(name, tmp_path, {}, vocab_subset=FEW[1:])


@pytest.mark.parametrize("name", STORING)
def test_weights_that_changed_meanwhile_are_not_stored(name, tmp_path):
    def changed():
        raise CheckpointError("changed")

    with pytest.raises(CheckpointError, match="changed"):
        open_stored(name, tmp_path, check_unchanged=changed)
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


def build():
    """Build a graph that adds constants large enough to be stored beside it."""
    graph = GraphBuilder("add")
    y = graph.input("x", (4096,))
    for _ in range(3):
        y = graph.op("Add", y, graph.constant(np.ones(4096, np.float32)))
    graph.output(y, "y", (4096,))
    return graph.build()


def test_files_that_were_not_written_whole_are_refused(tmp_path, monkeypatch):
    write_bytes = Path.write_bytes

    def lose_weights(path, data):
        """Lose the end of the weights between writing and checking."""
        os.truncate(path.with_name(DATA_FILE), 3 * 4096)
        write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", lose_weights)
    with pytest.raises(OSError, match="was not written whole"):
        write_graph(build(), tmp_path)


def test_packed_weights_that_were_not_written_whole_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(DecoderWeights, "write", lambda self, weights, put: None)
    with pytest.raises(OutputError, match="was not written whole"):
        open_stored("native-int8", tmp_path)
