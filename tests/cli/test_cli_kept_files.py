"""Files that are kept whatever ends their session: their names, full disks, and other sessions."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from cli_runner import eventually
from fakes.small_disk import SmallDisk
from harken.cli import kept_files
from harken.cli.exits import Stop
from harken.cli.kept_files import KeptFile
from harken.cli.signals import keeping_stop
from harken.errors import OutputError
from harken.files import remove_own


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kept(*pieces: bytes, name: str = "a", beginning: bytes = b"head") -> KeptFile:
    """Return a file that grows by pieces."""
    file = KeptFile(Path(name), beginning)
    for piece in pieces:
        file.append(piece)
    return file


def finished(file: KeptFile, **how: object) -> KeptFile:
    file.finish()
    file.keep(**how)
    return file


def test_content_reaches_the_disk_while_it_grows(monkeypatch):
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(kept_files, "_SYNC_S", 0.01)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), sync(descriptor)))
    file = kept()
    assert eventually(lambda: len(synced) >= 3)
    finished(file)
    assert len({*synced}) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege on Windows")
def test_symbolic_link_is_followed(folder):
    (folder / "disk").mkdir()
    Path("a").symlink_to("disk/b")
    file = kept()
    assert os.listdir("disk") == ["b.part"]
    finished(file)
    assert Path("a").is_symlink()
    assert (os.listdir("disk"), Path("disk/b").read_bytes()) == (["b"], b"head")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_device_is_written_directly():
    assert finished(kept(name=os.devnull)).error is None
    with pytest.raises(OutputError, match=r"^/dev/full: cannot be written: No space left on device$"):
        kept(name="/dev/full")


class TestFullDisk:
    @pytest.fixture
    def disk(self, monkeypatch):
        return SmallDisk(monkeypatch, room=10)

    def test_what_waits_has_a_limit_and_leaves_no_gap(self, disk, monkeypatch):
        monkeypatch.setattr(kept_files, "_MAX_WAITING_BYTES", 8)
        file = kept(b"1234", b"5678", b"9012", b"3456")
        assert eventually(lambda: file._loss is not None)
        disk.room = 100
        assert eventually(lambda: file.size == 16)
        file.append(b"7890")
        finished(file, usable_if_cut=True)
        assert Path("a").read_bytes() == b"head123456789012"
        assert file.error is not None

    def test_disk_that_cannot_be_synced_is_reported(self, monkeypatch):
        def fail(descriptor):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)
        number = errno.EINVAL  # a file system without this
        assert finished(kept()).error is None
        number = errno.EIO
        assert finished(kept(name="b")).error.errno == errno.EIO


@pytest.mark.parametrize(("pieces", "left"), [([], []), ([b"audio"], ["a.part"])])
def test_process_that_is_stopped_leaves_a_file_only_if_it_has_content(pieces, left):
    file = kept(*pieces)
    remove_own()
    assert os.listdir() == left
    file.finish()
    file.discard()


def test_signal_while_a_file_is_created_leaves_none_behind(monkeypatch):
    create_part = kept_files._create_part

    def create_and_stop(target):
        created = create_part(target)
        signal.raise_signal(signal.SIGTERM)
        return created

    monkeypatch.setattr(kept_files, "_create_part", create_and_stop)
    with pytest.raises(Stop), keeping_stop():
        kept()
    assert os.listdir() == []
