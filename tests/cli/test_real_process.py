"""The installed command on the embedded model: its streams, terminals, and live sound that breaks off."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS
from cli_runner import eventually
from harken.audio import load_audio
from harken.cli.exits import SIGNALS
from harken.formats import FORMATS
from processes import PATIENCE_S, ended, run, speech, started
from real_models import CACHE, EXAMPLE, model_path

pytestmark = pytest.mark.real
posix = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has neither POSIX signals nor such terminals"
)
LINE = re.compile(r"\[\d\d:\d\d\.\d{3} --> \d\d:\d\d\.\d{3}\] \S.*")
LISTEN = ("listen", "-", "--pcm", "--json", "--quiet")
SIX_S = 2 * 16_000 * 6


@pytest.fixture(autouse=True)
def tiny() -> None:
    model_path("tiny.en")


@pytest.fixture(scope="module")
def pcm() -> bytes:
    """The example, and enough silence after it to end an utterance."""
    samples = np.concatenate([load_audio(EXAMPLE), np.zeros(32_000, np.float32)])
    return (samples * 32768).astype("<i2").tobytes()


def test_standard_input_is_transcribed_to_the_screen(tmp_path):
    done = run(["transcribe", "-"], tmp_path, CACHE, stdin=EXAMPLE.read_bytes())
    assert (done.code, done.err) == (0, "")
    assert all(map(LINE.fullmatch, done.out.splitlines()))
    assert "ask not what your country can do for you" in done.out


@contextmanager
def on_a_terminal(
    arguments: list[object], folder: Path, **settings: Any
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start harken on a terminal, and close what is left of it at the end."""
    import pty

    controller, terminal = pty.openpty()
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal} | settings
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
def test_signal_at_a_terminal_writes_the_transcript_so_far(tmp_path):
    long = AUDIO_FORMATS["flac"].write(tmp_path / "long", samples=np.tile(speech(0, 11), 28))
    arguments = ["transcribe", long, "--temperatures", "0", "--format", "all", "--output-dir", "partial"]
    with on_a_terminal(arguments, tmp_path) as (process, controller):
        shown = read(controller, until="x real time")  # the first window is done
        process.send_signal(signal.SIGINT)
        last = read(controller)
        assert process.wait(timeout=20) == 130
    assert LINE.search(shown)
    assert re.search(r"harken: .*long\.flac: interrupted at \d\d:\d\d\.\d{3}; what was done", last)
    names = {path.name for path in (tmp_path / "partial").iterdir()}
    assert names == {f"long.{form}.partial" for form in FORMATS if form != "rttm"}
    document = json.loads((tmp_path / "partial" / "long.json.partial").read_text(encoding="utf-8"))
    assert "ask not" in document["text"]
    assert 0 < document["segments"][-1]["end"] < 300


@posix
def test_captions_at_a_terminal_end_with_final_lines(tmp_path):
    with on_a_terminal(["listen", "--quiet", EXAMPLE], tmp_path) as (process, controller):
        text = read(controller).removesuffix("\r\x1b[2K")  # in the end an empty row is emptied, too
        assert process.wait() == 0
    assert "\x1b[2m" in text  # something was tentative
    last = text[text.rindex("\x1b[2K") :].removeprefix("\x1b[2K")
    assert "\x1b[" not in last
    assert last.endswith("\r\n")
    assert "for your country." in " ".join(last.split())


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="nothing closes a terminal on this system")
def test_closed_terminal_leaves_complete_files(tmp_path, pcm):
    import fcntl
    import termios

    arguments = ["listen", "-", "--pcm", "--record", "hung.wav", "-o", "hung.txt"]
    own = {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0)}
    with on_a_terminal(arguments, tmp_path, stdin=subprocess.PIPE, **own) as (process, controller):
        process.stdin.write(pcm[:SIX_S])
        process.stdin.flush()
        read(controller, until="fellow")
        os.close(controller)
        assert process.wait(timeout=PATIENCE_S) in (128 + signal.SIGHUP, 5)
        process.stdin.close()
    assert len(load_audio(tmp_path / "hung.wav")) == 6 * 16_000
    assert "fellow" in (tmp_path / "hung.txt").read_text(encoding="utf-8")
    assert sorted(os.listdir(tmp_path)) == ["hung.txt", "hung.wav"]


@pytest.mark.nightly
def test_events_agree_with_the_transcript_and_the_recording(tmp_path, pcm):
    done = run([*LISTEN, "--record", "a.wav", "--output", "a.json"], tmp_path, CACHE, stdin=pcm)
    assert (done.code, done.err) == (0, "")
    events = [json.loads(line) for line in done.out.splitlines()]
    kinds = [event["event"] for event in events if event["event"] != "load_changed"]
    assert {*kinds} == {"speech_started", "interim", "final_segment", "speech_ended"}
    assert kinds[0] == "speech_started"
    emitted = [event["emitted_s"] for event in events]
    assert emitted == sorted(emitted)
    for interim, utterance in groupby(events, lambda event: event["event"] == "interim"):
        if interim:
            for earlier, later in pairwise(event["committed"] for event in utterance):
                assert later.startswith(earlier)
    text = "".join(event["segment"]["text"] for event in events if event["event"] == "final_segment")
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (document["text"], document["duration"]) == (text.strip(), 13.0)
    with wave.open(str(tmp_path / "a.wav")) as recorded:
        assert recorded.readframes(recorded.getnframes()) == pcm


@posix
def test_signal_ends_a_waiting_pipe(tmp_path, pcm):
    with started(
        [*LISTEN, "--record", "cut.wav", "-o", "cut.txt"], tmp_path, CACHE, stdin=subprocess.PIPE
    ) as process:
        process.stdin.write(pcm[:SIX_S])
        process.stdin.flush()
        for line in process.stdout:
            if json.loads(line).get("emitted_s", 0) > 5:
                break
        process.send_signal(signal.SIGTERM)
        outcome = ended(process)
    events = [json.loads(line) for line in outcome.out.splitlines()]
    said = [event["segment"]["text"].strip() for event in events if event["event"] == "final_segment"]
    assert said
    saved = "at 00:06.000; what was done is in cut.wav, cut.txt"
    assert (outcome.code, outcome.err) == (143, f"harken: {SIGNALS[signal.SIGTERM]} {saved}\n")
    assert len(load_audio(tmp_path / "cut.wav")) == 6 * 16_000
    assert (tmp_path / "cut.txt").read_text(encoding="utf-8").splitlines() == said
    assert sorted(os.listdir(tmp_path)) == ["cut.txt", "cut.wav"]


@posix
@pytest.mark.nightly
def test_killed_process_leaves_what_it_heard(tmp_path, pcm):
    heard = pcm[:SIX_S] + bytes(2 * 16_000 * 2)  # the silence ends an utterance
    with started(
        [*LISTEN, "--record", "a.wav", "-o", "a.txt"], tmp_path, CACHE, stdin=subprocess.PIPE
    ) as process:
        process.stdin.write(heard)
        process.stdin.flush()
        events = map(json.loads, process.stdout)
        said = next(event["segment"]["text"].strip() for event in events if event["event"] == "final_segment")
        assert eventually(lambda: said in (tmp_path / "a.txt.part").read_text(encoding="utf-8"))
        process.kill()
        process.wait()
    samples = load_audio(tmp_path / "a.wav.part")  # it is a recording like others
    sent = np.frombuffer(heard, "<i2")[: len(samples)].astype(np.float32) / 32768
    assert len(samples) >= 7 * 16_000  # of 8 s
    assert np.array_equal(samples, sent)
    assert not (tmp_path / "a.wav").exists()
