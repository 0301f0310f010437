"""The first Ctrl-C or SIGTERM ends a command that waits for standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SENT = {"nothing": 0, "a part of the header": 30, "the header and a little sound": 9_000}
COMMANDS = {
    "transcribe": ("transcribe", "-"),
    "decode": ("decode", "-"),
    "plot": ("plot", "-", "-o", "unused.html"),
}

# The model is a fake, so nothing but the wait for standard input takes time. The signal comes from a thread, a tenth of
# a second after standard input is first asked for.
SCRIPT = """
import os, sys, threading
import harken.cli.options
from fakes.backends import TranscriptBackend, WindowText
from harken import __main__
from harken.api import Recognizer
from harken.audio.ffmpeg_input import FFmpegInput
from tiny_models import TOKENIZER

backend = TranscriptBackend(WindowText(tokens=()))
harken.cli.options.load = lambda **given: Recognizer(backend, TOKENIZER, "fake")
number = int(sys.argv.pop(1))
signal_later = threading.Timer(0.1, os.kill, (os.getpid(), number))
read = FFmpegInput.read

def read_after_start(self, size):
    if signal_later.ident is None:
        signal_later.start()
    return read(self, size)

FFmpegInput.read = read_after_start
__main__.run()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send a process these signals")
@pytest.mark.parametrize(
    ("command", "sent", "number"),
    [
        ("transcribe", "nothing", signal.SIGTERM),
        ("transcribe", "a part of the header", signal.SIGINT),
        ("transcribe", "the header and a little sound", signal.SIGTERM),
        ("decode", "the header and a little sound", signal.SIGINT),
        ("plot", "nothing", signal.SIGINT),
    ],
)
def test_first_signal_ends_the_wait_for_standard_input(command, sent, number, tmp_path):
    run = [sys.executable, "-c", SCRIPT, str(int(number)), *COMMANDS[command]]
    with subprocess.Popen(
        run,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.buffer.write((ROOT / "examples" / "jfk.flac").read_bytes()[: SENT[sent]])
        process.stdin.flush()
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail("the signal was lost")
        assert code == 128 + number
        assert process.stderr.read() in ("harken: interrupted\n", "harken: terminated\n")
        process.stdin.close()
    assert not [*tmp_path.iterdir()]
