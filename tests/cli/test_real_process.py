"""The installed command on the embedded model: terminals, and live sound that breaks off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from harken.audio import load_audio
from harken.cli.exits import SIGNALS
from processes import ended, speech, started
from real_models import CACHE, model_path

pytestmark = pytest.mark.real
posix = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has neither POSIX signals nor such terminals"
)


@pytest.fixture(autouse=True)
def tiny() -> None:
    model_path("tiny.en")


@contextmanager
def on_a_terminal(arguments: list[object], folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start harken on a terminal, and close what is left of it at the end."""
    import pty

    controller, terminal = pty.openpty()
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    more = {"TERM": "xterm", "COLUMNS": "120"}
    with started(arguments, folder, CACHE, more=more, **streams) as process:
        os.close(terminal)
        yield process, controller
    with suppress(OSError):
        os.close(controller)


def read(controller: int, until: str | None = None) -> str:
    """Return the output of a terminal, up to a text or to its end."""
    shown = b""
    with suppress(OSError):  # Linux reports the end of a terminal as an error
        while data := os.read(controller, 4096):
            shown += data
            if until and until in shown.decode(errors="ignore"):
                break
    return shown.decode(errors="ignore")


@posix
def test_captions_at_a_terminal_end_with_final_lines(tmp_path):
    talk = AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", samples=speech(0, 3))
    with on_a_terminal(["listen", "--quiet", talk], tmp_path) as (process, controller):
        text = read(controller).removesuffix("\r\x1b[2K")  # in the end an empty row is emptied, too
        assert process.wait() == 0
    assert "\x1b[2m" in text  # something was tentative
    last = text[text.rindex("\x1b[2K") :].removeprefix("\x1b[2K")
    assert "\x1b[" not in last
    assert last.endswith("\r\n")
    assert "fellow Americans" in last


@posix
def test_signal_ends_a_waiting_pipe(tmp_path):
    arguments = ["listen", "-", "--pcm", "--json", "--quiet", "--record", "cut.wav", "-o", "cut.txt"]
    with started(arguments, tmp_path, CACHE, stdin=subprocess.PIPE) as process:
        process.stdin.write((speech(0, 3) * 32768).astype("<i2").tobytes())
        process.stdin.flush()
        for line in process.stdout:
            if json.loads(line).get("emitted_s", 0) > 2:
                break
        process.send_signal(signal.SIGTERM)
        outcome = ended(process)
    events = [json.loads(line) for line in outcome.out.splitlines()]
    said = [event["segment"]["text"].strip() for event in events if event["event"] == "final_segment"]
    assert said
    saved = "at 00:03.000; what was done is in cut.wav, cut.txt"
    assert (outcome.code, outcome.err) == (143, f"harken: {SIGNALS[signal.SIGTERM]} {saved}\n")
    assert len(load_audio(tmp_path / "cut.wav")) == 3 * 16_000
    assert (tmp_path / "cut.txt").read_text(encoding="utf-8").splitlines() == said
    assert sorted(os.listdir(tmp_path)) == ["cut.txt", "cut.wav"]
