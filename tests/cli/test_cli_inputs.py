"""The expansion of names and patterns to recordings, and the paths of their transcripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import pytest

from harken.cli.inputs import (
    expand_patterns,
    make_folder,
    output_paths,
    recording_duration_s,
    recording_reference,
)
from harken.errors import AudioError, AudioNotFound, OutputError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.mp3", "b.mp3", "c.wav", "take [1].mp3", "sub/d.mp3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b.mp3", "a.mp3"], ["b.mp3", "a.mp3"]),
        (["[ab].mp3", "*.wav"], ["a.mp3", "b.mp3", "c.wav"]),
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
