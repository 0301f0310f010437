import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harken.cli import inputs as targets_module
from harken.cli.inputs import refuse_overwriting


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("talk.wav").write_bytes(b"sound")


def _refusal(targets, inputs):
    with pytest.raises(click.UsageError) as caught:
        refuse_overwriting(targets, inputs)
    return caught.value.message


def test_a_target_that_is_an_input_is_refused():
    assert _refusal(["talk.wav"], ["talk.wav"]) == "talk.wav would be overwritten, and it is read"


def test_other_files_are_accepted():
    Path("other.wav").touch()
    refuse_overwriting(["talk.txt", "other.wav"], ["talk.wav", "missing.wav"])


def test_the_same_file_by_another_path_is_refused():
    Path("folder").mkdir()
    assert "folder/../talk.wav, which is talk.wav," in _refusal(["folder/../talk.wav"], ["talk.wav"])
    _refusal([Path("talk.wav").absolute()], ["./talk.wav"])


def test_a_file_that_is_not_there_yet_is_compared_by_path():
    _refusal(["new.txt"], ["./new.txt"])
    _refusal(["no folder/new.txt"], ["no folder/../no folder/new.txt"])


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_links_to_an_input_are_refused():
    os.symlink("talk.wav", "soft.wav")
    os.link("talk.wav", "hard.wav")
    _refusal(["soft.wav"], ["talk.wav"])
    _refusal(["talk.wav"], ["soft.wav"])
    _refusal(["hard.wav"], ["talk.wav"])


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_a_link_to_a_file_that_is_not_there_yet_is_the_same_target():
    os.symlink("new.txt", "link.txt")
    assert "written twice" in _refusal(["new.txt", "link.txt"], [])


def test_two_targets_that_are_one_file_are_refused():
    assert _refusal(["a.json", "./a.json"], []) == "./a.json, which is a.json, would be written twice"


def test_names_that_differ_in_case_are_one_file_where_the_disk_ignores_case(monkeypatch):
    monkeypatch.setattr(targets_module, "_ignores_case", lambda folder: True)
    _refusal(["Talk.txt", "talk.TXT"], [])
    _refusal(["caf\u00e9.txt", "cafe\u0301.txt"], [])


def test_names_that_differ_in_case_are_two_files_elsewhere(monkeypatch):
    monkeypatch.setattr(targets_module, "_ignores_case", lambda folder: False)
    refuse_overwriting(["Talk.txt", "talk.TXT"], [])


def test_an_existing_input_in_another_case_is_refused_where_the_disk_ignores_case():
    if not Path("TALK.WAV").exists():
        pytest.skip("this disk distinguishes case")
    _refusal(["TALK.WAV"], ["talk.wav"])


def test_a_file_that_standard_input_reads_is_refused():
    with Path("talk.wav").open() as file:
        run = subprocess.run(
            [sys.executable, "-c", _OVERWRITE_STDIN], stdin=file, capture_output=True, text=True, check=False
        )
    assert run.stdout == "talk.wav, which is standard input, would be overwritten, and it is read\n"


_OVERWRITE_STDIN = """
import click
from harken.cli.inputs import refuse_overwriting
try:
    refuse_overwriting(["talk.wav"], ["-"])
except click.UsageError as error:
    print(error.message)
"""


def test_standard_streams_and_devices_are_no_files():
    refuse_overwriting(["-", os.devnull, os.devnull], ["-", os.devnull])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
def test_a_pipe_is_no_file():
    os.mkfifo("pipe")
    refuse_overwriting(["pipe"], ["pipe"])


def test_paths_that_no_disk_takes_are_left_to_their_opening():
    refuse_overwriting(["y" * 5000, "a\0b"], ["talk.wav"])


def test_hard_links_of_earlier_results_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    os.link(tmp_path / "a.txt", tmp_path / "b.txt")
    refuse_overwriting([tmp_path / "a.txt", tmp_path / "b.txt"], [])


def test_existing_target_is_not_written_twice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(click.UsageError, match="would be written twice"):
        refuse_overwriting([tmp_path / "a.txt", tmp_path / "x" / ".." / "a.txt"], [])
