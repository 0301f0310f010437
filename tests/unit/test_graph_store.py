"""The store of graphs: never incomplete, verified before use, rebuilt when damaged, shared by processes."""

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

from harken.backends.onnx import OnnxBackend, graph_store
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

ALL_FILES = {*GRAPH_FILES, CHECKSUM_FILE}


def build(value: float = 1.0) -> onnx.ModelProto:
    """Build a graph that adds a constant large enough to be stored beside it."""
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
    """The directory of temporary files."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_built_graph_is_stored_without_leftovers(root: Path) -> None:
    path = GraphStore(root).get_or_build("key", build)
    assert path == root / "key" / "model.onnx"
    assert value_in(path) == 1
    assert names(root) == {"key"}
    assert names(root / "key") == ALL_FILES


def test_stored_graph_is_not_built_again(root: Path) -> None:
    first = GraphStore(root).get_or_build("key", build)
    assert GraphStore(root).get_or_build("key", must_not_build) == first


def test_keys_have_separate_graphs(root: Path) -> None:
    store = GraphStore(root)
    assert [value_in(store.get_or_build(f"key-{i}", lambda i=i: build(i))) for i in (1, 2)] == [1, 2]
    assert value_in(store.get_or_build("key-1", must_not_build)) == 1


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "weights truncated": lambda graph: (graph / "model.data").write_bytes(
        (graph / "model.data").read_bytes()[:-1]
    ),
    "weights empty": lambda graph: (graph / "model.data").write_bytes(b""),
    "weights flipped": lambda graph: flip(graph / "model.data"),
    "weights missing": lambda graph: (graph / "model.data").unlink(),
    "graph truncated": lambda graph: (graph / "model.onnx").write_bytes(
        (graph / "model.onnx").read_bytes()[:100]
    ),
    "graph flipped": lambda graph: flip(graph / "model.onnx"),
    "graph missing": lambda graph: (graph / "model.onnx").unlink(),
    "checksums missing": lambda graph: (graph / CHECKSUM_FILE).unlink(),
    "checksums empty": lambda graph: (graph / CHECKSUM_FILE).write_bytes(b""),
    "checksums of bytes": lambda graph: (graph / CHECKSUM_FILE).write_bytes(b"\xff\xfe\x00"),
    "checksums of another kind": lambda graph: (graph / CHECKSUM_FILE).write_text("[1, 2]"),
    "checksums without values": lambda graph: (graph / CHECKSUM_FILE).write_text("{}"),
    "checksums cut": lambda graph: (graph / CHECKSUM_FILE).write_text('{"model.onnx": 1'),
    "directory empty": lambda graph: [path.unlink() for path in graph.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_graph_is_built_again(root: Path, damage: Callable[[Path], object]) -> None:
    store = GraphStore(root)
    store.get_or_build("key", build)
    damage(root / "key")
    assert not is_intact(root / "key")
    assert value_in(store.get_or_build("key", lambda: build(2))) == 2
    assert names(root) == {"key"}
    assert names(root / "key") == ALL_FILES
    store.get_or_build("key", must_not_build)


def test_failed_build_leaves_no_files(root: Path) -> None:
    def fail() -> onnx.ModelProto:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        GraphStore(root).get_or_build("key", fail)
    assert not root.exists() or names(root) == set()


def test_leftovers_of_a_killed_process_are_ignored(root: Path) -> None:
    (root / ".key-abandoned").mkdir(parents=True)
    (root / ".key-abandoned" / "model.onnx").write_bytes(b"half")
    assert value_in(GraphStore(root).get_or_build("key", build)) == 1


def test_unwritable_store_falls_back_to_a_temporary_directory(tmp_path: Path, temporary: Path) -> None:
    blocking_file = tmp_path / "file"
    blocking_file.write_text("not a directory")
    path = GraphStore(blocking_file / "graphs").get_or_build("key", build)
    assert path.is_relative_to(temporary)
    assert value_in(path) == 1
    assert blocking_file.read_text() == "not a directory"


def test_temporary_directory_is_removed_with_its_process(tmp_path: Path) -> None:
    blocking_file, temporary = tmp_path / "file", tmp_path / "temporary"
    blocking_file.write_text("")
    temporary.mkdir()
    process = multiprocessing.get_context("spawn").Process(
        target=build_in_unwritable_store, args=(blocking_file, temporary)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert names(temporary) == set()


def build_in_unwritable_store(root: Path, temporary: Path) -> None:
    tempfile.tempdir = str(temporary)
    path = GraphStore(root).get_or_build("key", build)
    assert path.is_relative_to(temporary)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_full_disk_is_reported_with_the_way_out(
    root: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(model: onnx.ModelProto, folder: Path) -> None:
        (folder / "model.data").write_bytes(b"half")
        raise OSError(code, "reason of the system")

    monkeypatch.setattr(graph_store, "write_graph", fail)
    with pytest.raises(OutputError, match=r"graphs: .*reason of the system.*HARKEN_CACHE") as error:
        GraphStore(root).get_or_build("key", build)
    assert str(root) in str(error.value)
    assert {path.name for place in (root, temporary) for path in place.rglob("*") if path.is_file()} <= {"lock"}


def test_default_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path))
    assert default_graph_directory() == tmp_path / "graphs"
    monkeypatch.delenv("HARKEN_CACHE")
    assert default_graph_directory().name == "graphs"
    assert default_graph_directory().parent.name in ("harken", "Cache")


@pytest.mark.parametrize("broken", [False, True], ids=["missing", "broken"])
def test_processes_build_the_same_graph_at_once(root: Path, broken: bool) -> None:
    if broken:
        GraphStore(root).get_or_build("key", build)
        flip(root / "key" / "model.data")
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.SimpleQueue()
    processes = [context.Process(target=get_at_once, args=(root, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert [results.get() for _ in processes] == [(str(root / "key" / "model.onnx"), 3.0)] * 4
    assert names(root) == {"key"}
    assert names(root / "key") == ALL_FILES


def get_at_once(root: Path, barrier: Any, results: Any) -> None:
    barrier.wait(60)
    path = GraphStore(root).get_or_build("key", lambda: build(3))
    results.put((str(path), value_in(path)))


def test_weights_are_not_read_for_stored_graphs(tmp_path: Path) -> None:
    OnnxBackend(DIMS, make_weights(), "digest", precision="fp32", threads=1, cache=tmp_path)
    backend = OnnxBackend(DIMS, Unreadable(), "digest", precision="fp32", threads=1, cache=tmp_path)
    assert backend.encode(np.zeros((1, DIMS.n_mels, 2 * DIMS.n_audio_ctx), np.float32)).n_windows == 1
    with pytest.raises(AssertionError, match="read"):
        OnnxBackend(DIMS, Unreadable(), "other", precision="fp32", threads=1, cache=tmp_path)


@pytest.mark.parametrize("dims", [DIMS, DIMS.without_encoder()], ids=["whole model", "decoder alone"])
def test_unused_encoder_is_neither_read_nor_built(tmp_path: Path, dims: Dims) -> None:
    weights = {name: values for name, values in make_weights().items() if name.startswith("decoder.")}
    shares = dims.has_encoder
    OnnxBackend(dims, weights, "d", precision="fp32", threads=1, cache=tmp_path, shares_encoder=shares)
    assert {name.split("-")[1] for name in names(tmp_path)} == {"cross_kv", "decoder"}


def test_decoder_options_are_part_of_the_graph_key(tmp_path: Path) -> None:
    few = np.arange(0, DIMS.n_vocab, 7)
    for options in ({}, {"vocab_subset": few}, {"vocab_subset": few[1:]}, {"alignment_heads": ((0, 1),)}):
        OnnxBackend(DIMS, make_weights(), "d", precision="fp32", threads=1, cache=tmp_path, **options)
    stored = sorted(name.split("-")[1] for name in names(tmp_path))
    assert stored == ["cross_kv", *["decoder"] * 4, "encoder"]
    OnnxBackend(DIMS, Unreadable(), "d", precision="fp32", threads=1, cache=tmp_path, vocab_subset=few)


class Unreadable(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")
