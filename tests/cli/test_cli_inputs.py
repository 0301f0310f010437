"""The expansion of names and patterns to recordings, and the paths of their transcripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harken.cli import inputs
from harken.cli.inputs import (
    expand_patterns,
    make_folder,
    output_paths,
    recording_duration_s,
    recording_reference,
    refuse_overwriting,
)
from harken.errors import AudioError, AudioNotFound, OutputError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.mp3", "b.mp3", "c.wav", "take [1].mp3", "sub/d.mp3", "talk.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b.mp3", "a.mp3"], ["b.mp3", "a.mp3"]),
        (["[ab].mp3", "*.wav"], ["a.mp3", "b.mp3", "c.wav", "talk.wav"]),
        (["take [1].mp3"], ["take [1].mp3"]),
        (["b.mp3", "*.mp3", "./a.mp3"], ["b.mp3", "a.mp3", "take [1].mp3"]),
        (["**/d.mp3"], [os.path.join("sub", "d.mp3")]),
        (["-", "-"], ["-"]),
        (["*.ogg", "none.mp3"], ["*.ogg", "none.mp3"]),
    ],
)
def test_patterns_are_expanded(names: list[str], expected: list[str]) -> None:
    assert expand_patterns(names) == expected


class TestOutputPaths:
    def test_default_folder_is_that_of_the_recording(self) -> None:
        assert output_paths(["sub/d.mp3", "-"], ["srt", "json"], None) == {
            "sub/d.mp3": {"srt": Path("sub/d.srt"), "json": Path("sub/d.json")},
            "-": {"srt": Path("stdin.srt"), "json": Path("stdin.json")},
        }

    def test_given_folder_is_used(self) -> None:
        planned = output_paths(["sub/d.mp3", "talk.2.mp3"], ["txt"], Path("out"))
        assert planned == {
            "sub/d.mp3": {"txt": Path("out/d.txt")},
            "talk.2.mp3": {"txt": Path("out/talk.2.txt")},
        }

    def test_without_formats_there_are_no_paths(self) -> None:
        assert output_paths(["a.mp3", "a.wav"], [], None) == {"a.mp3": {}, "a.wav": {}}

    @pytest.mark.parametrize(
        ("sources", "out", "message"),
        [
            (["a.mp3", "a.wav"], None, "a.mp3 and a.wav would both be written to a.txt"),
            (["a.mp3", "sub/a.mp3"], Path("out"), "a.mp3 and sub/a.mp3 would both be written to"),
        ],
    )
    def test_colliding_paths_are_refused(self, sources: list[str], out: Path | None, message: str) -> None:
        with pytest.raises(click.UsageError) as refused:
            output_paths(sources, ["txt"], out)
        assert message in str(refused.value)


class TestDuration:
    def test_missing_recording_is_an_error(self) -> None:
        with pytest.raises(AudioNotFound):
            recording_duration_s("none.mp3")

    @pytest.mark.parametrize("name", ["y" * 300, "nul\0.mp3", "a.mp3/b.mp3"])
    def test_name_that_the_system_refuses_is_an_error_of_the_recording(self, name: str) -> None:
        with pytest.raises(AudioError):
            recording_duration_s(name)
        assert recording_reference(name, Path()) is not None

    def test_standard_input_is_not_read(self) -> None:
        assert recording_duration_s("-") is None

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
    def test_named_pipe_is_not_read(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        assert recording_duration_s("pipe") is None


def test_folder_that_cannot_be_created_is_an_error(folder: Path) -> None:
    make_folder(Path("new/one"))
    make_folder(Path("new/one"))
    assert Path("new/one").is_dir()
    with pytest.raises(OutputError, match=r"a\.mp3.*cannot be made a folder"):
        make_folder(Path("a.mp3"))


def test_standard_input_has_no_link(tmp_path: Path) -> None:
    assert recording_reference("-", tmp_path) is None
    link = recording_reference("talks/a b.mp3", Path("out"))
    assert link is not None
    assert link.url == "../talks/a%20b.mp3"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_named_pipe_has_no_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert recording_reference(str(tmp_path / "pipe"), tmp_path) is None


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
    monkeypatch.setattr(inputs, "_ignores_case", lambda folder: True)
    _refusal(["Talk.txt", "talk.TXT"], [])
    _refusal(["caf\u00e9.txt", "cafe\u0301.txt"], [])


def test_names_that_differ_in_case_are_two_files_elsewhere(monkeypatch):
    monkeypatch.setattr(inputs, "_ignores_case", lambda folder: False)
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
