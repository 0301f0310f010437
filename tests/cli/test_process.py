"""The process of the command: its end at a signal, whatever it does, and its standard streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")

LIMIT_S = 20.0
"""A process that lives longer after its signal hangs; docs/reliability.md has what was measured."""
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

PREPARED = """
import sys, time
import numpy as np
from harken import __main__
from harken.cli import options
sys.path.insert(0, {tests!r})
from fakes.backends import WINDOW_POSITIONS, TranscriptBackend, window_text
from harken.api import Recognizer
from tiny_models import TOKENIZER

class Backend(TranscriptBackend):
    def encode(self, mel, positions):
        if len(self.mels) == 2:
            print("third window", file=sys.stderr, flush=True)
            {busy}
        return super().encode(mel)

backend = Backend(*[window_text(0, word, WINDOW_POSITIONS) for word in ("one", "two", "three", "four")])
options.load = lambda **given: Recognizer(backend, TOKENIZER, "fake")
__main__.run()
"""
"""The command with a model of known texts that is busy with the third window."""

IN_PYTHON = "while True: time.sleep(0.01)"
IN_A_FINALIZER = "type('Slow', (), {'__del__': lambda self: time.sleep(60)})(); time.sleep(60)"
IN_A_CALL = "import ctypes; ctypes.CDLL(None).usleep(60_000_000)"


@pytest.fixture
def environment():
    return {name: value for name, value in os.environ.items() if name != "HARKEN_DEBUG"}


@pytest.fixture
def talk(tmp_path):
    return AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", 0.48 * 4)


def start(
    command: Sequence[str], folder: Path, environment: dict[str, str], **streams: int
) -> subprocess.Popen[str]:
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, text=True, **given)  # type: ignore[call-overload,no-any-return]


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    """Send a signal; return the exit code and standard error."""
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, err


def prepared(busy: str) -> list[str]:
    return ["-c", PREPARED.format(tests=str(Path(__file__).parents[1]), busy=busy)]


@pytest.mark.parametrize(
    "busy",
    [IN_PYTHON, IN_A_CALL, IN_A_FINALIZER],
    ids=["in Python", "in a call of C", "where Python drops exceptions"],
)
@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_ends_the_command_and_keeps_what_was_done(talk, environment, busy, number):
    command = ["transcribe", "talk.wav", "-f", "txt", "--language", "en", "--no-vad"]
    with start([*prepared(busy), *command], talk.parent, environment) as process:
        assert process.stderr
        assert process.stderr.readline() == "third window\n"
        code, err = end(process, number)
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}[number]
    assert code == 128 + number
    assert err == f"harken: talk.wav: {word} at 00:00.960; what was done is in talk.txt.partial\n"
    assert (talk.parent / "talk.txt.partial").read_text() == "one\ntwo\n"
    assert sorted(os.listdir(talk.parent)) == ["talk.txt.partial", "talk.wav"]


def test_ignored_signals_stay_ignored(talk, environment):
    """As under nohup."""
    command = [
        *(
            "-c",
            "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(*eval(sys.argv[1]))",
        ),
        repr(
            (
                sys.executable,
                [
                    sys.executable,
                    *prepared("time.sleep(1)"),
                    "transcribe",
                    "talk.wav",
                    "--language",
                    "en",
                    "--no-vad",
                ],
            )
        ),
    ]
    with start(command, talk.parent, environment) as process:
        assert process.stderr
        assert process.stderr.readline() == "third window\n"
        code, err = end(process, signal.SIGHUP)
    assert (code, err) == (0, "")


FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
CLOSED = "import os, sys; [os.close(fd) for fd in eval(sys.argv[1])]; os.execv(*eval(sys.argv[2]))"


def run_with_closed(
    descriptors: tuple[int, ...], arguments: Sequence[str], folder: Path, environment: dict[str, str]
) -> int:
    command = (sys.executable, [sys.executable, *prepared("pass"), *arguments])
    return subprocess.run(
        [sys.executable, "-c", CLOSED, repr(descriptors), repr(command)],
        cwd=folder,
        env=environment,
        timeout=60,
    ).returncode


@pytest.mark.parametrize("descriptors", [(1,), (1, 2), (0, 1, 2)])
def test_transcript_for_a_closed_standard_output_is_an_error(talk, environment, descriptors):
    assert (
        run_with_closed(
            descriptors, ["transcribe", "talk.wav", "--language", "en", "--no-vad"], talk.parent, environment
        )
        == 5
    )


@pytest.mark.parametrize("descriptors", [(2,), (1, 2), (0, 1, 2)])
def test_files_are_written_whatever_streams_are_closed(talk, environment, descriptors):
    arguments = ["transcribe", "talk.wav", "--language", "en", "--no-vad", "-f", "txt", "-v"]
    assert run_with_closed(descriptors, arguments, talk.parent, environment) == 0
    assert (talk.parent / "talk.txt").read_text() == "one\ntwo\nthree\nfour\n"


@FULL
def test_full_standard_output_is_an_error_of_one_line(talk, environment):
    with open("/dev/full", "w") as full:
        command = [*prepared("pass"), "transcribe", "talk.wav", "--language", "en", "--no-vad"]
        with start(command, talk.parent, environment, stdout=full.fileno()) as process:
            _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert err.replace("third window\n", "") == (
        "harken: standard output: cannot be written: No space left on device\n"
    )


def test_help_into_a_pipe_that_was_closed_ends_with_141(tmp_path, environment):
    reader, writer = os.pipe()
    os.close(reader)
    with start(["-m", "harken", "--help"], tmp_path, environment, stdout=writer) as process:
        _, err = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, err) == (141, "")


def test_help_for_a_closed_standard_output_is_an_error(tmp_path, environment):
    assert run_with_closed((1,), ["--help"], tmp_path, environment) == 5


FORKING = """
import os, signal, sys, time
from harken.cli import signals
signals.watch_signals()
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    time.sleep(20)
time.sleep(0.3)
os.kill(child, signal.SIGTERM)
os.waitpid(child, 0)
time.sleep(2 * signals.ANSWER_S)
"""


def test_signal_for_a_child_does_not_end_its_parent(environment):
    done = subprocess.run([sys.executable, "-c", FORKING], env=environment, timeout=60, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
