"""A signal ends a command soon, at whatever it is: with its exit code, one line, and the results so far."""

import signal
import sys
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import harken
from audio_files import AUDIO_FORMATS
from cli_runner import eventually
from processes import ended, error_faults, speech, started
from real_models import CACHE, model_path

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads the state of a process from /proc"),
]
LIMIT_S = 20.0
"""A process that lives longer after its signal hangs; docs/reliability.md has what was measured."""
LONG = {
    "transcribe": ("transcribe", "long.wav", "-q", "-f", "srt", "--resume", "--temperatures", "0"),
    "decode": ("decode", "long.wav"),
    "eval": ("eval", "manifest.jsonl", "-q"),
    "bench": ("bench", "long.wav", "--repeat", "50"),
    "plot": ("plot", "long.wav", "-o", "long.html"),
    "listen": ("listen", "long.wav", "-q", "--record", "x.wav", "-o", "x.srt"),
}
FILM = ("transcribe", "film.wav", "-q", "-f", "html,srt", "--embed-audio", "--no-vad")


@dataclass(frozen=True)
class Case:
    """A command, the point at which it gets a signal, and how often."""

    arguments: tuple[str, ...]
    point: str
    number: signal.Signals
    times: int = 1

    def __str__(self):
        return f"{self.arguments[0]} {self.point} {self.number.name} x{self.times}"


NUMBERS = cycle([signal.SIGINT, signal.SIGTERM, signal.SIGHUP] if sys.platform != "win32" else [signal.SIGINT])
QUICK = [
    Case(LONG["transcribe"], "handlers set", signal.SIGTERM),
    Case(FILM, "file begun", signal.SIGTERM),
]
OTHERS = [
    Case(LONG["transcribe"], "windows decoded", signal.SIGINT),
    Case(LONG["transcribe"], "cache begun", signal.SIGTERM),
    Case(LONG["transcribe"], "model mapped", signal.SIGINT, times=3),
    *(Case(LONG[name], "model mapped", next(NUMBERS)) for name in [*LONG][1:]),
]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """A folder with a long recording, a manifest, and a film of which one second is heard and 90 MB are embedded."""
    harken.load(model_path("tiny.en"), cache=CACHE / "graphs")  # which its commands find there
    folder = tmp_path_factory.mktemp("signals")
    AUDIO_FORMATS["wav s16"].write(folder / "long", samples=np.tile(speech(0, 11), 60))
    small = AUDIO_FORMATS["wav s16"].write(folder / "short", samples=speech(7.5, 1.5)).read_bytes()
    (folder / "film.wav").write_bytes(small + b"JUNK" + (90 << 20).to_bytes(4, "little") + bytes(90 << 20))
    (folder / "manifest.jsonl").write_text('{"audio": "long.wav", "text": "ask not"}\n')
    return folder


@pytest.mark.parametrize(
    "case",
    [*QUICK, *(pytest.param(case, marks=pytest.mark.attack) for case in OTHERS)],
    ids=str,
)
def test_signal_ends_the_command_in_one_line_and_keeps_what_was_done(recordings, tmp_path, case):
    cache = tmp_path / "cache" if case.point == "cache begun" else CACHE
    before = {*recordings.iterdir()}
    with started(case.arguments, recordings, cache) as process:
        assert eventually(lambda: process.poll() is not None or is_at(case.point, recordings, cache, process))
        assert process.poll() is None, f"ended before: {case.point}"
        for _ in range(case.times):
            process.send_signal(case.number)
        outcome = ended(process, limit_s=LIMIT_S)
    left = {path.name: path for path in {*recordings.iterdir()} - before}
    for path in left.values():
        path.unlink()
    # Several signals at once are one for the system, or reach the process where it has begun to end.
    assert outcome.code in ({128 + case.number, -case.number} if case.times > 1 else {128 + case.number})
    # Before the work there is nothing to say, and a further signal may end the process before it has said something.
    early = (case.point == "handlers set" or case.times > 1) and not outcome.err
    assert early or outcome.code < 0 or not error_faults(outcome)
    if case.times == 1:
        assert early or len(outcome.err.splitlines()) == 1
        assert not [name for name in left if name.startswith(".")]
    assert "long.srt" not in left, "a transcript that is not whole has the name of one that is"
    if case.point == "windows decoded":
        assert "long.srt.partial" in left
    if case.point == "file begun":
        assert {"film.srt", "film.srt.partial"} & {*left}


def is_at(point, folder, cache, process):
    """Return whether a process is at a point that can be seen from outside."""
    match point:
        case "handlers set":
            status = Path(f"/proc/{process.pid}/status").read_text()
            return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)
        case "cache begun":
            return any(cache.rglob("*"))
        case "model mapped":
            return str(cache) in Path(f"/proc/{process.pid}/maps").read_text()
        case "windows decoded":  # the head and two windows: the segments of the first have been taken over
            journal = folder / "long.resume.jsonl"
            return journal.exists() and journal.read_bytes().count(b"\n") > 2
        case _:  # file begun
            return any(path.stat().st_size > 1 << 20 for path in folder.glob(".harken-*"))
