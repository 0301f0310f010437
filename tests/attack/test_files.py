"""Odd names in batches between good ones: the good ones are always transcribed."""

import os
import sys
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, window_text
from processes import error_faults, is_control

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


def test_content_decides_and_not_the_ending(cli):
    names = [f"talk{ending[1:]}{ending}" for ending in (".mp3", ".txt", ".jpg", ".m3u8", ".mp4", ".ogg", "")]
    for name in names:
        Path(name).write_bytes(Path("first.wav").read_bytes())
    assert batch(cli, *names).code == 0
    assert all("Dogs" in Path(name).with_suffix(".srt").read_text() for name in names)


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
    assert cli.run("transcribe", longest, "-f", "words.tsv", "--skip-existing").code == 5
