"""Files are written completely or not at all, or kept whatever ends their session; full disks, killed processes."""

import errno
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from cli_runner import eventually
from fakes.small_disk import SmallDisk
from harken.cli import kept_files
from harken.cli.exits import Stop
from harken.cli.kept_files import KeptFile
from harken.cli.signals import keeping_stop
from harken.errors import AudioNotFound, OutputError
from harken.files import open_atomic, remove_abandoned, remove_own, temporary_folder, write_atomic
from processes import no_file_above

dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files only")

LEAVE_BOTH_BEHIND = """
import os, signal, sys
from pathlib import Path
from harken.files import open_atomic, temporary_folder
folder = Path(sys.argv[1])
with open_atomic(folder / "a.txt"), temporary_folder(folder) as inner:
    (inner / "graph").mkdir()
    (inner / "weights").write_bytes(b"0")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder):
    return sorted(os.listdir(folder))


def test_text_and_bytes_are_written_in_order(tmp_path):
    path = tmp_path / ("n" * 251 + ".txt")  # the longest possible name
    write_atomic(path, ["Größe\n", b"\x00\xff"], durable=True)
    assert path.read_bytes() == "Größe\n".encode() + b"\x00\xff"
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("number", "fails"),
    [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True), (errno.ENOSPC, True)],
)
def test_disk_that_cannot_sync_is_no_error_and_one_that_fails_is(tmp_path, monkeypatch, number, fails):
    def fsync(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    refused = pytest.raises(OutputError, match=rf"a\.txt: cannot be written: {os.strerror(number)}")
    with refused if fails else nullcontext():
        write_atomic(tmp_path / "a.txt", ["text"], durable=True)
    assert names(tmp_path) == ([] if fails else ["a.txt"])


def test_old_content_is_visible_until_writing_ends(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with open_atomic(path) as first, open_atomic(path) as second:
        for _ in range(2):  # two writers do not mix
            second("2" * 50_000)
            first("1" * 50_000)
        assert path.read_text() == "old"
    assert path.read_text() == "1" * 100_000
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AudioNotFound("talk.mp3: no such file")])
def test_exception_from_content_propagates_and_writes_nothing(tmp_path, error):
    def chunks():
        yield "a"
        raise error

    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        write_atomic(path, chunks())
    assert (path.read_text(), names(tmp_path)) == ("old", ["a.txt"])


@posix
def test_full_disk_is_reported_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    refused = pytest.raises(OutputError, match=r"a\.txt: cannot be written: File too large")
    with no_file_above(100_000), refused as caught:
        write_atomic(path, ["x" * 10_000] * 20)
    assert isinstance(caught.value, OSError)
    assert (path.read_text(), names(tmp_path)) == ("old", ["a.txt"])


@dev_full
def test_device_is_written_in_place():
    write_atomic(os.devnull, ["text"], durable=True)
    with pytest.raises(OutputError, match="/dev/full: cannot be written: No space left on device"):
        write_atomic("/dev/full", ["x"])
    assert Path("/dev/full").is_char_device()


def test_folder_that_is_missing_or_no_file_is_reported(tmp_path):
    with pytest.raises(OutputError, match=r"there is no folder .*nowhere"):
        write_atomic(tmp_path / "nowhere" / "a.txt", ["x"])
    with pytest.raises(OutputError, match="cannot be written"):
        write_atomic(tmp_path, ["x"])
    if sys.platform == "linux":  # whose folder of processes takes no files
        with pytest.raises(OutputError, match=r"/proc/a\.txt: cannot be written: No such file or directory"):
            write_atomic("/proc/a.txt", ["x"])
    assert names(tmp_path) == []


@posix
def test_symbolic_link_is_followed_and_the_mode_follows_the_umask_or_the_file_that_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    link, target = tmp_path / "link.txt", tmp_path / "real" / "a.txt"
    link.symlink_to(target)
    before = os.umask(0o022)
    try:
        write_atomic(link, ["x"])
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert target.read_text() == "x"
    assert target.stat().st_mode & 0o777 == 0o644
    target.chmod(0o600)
    write_atomic(link, ["y"])
    finished(kept(b"z", name="real/a.txt"))
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("headz", 0o600)


@posix
def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_there(tmp_path):
    (tmp_path / "talk.srt").write_text("text")
    killed = subprocess.run([sys.executable, "-c", LEAVE_BOTH_BEHIND, str(tmp_path)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 4
    write_atomic(tmp_path / "new.txt", ["new"])
    assert names(tmp_path) == ["new.txt", "talk.srt"]


def test_what_a_living_process_writes_stays_until_it_ends(tmp_path):
    with open_atomic(tmp_path / "a.txt"), temporary_folder(tmp_path) as folder:
        (folder / "graph").mkdir()
        (folder / "graph" / "weights").write_bytes(b"0")
        before = names(tmp_path)
        remove_abandoned(tmp_path)
        assert names(tmp_path) == before
        assert (folder / "graph" / "weights").exists()
    assert names(tmp_path) == ["a.txt"]


@posix  # Windows does not remove an open file
def test_process_that_ends_at_once_removes_what_is_its_own(tmp_path):
    with temporary_folder(tmp_path) as folder:
        (folder / "weights").write_bytes(b"0")
        remove_own()
        assert names(tmp_path) == []


def test_only_folders_without_their_lock_are_removed(tmp_path):
    (tmp_path / ".harken-0123456789abcdef.files" / "graph").mkdir(parents=True)
    others = [".harken-notes", ".part", "talk.part"]
    for name in others:
        (tmp_path / name).write_text("text")
    remove_abandoned(tmp_path)
    remove_abandoned(tmp_path / "missing")
    assert names(tmp_path) == others


@posix
def test_link_that_somebody_planted_is_left_alone(tmp_path):
    target, shared = tmp_path / "target", tmp_path / "shared"
    target.mkdir()
    (target / "notes").write_text("mine")
    shared.mkdir()
    (shared / ".harken-0123456789abcdef.files").symlink_to(target)
    remove_abandoned(shared)
    assert names(target) == ["notes"]
    assert len(names(shared)) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_left_alone(tmp_path):
    path = tmp_path / ".harken-0123456789abcdef.part"
    path.touch()
    os.chown(path, 12345, -1)
    remove_abandoned(tmp_path)
    assert path.exists()


def kept(*pieces, name="a"):
    """Return a file that grows by pieces."""
    file = KeptFile(Path(name), b"head")
    for piece in pieces:
        file.append(piece)
    return file


def finished(file, **how):
    file.finish()
    file.keep(**how)
    return file


def test_content_reaches_the_disk_while_it_grows(monkeypatch):
    synced = []
    sync = os.fsync
    monkeypatch.setattr(kept_files, "_SYNC_S", 0.01)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), sync(descriptor)))
    file = kept()
    assert eventually(lambda: len(synced) >= 3)
    finished(file)
    assert len({*synced}) == 1


@posix
def test_symbolic_link_of_a_kept_file_is_followed(folder):
    (folder / "disk").mkdir()
    Path("a").symlink_to("disk/b")
    file = kept()
    assert os.listdir("disk") == ["b.part"]
    finished(file)
    assert Path("a").is_symlink()
    assert (os.listdir("disk"), Path("disk/b").read_bytes()) == (["b"], b"head")


@dev_full
def test_device_is_written_directly():
    assert finished(kept(name=os.devnull)).error is None
    with pytest.raises(OutputError, match=r"^/dev/full: cannot be written: No space left on device$"):
        kept(name="/dev/full")


def test_what_waits_has_a_limit_and_leaves_no_gap(monkeypatch):
    disk = SmallDisk(monkeypatch, room=10)
    monkeypatch.setattr(kept_files, "_MAX_WAITING_BYTES", 8)
    file = kept(b"1234", b"5678", b"9012", b"3456")
    assert eventually(lambda: file._loss is not None)
    disk.room = 100
    assert eventually(lambda: file.size == 16)
    file.append(b"7890")
    finished(file, usable_if_cut=True)
    assert Path("a").read_bytes() == b"head123456789012"
    assert file.error is not None


def test_disk_that_cannot_be_synced_is_reported(monkeypatch):
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
