"""Graphs on disk: whole, built once, and of the weights and options that were asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harken.backends.onnx import OnnxBackend
from harken.backends.onnx.builder import GraphBuilder
from harken.backends.onnx.graph_files import DATA_FILE, MODEL_FILE, BuiltGraph, write_graph
from harken.types import Dims
from tiny_models import DIMS, make_weights


def build() -> BuiltGraph:
    """Build a graph that adds constants large enough to be stored beside it."""
    graph = GraphBuilder("add")
    y = graph.input("x", (4096,))
    for _ in range(3):
        y = graph.op("Add", y, graph.constant(np.ones(4096, np.float32)))
    graph.output(y, "y", (4096,))
    return graph.build()


@pytest.mark.parametrize("name", [MODEL_FILE, DATA_FILE])
def test_files_that_were_not_written_whole_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_bytes, model = Path.write_bytes, build().model
    if name == MODEL_FILE:
        model.graph.initializer[1].ClearField("external_data")
    else:  # the disk loses the end of the weights between writing and checking
        monkeypatch.setattr(
            Path,
            "write_bytes",
            lambda path, data: (os.truncate(path.with_name(name), 3 * 4096), write_bytes(path, data)),
        )
    with pytest.raises(OSError, match="was not written whole"):
        write_graph(BuiltGraph(model, build().weights), tmp_path)


def open_onnx(
    cache: Path, weights: Any = None, digest: str = "d", dims: Dims = DIMS, **options: Any
) -> OnnxBackend:
    weights = make_weights() if weights is None else weights
    return OnnxBackend(dims, weights, digest, precision="fp32", threads=1, cache=cache, **options)


def test_weights_are_not_read_for_stored_graphs(tmp_path: Path) -> None:
    open_onnx(tmp_path)
    backend = open_onnx(tmp_path, {})
    assert backend.encode(np.zeros((1, DIMS.n_mels, 2 * DIMS.n_audio_ctx), np.float32)).n_windows == 1
    with pytest.raises(KeyError):
        open_onnx(tmp_path, {}, "other")


@pytest.mark.parametrize("dims", [DIMS, DIMS.without_encoder()], ids=["whole model", "decoder alone"])
def test_unused_encoder_is_neither_read_nor_built(tmp_path: Path, dims: Dims) -> None:
    weights = {name: values for name, values in make_weights().items() if name.startswith("decoder.")}
    open_onnx(tmp_path, weights, dims=dims, shares_encoder=dims.has_encoder)
    assert {path.name.split("-")[1] for path in tmp_path.iterdir() if path.suffix != ".part"} == {
        "cross_kv",
        "decoder",
    }


def test_decoder_options_are_part_of_the_graph_key(tmp_path: Path) -> None:
    few = np.arange(0, DIMS.n_vocab, 7)
    for options in ({}, {"vocab_subset": few}, {"vocab_subset": few[1:]}, {"alignment_heads": ((0, 1),)}):
        open_onnx(tmp_path, **options)
    stored = sorted(path.name.split("-")[1] for path in tmp_path.iterdir() if path.suffix != ".part")
    assert stored == ["cross_kv", *["decoder"] * 4, "encoder"]
    open_onnx(tmp_path, {}, vocab_subset=few)
