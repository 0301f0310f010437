"""The store of weights and graphs: never incomplete, verified before use, written again when damaged, shared."""

import errno
import multiprocessing
import os
import subprocess
import sys
import tempfile

import pytest

from harken.errors import OutputError
from harken.store import CHECKSUM_FILE, default_store_directory, is_intact, stored_files, stored_text

FILES = ("small", "large")
ALL_FILES = {*FILES, CHECKSUM_FILE}
LARGE_BYTES = 48_000


def write_value(value):
    """Return a function that writes a small and a large file."""

    def write(folder):
        with (folder / "large").open("wb") as file:
            for _ in range(3):
                file.write(bytes([value]) * (LARGE_BYTES // 3))
        (folder / "small").write_bytes(bytes([value]))

    return write


write_one = write_value(1)


def must_not_write(folder):
    raise AssertionError("written again")


def get(root, key="key", write=write_one):
    return stored_files(key, FILES, write, root)


def value_in(folder):
    """Return the value of all bytes of stored files."""
    (value,) = set((folder / "small").read_bytes() + (folder / "large").read_bytes())
    assert (folder / "large").stat().st_size == LARGE_BYTES
    return value


def names(directory):
    """Names in a directory, but for the files that say that a temporary folder is used."""
    return {path.name for path in directory.iterdir() if path.suffix != ".part"}


@pytest.fixture
def root(tmp_path):
    return tmp_path / "deep" / "graphs"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The directory of temporary files."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def test_files_are_stored_once_without_leftovers(root):
    path = get(root)
    assert path == root / "key"
    assert (value_in(path), names(root), names(path)) == (1, {"key"}, ALL_FILES)
    assert get(root, write=must_not_write) == path
    assert value_in(get(root, "other", write_value(2))) == 2
    assert value_in(get(root, write=must_not_write)) == 1


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "truncated": lambda folder: os.truncate(folder / "large", LARGE_BYTES - 1),
    "empty": lambda folder: (folder / "large").write_bytes(b""),
    "flipped": lambda folder: flip(folder / "large"),
    "missing": lambda folder: (folder / "large").unlink(),
    "checksums missing": lambda folder: (folder / CHECKSUM_FILE).unlink(),
    "checksums of bytes": lambda folder: (folder / CHECKSUM_FILE).write_bytes(b"\xff\xfe\x00"),
    "checksums of another kind": lambda folder: (folder / CHECKSUM_FILE).write_text("[1, 2]"),
    "checksums cut": lambda folder: (folder / CHECKSUM_FILE).write_text('{"small": 1'),
    "all missing": lambda folder: [path.unlink() for path in folder.iterdir()],
}


def test_damaged_files_are_written_again(root):
    for value, (name, damage) in enumerate(DAMAGE.items(), 2):
        damage(get(root))
        assert not is_intact(root / "key", FILES), name
        assert value_in(get(root, write=write_value(value))) == value, name
        assert (names(root), names(root / "key")) == ({"key"}, ALL_FILES), name
        get(root, write=must_not_write)


@pytest.fixture
def unwritable(tmp_path):
    """A folder that cannot be made."""
    (tmp_path / "file").write_text("not a directory")
    return tmp_path / "file" / "graphs"


def test_unwritable_store_falls_back_to_a_temporary_directory(unwritable, temporary):
    path = get(unwritable)
    assert path.is_relative_to(temporary)
    assert value_in(path) == 1
    assert unwritable.parent.read_text() == "not a directory"
    if os.name == "posix":
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_text_is_computed_once_and_again_where_nothing_can_be_stored(root, unwritable, monkeypatch):
    texts = [f"computed {times}" for times in range(9, 0, -1)]
    assert [stored_text("key", texts.pop, root) for _ in range(2)] == ["computed 1"] * 2
    monkeypatch.setattr(tempfile, "tempdir", str(unwritable))
    assert stored_text("key", texts.pop, root) == "computed 1"
    assert stored_text("key", texts.pop, unwritable) == "computed 2"


@pytest.mark.parametrize("killed", [False, True])
def test_temporary_files_are_removed_with_their_process_or_if_it_is_killed_by_the_next(
    unwritable, temporary, killed
):
    (temporary / "harken-results").mkdir()
    code = (
        f"import os, pathlib, sys, tempfile; sys.path[:0] = {sys.path!r}; tempfile.tempdir = {str(temporary)!r}\n"
        f"from test_store import get\nget(pathlib.Path({str(unwritable)!r}))\n"
        f"{killed} and os._exit(0)  # without cleaning up"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    left = names(temporary) - {"harken-results"}
    assert len(left) == killed
    path = get(unwritable)
    assert names(temporary) == {"harken-results", path.parent.name}
    assert path.parent.name not in left


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_full_disk_is_reported_with_the_way_out(root, temporary, code):
    def fail(folder):
        (folder / "large").write_bytes(b"half")
        raise OSError(code, "reason of the system")

    message = r"graphs: .*\(reason of the system\).*temporary files \(reason of the system\).*HARKEN_CACHE"
    with pytest.raises(OutputError, match=message) as error:
        get(root, write=fail)
    assert str(root) in str(error.value)
    files = [path for place in (root, temporary) for path in place.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix != ".part"] == []


def test_files_that_do_not_fit_are_whole_in_the_temporary_directory(root, temporary):
    def write(folder):
        write_one(folder)
        if folder.is_relative_to(root):
            os.truncate(folder / "large", LARGE_BYTES // 2)
            raise OSError(errno.ENOSPC, "No space left on device")

    path = get(root, write=write)
    assert path.is_relative_to(temporary)
    assert value_in(path) == 1
    assert names(root) == set()


def test_what_a_killed_process_left_is_removed_when_files_are_written(root):
    (root / ".harken-0123456789abcdef.files").mkdir(parents=True)
    get(root)
    assert names(root) == {"key"}


def test_what_nobody_has_used_for_long_is_removed_when_files_are_written(root):
    keys = ("old", "used", "new")
    for key in keys:
        get(root, key)
    for key in ("old", "used"):
        os.utime(root / key / CHECKSUM_FILE, (0, 0))
    get(root, "used", must_not_write)
    assert names(root) == {*keys}
    get(root, "written")
    assert names(root) == {"used", "new", "written"}


def test_a_folder_that_cannot_be_searched_holds_nothing(tmp_path):
    assert value_in(get(tmp_path / ("a" * 300))) == 1  # root may search all others


def test_files_are_not_removed_as_unused_while_a_process_reads_them(root, monkeypatch):
    os.utime(get(root) / CHECKSUM_FILE, (0, 0))

    def read_slowly(directory, names):
        whole = is_intact(directory, names)
        if directory.name == "key":
            get(root, "of another process")
        return whole

    monkeypatch.setattr("harken.store.is_intact", read_slowly)
    assert value_in(get(root, write=must_not_write)) == 1


def test_default_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path))
    assert default_store_directory() == tmp_path / "graphs"
    monkeypatch.delenv("HARKEN_CACHE")
    assert default_store_directory().name == "graphs"
    assert default_store_directory().parent.name in ("harken", "Cache")


def test_processes_write_the_same_files_at_once(root):
    flip(get(root) / "large")
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.SimpleQueue()
    processes = [context.Process(target=get_at_once, args=(root, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert [results.get() for _ in processes] == [(str(root / "key"), 3)] * 4
    assert (names(root), names(root / "key")) == ({"key"}, ALL_FILES)


def get_at_once(root, barrier, results):
    barrier.wait(60)
    path = get(root, write=write_value(3))
    results.put((str(path), value_in(path)))
