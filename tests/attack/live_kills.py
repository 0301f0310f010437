"""Killing ``harken listen``: what it recorded up to a second before must be on the disk."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from processes import environment, run_program, speech

if TYPE_CHECKING:
    from kills import Report

LISTEN = (sys.executable, "-m", "harken")
BYTES_A_SECOND = 32_000
BLOCK_S = 0.05
GRACE_S = 1.0
SPREAD_S = 4.0
HEADER_BYTES = 44


class Listening:
    """A live session of raw samples in real time, recorded and transcribed to files."""

    def __init__(self, folder: Path, model: str, rng: random.Random, report: Report) -> None:
        self.folder, self.rng, self.report = folder, rng, report
        # A window of the model of random weights is half a second, too short for a live session.
        self.model = "tiny.en" if Path(model).is_dir() and (Path(model) / "vocab.json").exists() else model
        folder.mkdir(parents=True)
        self.cache = folder / "cache"
        self.sound = np.rint(np.clip(speech(0, 11), -1, 0.999) * 32768).astype("<i2").tobytes()
        first = ["listen", "-m", self.model, "-q", "-", "--pcm"]
        ended = run_program(LISTEN, first, folder, self.cache, stdin=self.sound)
        if ended.code:
            raise SystemExit(ended.err)
        began = time.monotonic()
        run_program(LISTEN, first, folder, self.cache, stdin=self.sound[:BYTES_A_SECOND])
        self.start_s = time.monotonic() - began

    def kill(self) -> None:
        """Kill one session at a random time of its first seconds."""
        from kills import choose_signal, end_faults, kill_after

        number, work = choose_signal(self.rng), self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        arguments = ["listen", "-", "--pcm", "-m", self.model, "-q", "--record", "x.wav", "-o", "x.srt"]
        process = subprocess.Popen(
            [*LISTEN, *arguments],
            cwd=work,
            env=environment(self.cache),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        times: list[float] = []
        feeder = threading.Thread(target=self._feed, args=(process, times))
        feeder.start()
        killed = kill_after(process, self.rng.uniform(0.3 * self.start_s, self.start_s + SPREAD_S), number)
        killed_at = time.monotonic()
        unread = _unread_bytes(process)
        err = process.stderr.read().decode(errors="replace") if process.stderr else ""
        code = process.wait(60)
        feeder.join()
        if not killed:
            self._fault(f"listen ended by itself, exit code {code}: {err[-300:]}")
            return
        fed = round(BLOCK_S * BYTES_A_SECOND) * sum(at < killed_at - GRACE_S for at in times)
        recorded = next((path for path in (work / "x.wav", work / "x.wav.part") if path.exists()), None)
        content = recorded.read_bytes()[HEADER_BYTES:] if recorded else b""
        self.report.add(f"listen {number.name}", "live: with sound" if content else "live: before the sound")
        for fault in end_faults(code, number, err):
            self._fault(fault)
        if len(content) < fed - unread:
            self._fault(
                f"{number.name}: recorded are {len(content)} bytes of {fed} that were sent a second before "
                f"(unread: {unread})"
            )
        if content != self.sound[: len(content)]:
            self._fault(f"{number.name}: the recording differs from the sound")
        allowed = {"x.wav", "x.srt", "x.wav.part", "x.srt.part"}
        for name in {path.name for path in work.iterdir()} - allowed:
            self._fault(f"{name} is there after {number.name}")
        if code == 128 + number and {*work.glob("*.part")}:
            self._fault(f"{number.name}: files have not taken their names")

    def _feed(self, process: subprocess.Popen[bytes], times: list[float]) -> None:
        """Write the sound in real time, as a microphone would, until nobody reads it."""
        assert process.stdin
        size = round(BLOCK_S * BYTES_A_SECOND)
        began = time.monotonic()
        try:
            for start in range(0, len(self.sound), size):
                time.sleep(max(0.0, began + start / BYTES_A_SECOND - time.monotonic()))
                process.stdin.write(self.sound[start : start + size])
                process.stdin.flush()
                times.append(time.monotonic())
            process.wait()
            process.stdin.close()
        except OSError:
            return

    def _fault(self, text: str) -> None:
        self.report.fault(f"{self.folder}: listen: {text}")


def _unread_bytes(process: subprocess.Popen[bytes]) -> int:
    """Return the bytes in the pipe that the process had not read."""
    if sys.platform == "win32":
        return 1 << 16
    import array
    import fcntl
    import termios

    count = array.array("i", [0])
    assert process.stdin
    fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, count)
    return count[0]
