"""The process of the command, over known texts or the embedded model: its end at a signal, its streams, terminals."""

import array
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from signal import SIG_IGN, SIGTERM, signal

import pytest

from audio_files import AUDIO_FORMATS
from cli_runner import Outcome, eventually
from fakes.measured import write_talks
from harken.audio import load_audio
from harken.cli.exits import SIGNALS
from processes import ended, run, speech, started
from real_models import CACHE, EXAMPLE, model_path

if sys.platform == "win32":
    pytest.skip("sends POSIX signals", allow_module_level=True)

from signal import SIGHUP

LIMIT_S = 20.0
"""A process that lives longer after its signal hangs; docs/reliability.md has what was measured."""
PREPARED = """
import sys, time
from contextlib import suppress
sys.path.insert(0, {tests!r})
from fakes.backends import WINDOW_POSITIONS, TranscriptBackend, window_text
from harken import __main__
from harken.api import Recognizer
from harken.audio.ffmpeg_input import FFmpegInput
from harken.cli import model_options
from tiny_models import TOKENIZER

def say(text):
    print(text, file=sys.stderr, flush=True)

def drop_one_exception():
    with suppress(BaseException):
        say("third window")
        time.sleep(60)
    while True:
        time.sleep(0.01)

class Backend(TranscriptBackend):
    def encode(self, mel, *, padded):
        if len(self.mels) == 2:
            {busy}
        return super().encode(mel)

def asked(self, size, read=FFmpegInput.read):
    {asked}
    return read(self, size)

FFmpegInput.read = asked
backend = Backend(*[window_text(0, word, WINDOW_POSITIONS) for word in ("one", "two", "three", "four")])
model_options.load = lambda **given: Recognizer(backend, TOKENIZER, "fake")
__main__.run()
"""
BUSY = {
    "in a long call": "import hashlib; say('third window'); hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",
    "where what a handler raises is dropped": "drop_one_exception()",
}
TALK = ("transcribe", "talk.wav", "--language", "en", "--no-vad")


@pytest.fixture
def talk(tmp_path):
    """A recording of four windows."""
    return AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", 0.48 * 4)


def prepared(busy="pass", asked="pass"):
    """Return a program that is ``harken`` over known texts, busy with the third window."""
    return [sys.executable, "-c", PREPARED.format(tests=str(Path(__file__).parents[1]), busy=busy, asked=asked)]


@pytest.mark.parametrize("busy", BUSY)
def test_first_signal_ends_the_command_and_keeps_what_was_done(talk, busy):
    folder = talk.parent
    with started([*TALK, "-f", "txt"], folder, folder, program=prepared(BUSY[busy])) as process:
        assert process.stderr.readline() == b"third window\n"
        process.send_signal(SIGHUP)
        outcome = ended(process, limit_s=LIMIT_S)
    saved = "at 00:00.960; what was done is in talk.txt.partial"
    assert outcome == Outcome(code=128 + SIGHUP, out="", err=f"harken: talk.wav: {SIGNALS[SIGHUP]} {saved}\n")
    assert (folder / "talk.txt.partial").read_text() == "one\ntwo\n"
    assert sorted(os.listdir(folder)) == ["talk.txt.partial", "talk.wav"]


def test_first_signal_in_a_long_call_keeps_what_was_measured(tmp_path):
    pytest.importorskip("jiwer")
    write_talks(tmp_path / "talks", ("one", "two", "three"), ("en",) * 3)
    arguments, program = ["eval", "talks", "--no-vad", "--json", "out.json"], prepared(BUSY["in a long call"])
    with started(arguments, tmp_path, tmp_path, program=program) as process:
        assert process.stderr.readline() == b"third window\n"
        process.send_signal(SIGTERM)
        outcome = ended(process, limit_s=LIMIT_S)
    assert (outcome.code, outcome.err) == (143, "harken: terminated after 2 of 3 recordings\n")
    assert "2 recordings: 1.0 s" in outcome.out
    assert json.loads((tmp_path / "out.json").read_text())["complete"] is False
    assert sorted(os.listdir(tmp_path)) == ["out.json", "talks"]


def waits_for_input(process):
    """Return whether a process has read what was sent to it, and sleeps, where the platform shows that."""
    import fcntl
    import termios

    unread = array.array("i", [0])
    fcntl.ioctl(process.stdin, termios.FIONREAD, unread)
    status = Path(f"/proc/{process.pid}/stat")
    return not unread[0] and (not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "S")


def test_first_signal_ends_the_wait_for_standard_input(tmp_path):
    program = prepared(asked="say('asked')")
    with started(["transcribe", "-"], tmp_path, tmp_path, program=program, stdin=subprocess.PIPE) as process:
        process.stdin.write(EXAMPLE.read_bytes()[:30])  # a part of the header
        process.stdin.flush()
        assert process.stderr.readline() == b"asked\n"
        assert eventually(lambda: waits_for_input(process))
        process.send_signal(SIGTERM)
        code = process.wait(LIMIT_S)
        err = process.stderr.read().decode().replace("asked\n", "")
        process.stdin.close()
    assert (code, err) == (128 + SIGTERM, f"harken: {SIGNALS[SIGTERM]}\n")
    assert not [*tmp_path.iterdir()]


def test_command_without_streams_goes_on_and_signals_that_are_ignored_stay_so(talk):
    """As a service starts it, and nohup."""

    def leave_the_terminal():
        signal(SIGHUP, SIG_IGN)
        for descriptor in range(3):
            os.close(descriptor)

    program = prepared("import os, signal; os.kill(os.getpid(), signal.SIGHUP)")
    options = [*TALK, "-f", "txt", "-v"]
    outcome = run(options, talk.parent, talk.parent, program=program, preexec_fn=leave_the_terminal)
    assert outcome.code == 0
    assert (talk.parent / "talk.txt").read_text() == "one\ntwo\nthree\nfour\n"


def test_command_needs_no_thread_to_watch_for_signals(tmp_path):
    """As where a container has no more processes."""
    none_starts = """
import threading
from harken import __main__
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
__main__.run()
"""
    outcome = run(["--version"], tmp_path, tmp_path, program=[sys.executable, "-c", none_starts])
    assert (outcome.code, outcome.err) == (0, "")


def test_reader_that_went_away_ends_the_command_quietly_with_141(talk):
    reader, writer = os.pipe()
    os.close(reader)
    with started(TALK, talk.parent, talk.parent, program=prepared(), stdout=writer) as process:
        os.close(writer)
        outcome = ended(process)
    assert (outcome.code, outcome.err) == (141, "")


FORKING = """
import os, signal, time
from harken.cli import signals
signals.ANSWER_S = 0.2
signals.watch_signals()
reader, writer = os.pipe()
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    os.write(writer, b"!")
    time.sleep(20)
os.read(reader, 1)
os.kill(child, signal.SIGTERM)
os.waitpid(child, 0)
time.sleep(2 * signals.ANSWER_S)
"""


def test_signal_for_a_child_does_not_end_its_parent(tmp_path):
    ignoring = ["-W", "ignore::DeprecationWarning"]  # Python 3.12 warns of threads, which the parent has
    outcome = run([*ignoring, "-c", FORKING], tmp_path, tmp_path, program=[sys.executable])
    assert outcome == Outcome(code=0, out="", err="")


CLEANING = """
import os, signal, time
from harken.cli import signals
signals.ANSWER_S = 0.1
signals.watch_signals()
with signals.keeping_stop():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for _ in range(2):
            time.sleep(4 * signals.ANSWER_S)
        print("cleaned")
"""


def test_signal_is_not_repeated_while_its_exception_is_on_its_way(tmp_path):
    outcome = run(["-c", CLEANING], tmp_path, tmp_path, program=[sys.executable])
    assert (outcome.out, outcome.err.splitlines()[-1]) == ("cleaned\n", "harken.cli.exits.Stop: terminated")


@pytest.mark.real
def test_captions_at_a_terminal_end_with_final_lines(tmp_path):
    import pty

    model_path("tiny.en")
    talk = AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", samples=speech(0, 3))
    controller, terminal = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    more = {"TERM": "xterm", "COLUMNS": "120"}
    shown = b""
    with started(["listen", "--quiet", talk], tmp_path, CACHE, more=more, **streams) as process:
        os.close(terminal)
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while data := os.read(controller, 4096):
                shown += data
        os.close(controller)
        assert process.wait() == 0
    text = shown.decode(errors="ignore").removesuffix("\r\x1b[2K")  # in the end an empty row is emptied, too
    assert "\x1b[2m" in text  # something was tentative
    last = text[text.rindex("\x1b[2K") :].removeprefix("\x1b[2K")
    assert "\x1b[" not in last
    assert last.endswith("\r\n")
    assert "fellow Americans" in last


@pytest.mark.real
def test_signal_ends_a_waiting_pipe(tmp_path):
    model_path("tiny.en")
    arguments = ["listen", "-", "--pcm", "--json", "--quiet", "--record", "cut.wav", "-o", "cut.txt"]
    with started(arguments, tmp_path, CACHE, stdin=subprocess.PIPE) as process:
        process.stdin.write((speech(0, 3) * 32768).astype("<i2").tobytes())
        process.stdin.flush()
        for line in process.stdout:
            if json.loads(line).get("emitted_s", 0) > 2:
                break
        process.send_signal(SIGTERM)
        outcome = ended(process)
    events = [json.loads(line) for line in outcome.out.splitlines()]
    said = [event["segment"]["text"].strip() for event in events if event["event"] == "final_segment"]
    assert said
    saved = "at 00:03.000; what was done is in cut.wav, cut.txt"
    assert (outcome.code, outcome.err) == (143, f"harken: {SIGNALS[SIGTERM]} {saved}\n")
    assert len(load_audio(tmp_path / "cut.wav")) == 3 * 16_000
    assert (tmp_path / "cut.txt").read_text(encoding="utf-8").splitlines() == said
    assert sorted(os.listdir(tmp_path)) == ["cut.txt", "cut.wav"]
