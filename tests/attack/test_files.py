"""Damaged and lying recordings, and odd names, in batches between good ones: the good ones are always transcribed."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, window_text
from processes import error_faults, is_control

CUTS = (10, 50, 90)
KINDS = ("wav s16", "mp3")
"""Two of those that tests/audio/test_audio_truncation.py cuts: one says how long it is, and one does not."""
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not allow such names")


@pytest.fixture
def cli(cli):
    cli.use_texts(window_text(0, "Dogs", WINDOW_POSITIONS))
    for name in ("first", "last"):
        AUDIO_FORMATS["wav s16"].write(Path(name), 1.0)
    return cli


def batch(cli, *names, formats="srt"):
    """Transcribe files between two good ones, of which the transcripts must be there; options end where ``--`` is."""
    for path in Path().glob("*.srt"):
        path.unlink()
    outcome = cli.run("transcribe", "--language", "en", "-f", formats, "--", "first.wav", *names, "last.wav")
    assert not error_faults(outcome)
    assert outcome.code in (0, 1)
    assert "Dogs" in Path("first.srt").read_text()
    assert Path("last.srt").read_text() == Path("first.srt").read_text()
    return outcome


@pytest.mark.parametrize("kind", KINDS)
def test_cut_recording_never_passes_as_whole(cli, kind):
    # A tenth is more than the second that may be missing.
    whole = AUDIO_FORMATS[kind].write(Path("whole"), 12.0)
    content = whole.read_bytes()
    cuts = {Path(f"cut{percent}{whole.suffix}"): content[: len(content) * percent // 100] for percent in CUTS}
    for cut, part in cuts.items():
        cut.write_bytes(part)
    outcome = batch(cli, whole, *cuts)
    lines = outcome.err.splitlines()
    assert outcome.code == 1
    assert Path("whole.srt").exists()
    for cut, part in cuts.items():
        assert [line for line in lines if line.startswith(f"harken: {cut.name}: ")], f"{cut} passes as whole"
        assert not cut.with_suffix(".srt").exists(), f"{cut} has the name of a whole transcript"
        assert cut.read_bytes() == part
    assert "whole" not in outcome.err.replace("is not whole", "")


def test_content_decides_and_not_the_ending(cli):
    names = [f"talk{ending[1:]}{ending}" for ending in (".mp3", ".txt", ".jpg", ".m3u8", ".mp4", ".ogg", "")]
    for name in names:
        Path(name).write_bytes(Path("first.wav").read_bytes())
    assert batch(cli, *names).code == 0
    assert all("Dogs" in Path(name).with_suffix(".srt").read_text() for name in names)


def test_rubbish_is_named_and_the_count_is_right(cli):
    rubbish = {
        "empty.wav": b"",
        "text.wav": b"Dear diary,\n" * 99,
        "noise.wav": np.random.default_rng(1).bytes(9_999),
        "header.wav": Path("first.wav").read_bytes()[:44],
        "list.m3u8": b"#EXTM3U\n#EXTINF:1,\nfirst.wav\n",
        "concat.txt": b"ffconcat version 1.0\nfile first.wav\n",
    }
    for name, content in rubbish.items():
        Path(name).write_bytes(content)
    Path("folder").mkdir()
    names = [*rubbish, "folder", "missing.wav"]
    outcome = batch(cli, *names)
    assert outcome.code == 1
    *lines, last = outcome.err.splitlines()
    assert last == f"harken: 2 recordings done; {len(names)} refused: {', '.join(names)}"
    assert all(line.startswith("harken: ") and name in line for name, line in zip(names, lines, strict=True))
    assert len([*Path().glob("*.srt")]) == 2


# fmt: off
NAMES = [
    "-x.wav", "--quiet", "a\nb.wav", "\x1b]0;title\x07.wav", "\x9b31m.wav", '"><script>alert(1)<script>.wav',
    "%41.wav", "a\u202egpj.wav", "e\u0301.wav", "[x].wav", "*.wav", "$HOME.wav", "`id`.wav", ".wav", "..wav",
    " .wav", "a b\tc.wav", "'.wav", "漢字.wav", "javascript:alert(1).wav", "a.b.c.wav", "😀.wav", "&lt;.wav",
    "\udcff.wav",
]
# fmt: on


@posix
def test_odd_names_are_names(cli):
    """All together; control characters of a name never reach the terminal."""
    written = []
    for name in NAMES:
        try:
            Path(name).write_bytes(Path("first.wav").read_bytes())
        except (OSError, UnicodeError):  # macOS takes no names that are not UTF-8
            continue
        written.append(name)
    together = batch(cli, *written, formats="srt,html")
    assert together.code == 0, together.err
    assert {f"{Path(name).stem}.{form}" for name in written for form in ("srt", "html")} <= {*os.listdir()}
    hostile = [name for name in written if not name.isprintable()]
    shown = cli.run("transcribe", "--language", "en", "-v", "--", *hostile)
    assert shown.code == 0
    assert not [character for character in shown.out + shown.err if is_control(character)]


@posix
def test_names_too_long_for_the_disk_fail_alone(cli):
    longest = "y" * 251 + ".wav"  # its transcript fits, as .srt is as long; words.tsv does not
    Path(longest).write_bytes(Path("first.wav").read_bytes())
    assert batch(cli, longest).code == 0
    outcome = batch(cli, longest, "x" * 300, formats="srt,words.tsv")
    assert outcome.code == 1
    *lines, last = outcome.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("harken: ") for line in lines)
    assert "2 recordings done" in last
    assert cli.run("transcribe", "x" * 300).code == 3
