"""Tests of temporary files and folders: those of living processes stay, those of killed ones are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from harken.atomic import open_atomic
from harken.temporary import create_temporary_file, remove_abandoned, remove_own, temporary_folder

LEAVE_BOTH_BEHIND = """
import os, signal, sys
from pathlib import Path
from harken.temporary import create_temporary_file, temporary_folder
folder = Path(sys.argv[1])
path, file = create_temporary_file(folder)
with temporary_folder(folder) as inner:
    (inner / "weights").write_bytes(b"0")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def abandoned(tmp_path: Path) -> Path:
    """Return a folder in which a killed process left a file and a folder, beside a file of the user's."""
    if sys.platform == "win32":
        pytest.skip("kills a process by a POSIX signal")
    (tmp_path / "talk.srt").write_text("text")
    killed = subprocess.run([sys.executable, "-c", LEAVE_BOTH_BEHIND, str(tmp_path)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 3
    return tmp_path


def test_what_a_killed_process_left_is_removed(abandoned: Path) -> None:
    remove_abandoned(abandoned)
    assert names(abandoned) == ["talk.srt"]


def test_writing_into_a_folder_removes_what_a_killed_process_left_there(abandoned: Path) -> None:
    with open_atomic(abandoned / "new.txt") as write:
        write("new")
    assert names(abandoned) == ["new.txt", "talk.srt"]


def test_what_a_living_process_writes_stays(tmp_path: Path) -> None:
    path, file = create_temporary_file(tmp_path)
    with file, temporary_folder(tmp_path) as folder:
        (folder / "weights").write_bytes(b"0")
        remove_abandoned(tmp_path)
        assert (folder / "weights").exists()
        assert path.exists()
    assert names(tmp_path) == [path.name]


def test_folder_that_lost_its_lock_but_not_its_content_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / ".harken-0123456789abcdef.part"
    (folder / "graph").mkdir(parents=True)
    (folder / "weights").write_bytes(b"0")
    remove_abandoned(tmp_path)
    assert names(tmp_path) == []


def leave(folder: AbstractContextManager[Path], parent: Path) -> None:
    folder.__exit__(None, None, None)


def end_process(folder: AbstractContextManager[Path], parent: Path) -> None:
    remove_own()


def be_killed(folder: AbstractContextManager[Path], parent: Path) -> None:
    (path,) = parent.iterdir()
    path.rename(path.with_name(".harken-0123456789abcdef.part"))  # as of another process
    folder.__exit__(None, None, None)
    remove_abandoned(parent)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove or rename an open lock")
@pytest.mark.parametrize("end", [leave, end_process, be_killed])
def test_folder_of_which_a_part_cannot_be_removed_keeps_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[..., None]
) -> None:
    def fail(path: Path, **options: object) -> None:
        raise PermissionError(path)

    manager = temporary_folder(tmp_path)
    folder = manager.__enter__()
    (folder / "graph").mkdir()
    for name in ("a", "z"):
        (folder / name).write_bytes(b"0")
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", fail)
        end(manager, tmp_path)
    (left,) = tmp_path.iterdir()
    assert names(left) == ["graph", "lock"]
    if end is end_process:
        leave(manager, tmp_path)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == []


def test_files_of_other_names_and_missing_folders_are_left_alone(tmp_path: Path) -> None:
    for name in (".harken-notes", "talk.part", ".part"):
        (tmp_path / name).write_text("text")
    before = names(tmp_path)
    remove_abandoned(tmp_path)
    remove_abandoned(tmp_path / "missing")
    assert names(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows needs a right for symbolic links")
def test_link_that_somebody_planted_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "lock").write_text("mine")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / ".harken-0123456789abcdef.part").symlink_to(target)
    remove_abandoned(shared)
    assert names(target) == ["lock"]
    assert len(names(shared)) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / ".harken-0123456789abcdef.part"
    path.touch()
    os.chown(path, 12345, -1)
    remove_abandoned(tmp_path)
    assert path.exists()
