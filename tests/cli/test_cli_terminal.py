"""Texts from outside cannot control the terminal; streams that cannot be written end the work, or do not."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harken.cli.exits import Stop
from harken.cli.terminal import Screen, TimestampedLines, format_pace, write_stderr, write_stdout
from harken.errors import OutputError
from harken.formats import printable
from harken.results import Segment

HOSTILE = "a\x1b]0;owned\x07b\x9b31mc\0d\x7fe\rf\udcffg"
ESCAPED = r"a\u001b]0;owned\u0007b\u009b31mc\u0000d\u007fe\u000df\udcffg"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Failing(Terminal):
    """A stream that cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


def one_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard output and standard error the same terminal, and return it."""
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def segment(text: str) -> Segment:
    numbers = {"temperature": 0.0, "avg_logprob": 0.0, "compression_ratio": 1.0, "no_speech_prob": 0.0}
    return Segment(index=0, start_s=0.0, end_s=1.0, text=text, tokens=(), seek_s=0.0, **numbers)


def test_control_characters_are_written_as_escapes(monkeypatch):
    terminal = one_terminal(monkeypatch)
    write_stdout(f"{HOSTILE}\n\tb\n")
    write_stderr(f"{HOSTILE}\n\tb")
    assert terminal.getvalue() == f"{ESCAPED}\n\tb\n" * 2


def test_colours_of_harken_and_directions_of_text_stay_on_standard_output(monkeypatch):
    terminal = one_terminal(monkeypatch)
    write_stdout("\x1b[31m[-a-]\x1b[0m\x1b[32m{+b+}\x1b[0m \u202b\u05d0\u202c\n")
    assert terminal.getvalue() == "\x1b[31m[-a-]\x1b[0m\x1b[32m{+b+}\x1b[0m \u202b\u05d0\u202c\n"


def test_names_in_messages_cannot_turn_text_around(monkeypatch):
    terminal = one_terminal(monkeypatch)
    write_stderr("gnp\u202egpj.\u2028exe")
    assert terminal.getvalue() == "gnp\\u202egpj.\\u2028exe\n"


def test_escapes_of_json_stay_json(monkeypatch):
    terminal = one_terminal(monkeypatch)
    write_stdout('{"text": "\x9b\udcff"}\n')
    assert terminal.getvalue() == '{"text": "\\u009b\\udcff"}\n'


def test_heading_and_line_of_a_segment_are_harmless():
    lines = TimestampedLines(f"{HOSTILE}\nforged <==")
    assert lines.header() == f"==> {ESCAPED}\\u000aforged <== <==\n"
    assert lines.segment(segment(" a\x1b[2Jb\x9bc")) == "[00:00.000 --> 00:01.000] a\ufffd[2Jb\ufffdc\n"


def test_bar_and_what_is_printed_above_it_are_harmless(monkeypatch):
    terminal = one_terminal(monkeypatch)
    with Screen(show_progress=True) as screen:
        screen.show_status(HOSTILE)
        progress = screen.track(HOSTILE, 10.0)
        progress(5.0, False)
        screen.write_stdout(f"above :smile: {HOSTILE}\n")
        screen.write_stderr(f"error {HOSTILE}")
    written = terminal.getvalue()
    assert "\\u001b]0;owned" in written
    for raw in ("\x1b]", "\x07", "\x9b", "\0", "\x7f", "\udcff"):
        assert raw not in written
    assert f"above :smile: {ESCAPED}\n" in written
    assert f"error {ESCAPED}\n" in written


def test_name_is_printable():
    assert printable("Größe 漢字 a.mp3") == "Größe 漢字 a.mp3"
    assert printable("a\nb\t\x1b") == r"a\u000ab\u0009\u001b"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EBADF])
def test_standard_output_that_cannot_be_written_is_an_output_error(monkeypatch, code):
    monkeypatch.setattr("sys.stdout", Failing(OSError(code, os.strerror(code))))
    with pytest.raises(OutputError, match=f"^standard output: cannot be written: {os.strerror(code)}$"):
        write_stdout("text")


def test_closed_standard_output_is_an_output_error(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(OutputError, match=r"^standard output: cannot be written: it is closed$"):
        write_stdout("text")
    write_stdout("")  # nothing is lost


def test_reader_that_went_away_stops_the_work(monkeypatch):
    monkeypatch.setattr("sys.stdout", Failing(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    with pytest.raises(Stop) as stopped:
        write_stdout("text")
    assert stopped.value.code == 141


@pytest.mark.parametrize(
    "stream", [Failing(OSError(errno.ENOSPC, "full")), Failing(OSError(errno.EIO, "gone")), None]
)
def test_standard_error_that_cannot_be_written_changes_nothing(monkeypatch, stream):
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("sys.stderr", stream)
    with Screen(show_progress=True) as screen:
        screen.show_status("loading ...")
        screen.write_stderr("a message")
        progress = screen.track("a.mp3", 10.0)
        progress(5.0, False)
        progress(10.0, True)
        screen.write_stdout("text\n")
        screen.write_stderr("another message")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which only Linux has")
class TestFullDevice:
    """A whole process: the interpreter writes what is left in its buffers at its end."""

    def run(self, code: str, **streams: str) -> subprocess.CompletedProcess[str]:
        script = f"from harken.cli.terminal import *; from harken.errors import OutputError\nimport sys\n{code}"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with open("/dev/full", "w") as full:
            files = {name: {"full": full, "pipe": subprocess.PIPE}[kind] for name, kind in streams.items()}
            return subprocess.run(
                [sys.executable, "-c", script], text=True, env=environment, **files, timeout=60
            )

    def test_exit_code_of_a_full_standard_output_is_kept(self):
        code = (
            "try:\n write_stdout('text')\nexcept OutputError as error:\n write_stderr(str(error)); sys.exit(5)"
        )
        done = self.run(code, stdout="full", stderr="pipe")
        assert (done.returncode, done.stderr) == (
            5,
            "standard output: cannot be written: No space left on device\n",
        )

    def test_full_standard_error_keeps_the_exit_code(self):
        done = self.run("write_stderr('message'); write_stdout('text')", stdout="pipe", stderr="full")
        assert (done.returncode, done.stdout) == (0, "text")


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are numbered so only on POSIX")
def test_file_never_takes_the_number_of_a_closed_stream(tmp_path):
    target = tmp_path / "a.srt"
    code = (
        "from harken.cli.terminal import open_closed_streams; import os\n"
        f"open_closed_streams()\nfile = open({str(target)!r}, 'w')\nos.write(1, b'a library says'); os.write(2, b'so')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(["/bin/sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command], timeout=60)
    assert (done.returncode, target.read_text()) == (0, "")


class TestPace:
    """The speed and the time left beside the bar."""

    @pytest.mark.parametrize(
        ("done_s", "total_s", "elapsed_s", "shown"),
        [
            (28.0, 10_800.0, 0.0, ""),
            (28.0, 10_800.0, 0.2, ""),
            (28.0, 10_800.0, 0.5, "56.0x real time"),
            (400.0, 10_800.0, 4.9, "81.6x real time"),
            (400.0, 10_800.0, 5.0, "02:10 left, 80.0x real time"),
            (400.0, None, 5.0, "80.0x real time"),
            (400.0, 400.0, 5.0, "80.0x real time"),
            (0.0, 400.0, 5.0, "0.0x real time"),
        ],
    )
    def test_pace_is_shown_once_it_means_something(self, done_s, total_s, elapsed_s, shown):
        assert format_pace(done_s, total_s, elapsed_s) == shown

    def test_clock_starts_where_the_work_before_ended(self, monkeypatch):
        terminal = one_terminal(monkeypatch)
        now_s = 100.0
        monkeypatch.setattr("harken.cli.terminal.perf_counter", lambda: now_s)
        screen = Screen(show_progress=True)
        early = screen.track("a.mp3", 60.0)
        now_s += 7.0  # the model is loaded
        screen.show_status("")
        with screen:
            now_s += 2.0
            early(30.0, False)
            now_s += 2.0
            early(60.0, True)
            now_s += 4.0
            late = screen.track("b.mp3", 60.0)  # made at the first window only
            late(20.0, False)
        written = terminal.getvalue()
        assert written.count("15.0x real time") == 2
        assert "5.0x real time" in written.replace("15.0x", "")
