"""The store of graphs: never incomplete, verified before use, rebuilt when damaged, shared by processes."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from harken.backends.onnx import OnnxBackend, graph_store
from harken.backends.onnx.builder import GraphBuilder
from harken.backends.onnx.graph_files import BuiltGraph, write_graph
from harken.backends.onnx.graph_store import (
    CHECKSUM_FILE,
    GRAPH_FILES,
    GraphStore,
    default_graph_directory,
    is_intact,
)
from harken.errors import OutputError
from harken.files import temporary_folder
from harken.types import Dims
from tiny_models import DIMS, make_weights

ALL_FILES = {*GRAPH_FILES, CHECKSUM_FILE}
N_CONSTANTS = 3
GRAPH_BYTES = N_CONSTANTS * 4096 * 4


def build(value: float = 1.0) -> BuiltGraph:
    """Build a graph that adds constants large enough to be stored beside it."""
    graph = GraphBuilder("add")
    y = graph.input("x", (4096,))
    for _ in range(N_CONSTANTS):
        y = graph.op("Add", y, graph.constant(np.full(4096, value, np.float32)))
    graph.output(y, "y", (4096,))
    return graph.build()


def must_not_build() -> BuiltGraph:
    raise AssertionError("built again")


def value_in(path: Path) -> float:
    """Return the value of all constants of a stored graph."""
    constants = [numpy_helper.to_array(constant) for constant in onnx.load(path).graph.initializer]
    assert [constant.shape for constant in constants] == [(4096,)] * N_CONSTANTS
    (value,) = np.unique(constants)
    return float(value)


def names(directory: Path) -> set[str]:
    """Names in a directory, but for the files that say that a temporary folder is used."""
    return {path.name for path in directory.iterdir() if path.suffix != ".part"}


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
    def fail() -> BuiltGraph:
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
    def fail(graph: BuiltGraph, folder: Path) -> None:
        (folder / "model.data").write_bytes(b"half")
        raise OSError(code, "reason of the system")

    monkeypatch.setattr(graph_store, "write_graph", fail)
    with pytest.raises(OutputError, match=r"graphs: .*reason of the system.*HARKEN_CACHE") as error:
        GraphStore(root).get_or_build("key", build)
    assert str(root) in str(error.value)
    files = [path for place in (root, temporary) for path in place.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix != ".part"] == []


class FullDisk(io.BytesIO):
    """A file on a disk that has room for some bytes."""

    def __init__(self, path: Path, room: int) -> None:
        super().__init__()
        self._path, self._room = path, room

    def write(self, data: Any) -> int:
        self._room -= memoryview(data).nbytes
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)

    def close(self) -> None:
        if not self.closed:
            with open(self._path, "wb") as file:
                file.write(self.getvalue())
        super().close()


@pytest.mark.parametrize("room", [0, 1, GRAPH_BYTES // 2, GRAPH_BYTES - 1])
def test_graph_that_does_not_fit_is_whole_in_the_temporary_directory(
    root: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    open_path = Path.open

    def open_on_full_disk(path: Path, mode: str = "r", **options: Any) -> Any:
        full = path.is_relative_to(root) and path.name == "model.data" and mode == "wb"
        return FullDisk(path, room) if full else open_path(path, mode, **options)

    monkeypatch.setattr(Path, "open", open_on_full_disk)
    path = GraphStore(root).get_or_build("key", build)
    assert path.is_relative_to(temporary)
    assert is_intact(path.parent)
    assert value_in(path) == 1
    assert names(root) == set()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A function that mounts a disk of some bytes."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only the superuser of Linux can mount a disk")
    mounted: list[Path] = []

    def mount(size: int) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False)
        if done.returncode:
            pytest.skip("this container cannot mount a disk")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)  # the lock of a temporary directory is open


@pytest.mark.parametrize(
    ("size", "fits"),
    [(4096, False), (8192, False), (20_000, False), (40_000, False), (48_000, False), (65_536, True)],
)
def test_small_disk_gets_a_whole_graph_or_none(
    small_disk: Callable[[int], Path], temporary: Path, size: int, fits: bool
) -> None:
    root = small_disk(size) / "graphs"
    path = GraphStore(root).get_or_build("key", build)
    assert path.is_relative_to(root if fits else temporary)
    assert (names(root) if root.exists() else set()) == ({"key"} if fits else set())
    assert is_intact(path.parent)
    assert value_in(path) == 1


def test_two_full_disks_are_reported(
    small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk(16_384)))
    with pytest.raises(
        OutputError, match=r"graphs: .*No space left.*temporary files.*No space left.*HARKEN_CACHE"
    ):
        GraphStore(small_disk(16_384) / "graphs").get_or_build("key", build)


@pytest.mark.parametrize("name", GRAPH_FILES)
def test_files_that_were_not_written_whole_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_bytes, model = Path.write_bytes, build().model
    if name == "model.onnx":
        model.graph.initializer[1].ClearField("external_data")
    else:  # the disk loses the end of the weights between writing and checking
        monkeypatch.setattr(
            Path,
            "write_bytes",
            lambda path, data: (os.truncate(path.with_name(name), GRAPH_BYTES - 1), write_bytes(path, data)),
        )
    with pytest.raises(OSError, match="was not written whole"):
        write_graph(BuiltGraph(model, build().weights), tmp_path)


def test_constant_without_values_is_whole(tmp_path: Path) -> None:
    graph = build()
    graph.model.graph.initializer.append(numpy_helper.from_array(np.empty((0, 4), np.float32), "empty"))
    write_graph(graph, tmp_path)
    assert (tmp_path / "model.onnx").exists()


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such permissions")
def test_graphs_in_the_folder_of_temporary_files_are_private_from_the_start(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    make = Path.mkdir

    def mkdir(path: Path, *given: Any, **options: Any) -> None:
        make(path, *given, **options)
        modes.append(path.stat().st_mode & 0o777)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    graph_store._make_temporary_root()
    assert modes == [0o700]


def test_file_in_the_current_folder_does_not_disturb(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.data").write_text("of the user")
    assert GraphStore(root).get_or_build("key", build).is_relative_to(root)
    assert Path("model.data").read_text() == "of the user"


# --- what killed processes left ----------------------------------------------------------------------------


def run_and_kill(code: str) -> None:
    """Run some code in a process that ends without cleaning up."""
    subprocess.run([sys.executable, "-c", f"{code}\nimport os; os._exit(9)"], check=False, timeout=60)


def test_directory_of_a_killed_process_is_removed_when_a_graph_is_built(root: Path) -> None:
    root.mkdir(parents=True)
    run_and_kill(
        "from pathlib import Path; from harken.files import temporary_folder\n"
        f"folder = temporary_folder(Path({str(root)!r})); (folder.__enter__() / 'model.data').write_bytes(b'half')"
    )
    (left,) = names(root)
    with temporary_folder(root) as living:
        GraphStore(root).get_or_build("key", build)
        assert names(root) == {"key", living.name}
    GraphStore(root).get_or_build("key", must_not_build)
    assert names(root) == {"key"}
    assert left.startswith(".")


def test_temporary_graphs_of_a_killed_process_are_removed_by_the_next_that_needs_some(
    tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "file").write_text("not a directory")
    (temporary / "harken-results").mkdir()
    run_and_kill(
        f"import sys, tempfile; sys.path[:0] = {sys.path!r}; tempfile.tempdir = {str(temporary)!r}\n"
        "from test_graph_store import GraphStore, Path, build\n"
        f"GraphStore(Path({str(tmp_path / 'file' / 'graphs')!r})).get_or_build('key', build)"
    )
    (left,) = names(temporary) - {"harken-results"}
    path = GraphStore(tmp_path / "file" / "graphs").get_or_build("key", build)
    assert names(temporary) == {"harken-results", path.parent.parent.name}
    assert path.parent.parent.name != left


OLD_S = 2 * 24 * 60 * 60


@pytest.mark.parametrize(
    ("name", "age_s", "removed"),
    [
        (".probe-v11-a_b3c4d5", OLD_S, True),
        (f".{'0f' * 16}-encoder-float-v11-12345678", OLD_S, True),
        (f".{'0f' * 16}-decoder-int8-0123abcd-v11-abcdefgh", OLD_S, True),
        (f".{'0f' * 16}-encoder-float-v11-12345678", 60, False),
        (f"{'0f' * 16}-encoder-float-v11", OLD_S, False),
        (".git", OLD_S, False),
    ],
)
def test_directories_of_earlier_versions_are_removed_after_a_day(
    root: Path, name: str, age_s: float, removed: bool
) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "model.data").write_bytes(b"half")
    os.utime(root / name, (time.time() - age_s,) * 2)
    GraphStore(root).get_or_build("key", build)
    assert names(root) == {"key"} | (set() if removed else {name})


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
