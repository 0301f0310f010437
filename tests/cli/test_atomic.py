"""Tests of atomic file writing: a file is written completely or not at all."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harken.atomic import open_atomic, write_atomic
from harken.errors import AudioNotFound, OutputError

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files only")


def test_text_and_bytes_are_written_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomic(path, ["Größe\n", b"\x00\xff"], durable=True)
    assert path.read_bytes() == "Größe\n".encode() + b"\x00\xff"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_disk_that_cannot_be_told_to_write_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomic(tmp_path / "a.txt", ["text"], durable=True)
    assert (tmp_path / "a.txt").read_text() == "text"


def test_disk_that_fails_to_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OutputError, match=r"a\.txt: cannot be written"):
        write_atomic(tmp_path / "a.txt", ["text"], durable=True)
    assert os.listdir(tmp_path) == []


def test_transcript_on_a_pipe_needs_no_disk(tmp_path: Path) -> None:
    write_atomic(os.devnull, ["text"], durable=True)


def test_old_content_is_visible_until_writing_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with open_atomic(path) as write:
        write("new" * 100_000)
        assert path.read_text() == "old"
    assert path.read_text() == "new" * 100_000


@pytest.mark.parametrize("error", [KeyboardInterrupt, AudioNotFound("talk.mp3: no such file")])
def test_exception_from_content_propagates_and_writes_nothing(tmp_path: Path, error: BaseException) -> None:
    def chunks() -> Iterator[str]:
        yield "a"
        raise error

    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error if isinstance(error, type) else type(error)):
        write_atomic(path, chunks())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@posix
def test_full_disk_is_reported_and_keeps_the_old_file(tmp_path: Path) -> None:
    """Simulate a full disk with a limit on file sizes: the operating system rejects the write midway."""
    import resource
    import signal

    path = tmp_path / "a.txt"
    path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"a\.txt: cannot be written: File too large") as caught:
            write_atomic(path, ["x" * 10_000] * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert isinstance(caught.value, OSError)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_device_is_written_in_place() -> None:
    with pytest.raises(OutputError, match="/dev/full: cannot be written: No space left on device"):
        write_atomic("/dev/full", ["x"])
    assert Path("/dev/full").is_char_device()


def test_fsync_failure_is_reported_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=f"a.txt: cannot be written: {os.strerror(errno.ENOSPC)}"):
        write_atomic(tmp_path / "a.txt", ["x"], durable=True)
    assert os.listdir(tmp_path) == []


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"there is no folder .*nowhere"):
        write_atomic(tmp_path / "nowhere" / "a.txt", ["x"])


def test_folder_as_target_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_atomic(tmp_path, ["x"])
    assert os.listdir(tmp_path) == []


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        write_atomic(tmp_path / "a.txt", ["x"])


@posix
def test_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "a.txt")
    write_atomic(tmp_path / "link.txt", ["x"])
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real" / "a.txt").read_text() == "x"


@posix
def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "a.txt", ["x"])
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644


def test_concurrent_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with open_atomic(path) as first, open_atomic(path) as second:
        first("1" * 50_000)
        second("2" * 50_000)
        first("1" * 50_000)
    assert path.read_text() == "1" * 100_000
    assert os.listdir(tmp_path) == ["a.txt"]


def test_longest_possible_file_name_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 251 + ".txt")
    write_atomic(path, ["x"])
    assert path.read_text() == "x"
