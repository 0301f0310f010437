"""Texts from outside cannot control the terminal; streams that cannot be written end the work, or do not."""

import errno
import io
import os
import subprocess
import sys

import pytest

from harken.cli.exits import Stop
from harken.cli.terminal import Screen, TimestampedLines, format_pace, write_stderr, write_stdout
from harken.errors import OutputError
from harken.formats import printable
from transcripts import segment

HOSTILE = "a\x1b]0;owned\x07b\x9b31mc\0d\x7fe\rf\udcffg"
COLOURED = "\x1b[31m[-a-]\x1b[0m\x1b[32m{+b+}\x1b[0m \u202b\u05d0\u202c\n"
ESCAPED = r"a\u001b]0;owned\u0007b\u009b31mc\u0000d\u007fe\u000df\udcffg"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal, and may fail."""

    error = None

    def isatty(self):
        return True

    def write(self, text):
        if self.error:
            raise self.error
        return super().write(text)


def one_terminal(monkeypatch):
    """Make standard output and standard error the same terminal, and return it."""
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


@pytest.mark.parametrize(
    ("write", "text", "written"),
    [
        (write_stdout, f"{HOSTILE}\n\tb\n", f"{ESCAPED}\n\tb\n"),
        (write_stderr, f"{HOSTILE}\n\tb", f"{ESCAPED}\n\tb\n"),
        (write_stderr, "gnp\u202egpj.\u2028exe", "gnp\\u202egpj.\\u2028exe\n"),
        (write_stdout, '{"text": "\x9b\udcff"}\n', '{"text": "\\u009b\\udcff"}\n'),  # JSON stays JSON
        (write_stdout, COLOURED, COLOURED),  # colours of harken, directions of text
    ],
)
def test_what_steers_a_terminal_is_written_as_escapes_and_nothing_else(monkeypatch, write, text, written):
    terminal = one_terminal(monkeypatch)
    write(text)
    assert terminal.getvalue() == written


def test_heading_and_line_of_a_segment_are_harmless():
    lines = TimestampedLines(f"{HOSTILE}\nforged <==")
    assert lines.header() == f"==> {ESCAPED}\\u000aforged <== <==\n"
    assert (
        lines.segment(segment(0.0, 1.0, " a\x1b[2Jb\x9bc")) == "[00:00.000 --> 00:01.000] a\ufffd[2Jb\ufffdc\n"
    )
    assert printable("Größe 漢字 a\nb\t\x1b.mp3") == r"Größe 漢字 a\u000ab\u0009\u001b.mp3"


def test_bar_and_what_is_printed_above_it_are_harmless(monkeypatch):
    terminal = one_terminal(monkeypatch)
    with Screen(show_progress=True) as screen:
        with screen.status(HOSTILE):
            screen.track(HOSTILE, 10.0)(5.0, False)
        screen.write_stdout(f"above :smile: {HOSTILE}\n")
        screen.write_stderr(f"error {HOSTILE}")
    written = terminal.getvalue()
    assert "\\u001b]0;owned" in written
    for raw in ("\x1b]", "\x07", "\x9b", "\0", "\x7f", "\udcff"):
        assert raw not in written
    assert f"above :smile: {ESCAPED}\n" in written
    assert f"error {ESCAPED}\n" in written


def test_bar_of_a_recording_longer_than_its_header_says_is_full(monkeypatch):
    terminal = one_terminal(monkeypatch)
    with Screen(show_progress=True) as screen:
        screen.track("a.mp3", 10.0)(12.0, False)
    assert "100%" in terminal.getvalue()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EBADF, errno.EPIPE, None])
def test_standard_output_that_cannot_be_written_is_an_output_error_and_without_a_reader_the_end(
    monkeypatch, code
):
    terminal = one_terminal(monkeypatch)
    reason = "it is closed"
    if code is None:
        monkeypatch.setattr("sys.stdout", None)
    else:
        terminal.error, reason = OSError(code, os.strerror(code)), os.strerror(code)
    write_stdout("")  # nothing is lost
    with pytest.raises((OutputError, Stop)) as raised:
        write_stdout("text")
    if code == errno.EPIPE:
        assert raised.value.code == 141
    else:
        assert str(raised.value) == f"standard output: cannot be written: {reason}"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "gone"), None])
def test_standard_error_that_cannot_be_written_changes_nothing(monkeypatch, error):
    terminal = one_terminal(monkeypatch)
    failing = Terminal()
    failing.error = error
    monkeypatch.setattr("sys.stderr", failing if error else None)
    with Screen(show_progress=True) as screen:
        with screen.status("loading ..."):
            screen.write_stderr("a message")
        progress = screen.track("a.mp3", 10.0)
        progress(5.0, False)
        progress(10.0, True)
        screen.write_stdout("text\n")
        screen.write_stderr("another message")
    assert "text\n" in terminal.getvalue()


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


@pytest.mark.parametrize(
    ("done_s", "total_s", "elapsed_s", "shown"),
    [
        (28.0, 10_800.0, 0.2, ""),
        (28.0, 10_800.0, 0.5, "56.0x real time"),
        (400.0, 10_800.0, 4.9, "81.6x real time"),
        (400.0, 10_800.0, 5.0, "02:10 left, 80.0x real time"),
        (400.0, None, 5.0, "80.0x real time"),
        (400.0, 400.0, 5.0, "80.0x real time"),
    ],
)
def test_pace_is_shown_once_it_means_something(done_s, total_s, elapsed_s, shown):
    assert format_pace(done_s, total_s, elapsed_s) == shown


def test_clock_of_the_pace_starts_where_the_work_before_ended(monkeypatch):
    terminal = one_terminal(monkeypatch)
    now_s = 100.0
    monkeypatch.setattr("harken.cli.terminal.perf_counter", lambda: now_s)
    screen = Screen(show_progress=True)
    early = screen.track("a.mp3", 60.0)
    with screen.status("loading the model ..."):
        now_s += 7.0
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
