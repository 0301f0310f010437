"""Graphs on disk: whole or not there, checked before use, rebuilt when broken, shared by processes."""

from __future__ import annotations

import errno
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from harken.backends.onnx import OnnxBackend
from harken.backends.onnx.graph_store import (
    CHECKSUM_FILE,
    GRAPH_FILES,
    GraphStore,
    default_graph_directory,
    is_intact,
)
from harken.errors import OutputError
from harken.types import Dims
from tiny_models import DIMS, make_weights

WHOLE = {*GRAPH_FILES, CHECKSUM_FILE}


def build(value: float = 1.0) -> onnx.ModelProto:
    """A graph that adds a constant large enough to be kept beside it."""
    constant = numpy_helper.from_array(np.full(4096, value, np.float32), "constant")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4096]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "constant"], ["y"])], "add", [x], [y], [constant])
    return helper.make_model(graph)


def must_not_build() -> onnx.ModelProto:
    raise AssertionError("built again")


def value_in(path: Path) -> float:
    (constant,) = onnx.load(path).graph.initializer
    return float(numpy_helper.to_array(constant)[0])


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "graphs"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_what_is_built_is_kept_and_nothing_else(root: Path) -> None:
    path = GraphStore(root).get_or_build("key", build)
    assert path == root / "key" / "model.onnx"
    assert value_in(path) == 1
    assert names(root) == {"key"}
    assert names(root / "key") == WHOLE


def test_a_second_get_does_not_build(root: Path) -> None:
    first = GraphStore(root).get_or_build("key", build)
    assert GraphStore(root).get_or_build("key", must_not_build) == first


def test_keys_are_kept_apart(root: Path) -> None:
    store = GraphStore(root)
    assert [value_in(store.get_or_build(f"key-{i}", lambda i=i: build(i))) for i in (1, 2)] == [1, 2]
    assert value_in(store.get_or_build("key-1", must_not_build)) == 1


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "weights truncated": lambda kept: (kept / "model.data").write_bytes(
        (kept / "model.data").read_bytes()[:-1]
    ),
    "weights empty": lambda kept: (kept / "model.data").write_bytes(b""),
    "weights flipped": lambda kept: flip(kept / "model.data"),
    "weights missing": lambda kept: (kept / "model.data").unlink(),
    "graph truncated": lambda kept: (kept / "model.onnx").write_bytes((kept / "model.onnx").read_bytes()[:100]),
    "graph flipped": lambda kept: flip(kept / "model.onnx"),
    "graph missing": lambda kept: (kept / "model.onnx").unlink(),
    "checksums missing": lambda kept: (kept / CHECKSUM_FILE).unlink(),
    "checksums empty": lambda kept: (kept / CHECKSUM_FILE).write_bytes(b""),
    "checksums of bytes": lambda kept: (kept / CHECKSUM_FILE).write_bytes(b"\xff\xfe\x00"),
    "checksums of another kind": lambda kept: (kept / CHECKSUM_FILE).write_text("[1, 2]"),
    "checksums without values": lambda kept: (kept / CHECKSUM_FILE).write_text("{}"),
    "checksums cut": lambda kept: (kept / CHECKSUM_FILE).write_text('{"model.onnx": 1'),
    "directory empty": lambda kept: [path.unlink() for path in kept.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_what_is_broken_is_built_anew(root: Path, damage: Callable[[Path], object]) -> None:
    store = GraphStore(root)
    store.get_or_build("key", build)
    damage(root / "key")
    assert not is_intact(root / "key")
    assert value_in(store.get_or_build("key", lambda: build(2))) == 2
    assert names(root) == {"key"}
    assert names(root / "key") == WHOLE
    store.get_or_build("key", must_not_build)


def test_what_fails_to_build_leaves_nothing(root: Path) -> None:
    def fail() -> onnx.ModelProto:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        GraphStore(root).get_or_build("key", fail)
    assert not root.exists() or names(root) == set()


def test_an_abandoned_attempt_of_another_process_is_no_obstacle(root: Path) -> None:
    (root / ".key-abandoned").mkdir(parents=True)
    (root / ".key-abandoned" / "model.onnx").write_bytes(b"half")
    assert value_in(GraphStore(root).get_or_build("key", build)) == 1


def test_without_a_place_to_keep_it_a_graph_is_built_for_this_process(tmp_path: Path, temporary: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    path = GraphStore(in_the_way / "graphs").get_or_build("key", build)
    assert path.is_relative_to(temporary)
    assert value_in(path) == 1
    assert in_the_way.read_text() == "not a directory"


def test_what_was_built_for_one_process_goes_with_it(tmp_path: Path) -> None:
    in_the_way, temporary = tmp_path / "file", tmp_path / "temporary"
    in_the_way.write_text("")
    temporary.mkdir()
    process = multiprocessing.get_context("spawn").Process(
        target=build_without_a_place, args=(in_the_way, temporary)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert names(temporary) == set()


def build_without_a_place(root: Path, temporary: Path) -> None:
    tempfile.tempdir = str(temporary)
    path = GraphStore(root).get_or_build("key", build)
    assert path.is_relative_to(temporary)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_names_the_way_out(
    root: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(model: onnx.ModelProto, path: Path, **options: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(code, "reason of the system")

    monkeypatch.setattr(onnx, "save_model", fail)
    with pytest.raises(OutputError, match=r"graphs: .*reason of the system.*HARKEN_CACHE") as error:
        GraphStore(root).get_or_build("key", build)
    assert str(root) in str(error.value)
    assert [path for place in (root, temporary) for path in place.rglob("*") if path.is_file()] == []


def test_root_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path))
    assert default_graph_directory() == tmp_path / "graphs"
    monkeypatch.delenv("HARKEN_CACHE")
    assert default_graph_directory().name == "graphs"
    assert default_graph_directory().parent.name in ("harken", "Cache")


@pytest.mark.parametrize("broken", [False, True], ids=["missing", "broken"])
def test_processes_share_a_store(root: Path, broken: bool) -> None:
    if broken:
        GraphStore(root).get_or_build("key", build)
        flip(root / "key" / "model.data")
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.SimpleQueue()
    processes = [context.Process(target=get_together, args=(root, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert [results.get() for _ in processes] == [(str(root / "key" / "model.onnx"), 3.0)] * 4
    assert names(root) == {"key"}
    assert names(root / "key") == WHOLE


def get_together(root: Path, barrier: Any, results: Any) -> None:
    barrier.wait(60)
    path = GraphStore(root).get_or_build("key", lambda: build(3))
    results.put((str(path), value_in(path)))


def test_weights_are_read_only_when_a_graph_has_to_be_built(tmp_path: Path) -> None:
    OnnxBackend(DIMS, make_weights(), "digest", precision="fp32", threads=1, cache=tmp_path)
    backend = OnnxBackend(DIMS, Unreadable(), "digest", precision="fp32", threads=1, cache=tmp_path)
    assert backend.encode(np.zeros((1, DIMS.n_mels, 2 * DIMS.n_audio_ctx), np.float32)).n_windows == 1
    with pytest.raises(AssertionError, match="read"):
        OnnxBackend(DIMS, Unreadable(), "other", precision="fp32", threads=1, cache=tmp_path)


@pytest.mark.parametrize("dims", [DIMS, DIMS.without_encoder()], ids=["whole model", "decoder alone"])
def test_an_encoder_that_is_not_used_is_neither_read_nor_built(tmp_path: Path, dims: Dims) -> None:
    weights = {name: values for name, values in make_weights().items() if name.startswith("decoder.")}
    shares = dims.has_encoder
    OnnxBackend(dims, weights, "d", precision="fp32", threads=1, cache=tmp_path, shares_encoder=shares)
    assert {name.split("-")[1] for name in names(tmp_path)} == {"cross_kv", "decoder"}


def test_what_a_decoder_is_built_for_names_its_graph(tmp_path: Path) -> None:
    few = np.arange(0, DIMS.n_vocab, 7)
    for options in ({}, {"vocab_subset": few}, {"vocab_subset": few[1:]}, {"alignment_heads": ((0, 1),)}):
        OnnxBackend(DIMS, make_weights(), "d", precision="fp32", threads=1, cache=tmp_path, **options)
    kept = sorted(name.split("-")[1] for name in names(tmp_path))
    assert kept == ["cross_kv", *["decoder"] * 4, "encoder"]
    OnnxBackend(DIMS, Unreadable(), "d", precision="fp32", threads=1, cache=tmp_path, vocab_subset=few)


class Unreadable(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")
