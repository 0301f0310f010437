"""The files that a command reads, the names of those it writes, and that it never writes what it reads."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harken.cli import inputs
from harken.cli.inputs import expand_patterns, output_paths, recording_duration_s, refuse_overwriting
from harken.errors import AudioError, AudioNotFound

links = pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
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
def test_patterns_are_expanded(names, expected):
    assert expand_patterns(names) == expected


@links
def test_a_file_that_a_pattern_finds_through_a_linked_folder_too_is_taken_once():
    os.symlink("sub", "link")
    os.symlink("a.mp3", "other.mp3")
    assert expand_patterns(["*/*.mp3", "sub/d.mp3"]) == [os.path.join("link", "d.mp3")]
    assert expand_patterns(["[ao]*.mp3"]) == ["a.mp3", "other.mp3"]  # of which each has its own transcript


def test_transcripts_lie_beside_the_recording_or_in_the_given_folder():
    assert output_paths(["sub/d.mp3", "-"], ["srt", "json"], None) == {
        "sub/d.mp3": {"srt": Path("sub/d.srt"), "json": Path("sub/d.json")},
        "-": {"srt": Path("stdin.srt"), "json": Path("stdin.json")},
    }
    assert output_paths(["sub/d.mp3", "talk.2.mp3"], ["txt"], Path("out")) == {
        "sub/d.mp3": {"txt": Path("out/d.txt")},
        "talk.2.mp3": {"txt": Path("out/talk.2.txt")},
    }
    assert output_paths(["a.mp3", "a.wav"], [], None) == {"a.mp3": {}, "a.wav": {}}
    for sources, out in [(["a.mp3", "a.wav"], None), (["a.mp3", "sub/a.mp3"], Path("out"))]:
        with pytest.raises(click.UsageError, match=f"{sources[0]} and {sources[1]} would both be written to"):
            output_paths(sources, ["txt"], out)


def test_recording_that_cannot_be_opened_is_an_error_of_the_recording():
    with pytest.raises(AudioNotFound):
        recording_duration_s("none.mp3")
    for name in ("y" * 300, "nul\0.mp3", "a.mp3/b.mp3"):
        with pytest.raises(AudioError):
            recording_duration_s(name)


@pipes
def test_what_can_be_read_only_once_is_not_read_and_has_no_link(folder):
    os.mkfifo("pipe")
    for source in ("-", "pipe"):
        assert recording_duration_s(source) is None
        assert inputs.recording_reference(source, folder) is None
    assert inputs.recording_reference("talks/a b.mp3", Path("out")).url == "../talks/a%20b.mp3"


def refusal(targets, inputs):
    with pytest.raises(click.UsageError) as caught:
        refuse_overwriting(targets, inputs)
    return caught.value.message


def test_a_file_that_is_read_is_not_written_by_whatever_path():
    assert refusal(["talk.wav"], ["talk.wav"]) == "talk.wav would be overwritten, and it is read"
    assert "sub/../talk.wav, which is talk.wav," in refusal(["sub/../talk.wav"], ["talk.wav"])
    refusal([Path("talk.wav").absolute()], ["./talk.wav"])
    refusal(["no folder/new.txt"], ["no folder/../no folder/new.txt"])  # nor one that is not there yet
    if Path("TALK.WAV").exists():
        refusal(["TALK.WAV"], ["talk.wav"])
    refuse_overwriting(["talk.txt", "c.wav"], ["talk.wav", "missing.wav"])


def test_a_file_is_not_written_twice():
    assert refusal(["a.json", "./a.json"], []) == "./a.json, which is a.json, would be written twice"
    assert "written twice" in refusal(["c.wav", "sub/../c.wav"], [])


@links
def test_links_are_followed():
    for link, target in (("soft.wav", "talk.wav"), ("link.txt", "new.txt")):
        os.symlink(target, link)
    os.link("talk.wav", "hard.wav")
    for target, read in (("soft.wav", "talk.wav"), ("talk.wav", "soft.wav"), ("hard.wav", "talk.wav")):
        assert "would be overwritten" in refusal([target], [read])
    assert "written twice" in refusal(["new.txt", "link.txt"], [])
    refuse_overwriting(["talk.wav", "hard.wav"], [])  # earlier results with one content are replaced each


def test_names_that_differ_in_case_are_one_file_where_the_disk_ignores_case(monkeypatch):
    monkeypatch.setattr(inputs, "_ignores_case", lambda folder: True)
    refusal(["Talk.txt", "talk.TXT"], [])
    refusal(["caf\u00e9.txt", "cafe\u0301.txt"], [])
    monkeypatch.setattr(inputs, "_ignores_case", lambda folder: False)
    refuse_overwriting(["Talk.txt", "talk.TXT"], [])


def test_a_file_that_standard_input_reads_is_refused():
    code = "from harken.cli.inputs import refuse_overwriting; refuse_overwriting(['talk.wav'], ['-'])"
    command = [sys.executable, "-c", code]
    with Path("talk.wav").open() as file:
        run = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=60)
    message = "talk.wav, which is standard input, would be overwritten, and it is read"
    assert run.stderr.endswith(f"UsageError: {message}\n")


@pipes
def test_streams_devices_and_impossible_names_are_no_files():
    os.mkfifo("pipe")
    refuse_overwriting(["-", os.devnull, os.devnull, "pipe"], ["-", os.devnull, "pipe"])
    refuse_overwriting(["y" * 5000, "a\0b"], ["talk.wav"])  # opening them says what is wrong
