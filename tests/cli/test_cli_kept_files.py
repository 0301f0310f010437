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


def finished(file: KeptFile, **how: object) -> KeptFile:
    file.finish()
    file.keep(**how)
    return file


def test_content_is_under_a_visible_name_while_it_grows():
    Path("a").write_text("before")
    file = KeptFile(Path("a"), b"head ")
    file.append(b"one ")
    part = Path("a.part")
    assert eventually(lambda: part.read_bytes() == b"head one ")
    assert Path("a").read_text() == "before"
    file.append(b"two")
    assert finished(file).location == Path("a")
    assert (Path("a").read_bytes(), file.error, os.listdir()) == (b"head one two", None, ["a"])


def test_content_reaches_the_disk_while_it_grows(monkeypatch):
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(kept_files, "_SYNC_S", 0.01)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), sync(descriptor)))
    file = KeptFile(Path("a"), b"head")
    assert eventually(lambda: len(synced) >= 3)
    finished(file)
    assert len({*synced}) == 1


def test_beginning_is_replaced_at_the_end():
    file = KeptFile(Path("a"), b"????")
    file.append(b"rest")
    finished(file, beginning=b"head")
    assert Path("a").read_bytes() == b"headrest"


def test_discarded_file_leaves_what_was_there():
    Path("a").write_text("before")
    file = KeptFile(Path("a"), b"head")
    file.finish()
    file.discard()
    assert (os.listdir(), Path("a").read_text(), file.location) == (["a"], "before", None)


def test_part_of_another_session_is_left_alone():
    Path("a.part").write_text("an hour of speech")
    Path("a.2.part").write_text("another")
    file = KeptFile(Path("a"), b"head")
    assert file.location == Path("a.3.part")
    assert file.others == (Path("a.part"), Path("a.2.part"))
    finished(file)
    assert Path("a.part").read_text() == "an hour of speech"
    assert Path("a.2.part").read_text() == "another"
    assert Path("a").read_bytes() == b"head"


def test_two_sessions_with_one_target_lose_nothing():
    Path("a").write_text("before")
    one, other = KeptFile(Path("a"), b"one"), KeptFile(Path("a"), b"other")
    finished(one)
    finished(other)
    assert (one.location, other.location) == (Path("a"), Path("a.2.part"))
    assert Path("a").read_bytes() == b"one"
    assert Path("a.2.part").read_bytes() == b"other"
    assert not other.has_own_name


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need a privilege on Windows")
def test_symbolic_link_is_followed(folder):
    (folder / "disk").mkdir()
    Path("a").symlink_to("disk/b")
    file = KeptFile(Path("a"), b"head")
    assert os.listdir("disk") == ["b.part"]
    finished(file)
    assert Path("a").is_symlink()
    assert (os.listdir("disk"), Path("disk/b").read_bytes()) == (["b"], b"head")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_device_is_written_directly():
    assert finished(KeptFile(Path(os.devnull), b"head")).error is None
    with pytest.raises(OutputError, match=r"^/dev/full: cannot be written: No space left on device$"):
        KeptFile(Path("/dev/full"), b"head")


def test_file_that_cannot_be_written_fails_at_once(monkeypatch):
    with pytest.raises(OutputError, match="a: cannot be written: there is no folder none"):
        KeptFile(Path("none/a"), b"head")
    SmallDisk(monkeypatch, room=3)
    with pytest.raises(OutputError, match=r"^a: cannot be written: No space left on device$"):
        KeptFile(Path("a"), b"head")
    assert os.listdir() == []


class TestFullDisk:
    @pytest.fixture
    def disk(self, monkeypatch):
        return SmallDisk(monkeypatch, room=10)

    def test_file_ends_with_a_whole_piece(self, disk):
        file = KeptFile(Path("a"), b"head")
        for piece in (b"1234", b"5678", b"9"):
            file.append(piece)
        assert eventually(lambda: file.error is not None)
        finished(file, usable_if_cut=True)
        assert (file.error.errno, file.size, file.pieces) == (errno.ENOSPC, 8, 2)
        assert (os.listdir(), Path("a").read_bytes()) == (["a"], b"head1234")

    def test_cut_file_replaces_nothing(self, disk):
        Path("a").write_text("before")
        file = KeptFile(Path("a"), b"head")
        file.append(b"12345678")
        finished(file, usable_if_cut=True)
        assert file.location == Path("a.part")
        assert (Path("a").read_text(), Path("a.part").read_bytes()) == ("before", b"head")

    def test_cut_file_that_needs_its_end_keeps_the_other_name(self, disk):
        file = KeptFile(Path("a"), b"head")
        file.append(b"12345678")
        finished(file)
        assert os.listdir() == ["a.part"]

    def test_nothing_is_missing_when_there_is_space_again(self, disk):
        file = KeptFile(Path("a"), b"head")
        file.append(b"1234")
        file.append(b"5678")
        assert eventually(lambda: file.error is not None)
        disk.room = 100
        assert eventually(lambda: file.error is None)
        file.append(b"9")
        finished(file)
        assert Path("a").read_bytes() == b"head123456789"

    def test_what_waits_has_a_limit_and_leaves_no_gap(self, disk, monkeypatch):
        monkeypatch.setattr(kept_files, "_MAX_WAITING_BYTES", 8)
        file = KeptFile(Path("a"), b"head")
        for piece in (b"1234", b"5678", b"9012", b"3456"):
            file.append(piece)
        assert eventually(lambda: file._loss is not None)
        disk.room = 100
        assert eventually(lambda: file.size == 16)
        file.append(b"7890")
        finished(file, usable_if_cut=True)
        assert Path("a").read_bytes() == b"head123456789012"
        assert file.error is not None

    def test_audio_makes_room_for_text(self, disk, monkeypatch):
        monkeypatch.setattr(kept_files, "_ROOM_BYTES", 4)
        disk.room = 20
        audio, text = KeptFile(Path("audio"), b"A"), KeptFile(Path("text"), b"")
        for _ in range(10):
            audio.append(b"aa")
        assert eventually(lambda: audio.error is not None)
        text.append(b"text")
        audio.finish()
        text.finish()
        assert text.error is not None
        audio.make_room_for(text)
        audio.keep(usable_if_cut=True)
        text.keep()
        assert (Path("text").read_bytes(), text.error) == (b"text", None)
        assert Path("audio").read_bytes() == b"A" + b"aa" * 3

    def test_disk_that_cannot_be_synced_is_reported(self, monkeypatch):
        def fail(descriptor):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)
        number = errno.EINVAL  # a file system without this
        assert finished(KeptFile(Path("a"), b"head")).error is None
        number = errno.EIO
        assert finished(KeptFile(Path("b"), b"head")).error.errno == errno.EIO


@pytest.mark.parametrize(("pieces", "left"), [([], []), ([b"audio"], ["a.part"])])
def test_process_that_is_stopped_leaves_a_file_only_if_it_has_content(pieces, left):
    file = KeptFile(Path("a"), b"head")
    for piece in pieces:
        file.append(piece)
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
        KeptFile(Path("a"), b"head")
    assert os.listdir() == []
