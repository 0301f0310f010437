"""Signals at every stage of every command, and how long each takes to end.

Run it as a program, which prints the times::

    python tests/attack/signals.py
    python tests/attack/signals.py --rounds 5
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import program_path  # noqa: F401
from processes import HARKEN, Ended, environment, error_faults, run, speech

from audio_files import AUDIO_FORMATS

SLOWEST_S = 5.0
"""Five times what is promised, for machines that do other work."""
STARTING_S = 0.15
NUMBERS = {name: getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command and the time of a signal.

    Parameters
    ----------
    stage : str
        "starting", "loading", "working", "writing" or "waiting for input".
    arguments : tuple of str
    stdin : bytes or None
        What is in the pipe, which then stays open and silent; None for no pipe.
    signals : int
        Number of signals, a tenth of a second apart.
    partial : str
        The file that must hold the results so far.
    journal : str
        The file in which the finished windows can be seen.
    results : tuple of str
        Files of which one must be there.
    """

    stage: str
    arguments: tuple[str, ...]
    stdin: bytes | None = None
    signals: int = 1
    partial: str = ""
    journal: str = ""
    results: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name in tables."""
        piped = "" if self.stdin is None else ", header sent" if self.stdin else ", silent pipe"
        return (
            f"{self.arguments[0]} {self.stage}{piped}{f', {self.signals} signals' if self.signals > 1 else ''}"
        )


WAV_HEADER = (
    b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0\x80>\0\0\0}\0\0\x02\0\x10\0data\xff\xff\xff\xff"
)
LONG = {
    "transcribe": ("transcribe", "long.wav", "-q", "-f", "srt"),
    "decode": ("decode", "long.wav"),
    "eval": ("eval", "manifest.jsonl", "-q"),
    "bench": ("bench", "long.wav", "--repeat", "50"),
    "plot": ("plot", "long.wav", "-o", "long.html"),
    "listen": ("listen", "long.wav", "-q", "--record", "x.wav", "-o", "x.srt"),
}
PIPED = {
    "transcribe": ("transcribe", "-", "-q"),
    "decode": ("decode", "-"),
    "plot": ("plot", "-"),
    "listen": ("listen", "-", "-q"),
}
CASES = [
    *(Case(stage="starting", arguments=arguments) for arguments in LONG.values()),
    *(Case(stage="loading", arguments=arguments) for arguments in LONG.values()),
    *(Case(stage="working", arguments=arguments) for name, arguments in LONG.items() if name != "transcribe"),
    Case(
        stage="working",
        arguments=(*LONG["transcribe"], "--resume", "--temperatures", "0"),
        partial="long.srt.partial",
        journal="long.resume.jsonl",
    ),
    *(Case(stage="working", arguments=arguments, signals=3) for arguments in LONG.values()),
    Case(
        stage="writing",
        arguments=("transcribe", "film.wav", "-q", "-f", "html,srt", "--embed-audio", "--no-vad"),
        results=("film.srt", "film.srt.partial"),
    ),
    *(
        Case(stage="waiting for input", arguments=arguments, stdin=data)
        for arguments in PIPED.values()
        for data in (b"", WAV_HEADER)
    ),
]
BY_NAME = {case.name: case for case in CASES}


class Stage:
    """A folder with recordings and a manifest, in which commands are run and stopped.

    Parameters
    ----------
    folder : Path
    cache : Path
        Where graphs are, or will be.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache, self.work = folder, cache, folder / "work"
        self.work.mkdir(parents=True)
        AUDIO_FORMATS["wav s16"].write(self.work / "long", samples=np.tile(speech(0, 11), 60))
        # A film of which one second is heard, and 90 MB are embedded.
        AUDIO_FORMATS["wav s16"].write(self.work / "short", samples=speech(7.5, 1.5))
        small = (self.work / "short.wav").read_bytes()
        (self.work / "film.wav").write_bytes(
            small + b"JUNK" + (90 << 20).to_bytes(4, "little") + bytes(90 << 20)
        )
        (self.work / "manifest.jsonl").write_text('{"audio": "long.wav", "text": "ask not"}\n')
        ended = run(["transcribe", "short.wav"], self.work, self.cache)
        if ended.code:
            raise RuntimeError(ended.err)
        began = time.monotonic()
        run(["transcribe", "short.wav"], self.work, self.cache)
        self.start_s = time.monotonic() - began

    def stop(self, case: Case, number: signal.Signals) -> tuple[float, Ended]:
        """Run a command, signal it, and return how long it took to end, and how it did."""
        before = {*self.work.iterdir()}
        with tempfile.TemporaryDirectory(dir=self.folder) as fresh:
            cache = Path(fresh) if case.stage == "loading" else self.cache
            process = subprocess.Popen(
                [*HARKEN, *case.arguments],
                cwd=self.work,
                env=environment(cache),
                stdin=subprocess.DEVNULL if case.stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            try:
                if process.stdin:
                    process.stdin.write(case.stdin or b"")
                    process.stdin.flush()
                self._wait(case, cache, process)
                began = time.monotonic()
                for index in range(case.signals):
                    if index:
                        time.sleep(0.1)
                    process.send_signal(number)
                out, err = _outputs(process, 4 * SLOWEST_S)
                elapsed_s = time.monotonic() - began
            finally:
                process.kill()
                process.wait()
                for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
                    stream.close()
        ended = Ended(code=process.returncode, out=out, err=err)
        self.left = {path.name: path for path in {*self.work.iterdir()} - before}
        return elapsed_s, ended

    def faults(self, case: Case, number: signal.Signals, elapsed_s: float, ended: Ended) -> Iterator[str]:
        """Yield what is wrong with how a command ended."""
        if elapsed_s > SLOWEST_S:
            yield f"took {elapsed_s:.1f} s"
        early = case.stage == "starting"  # the interpreter may not have come to harken
        if ended.code not in ((128 + number, -number) if early or case.signals > 1 else (128 + number,)):
            yield f"exit code {ended.code}, right is {128 + number}: {ended.err[-300:]}"
        if "Traceback" in ended.err and (not early or "/harken/" in ended.err.replace("\\", "/")):
            yield f"a traceback: {ended.err[-300:]}"
        if ended.code > 0 and not early:
            yield from error_faults(ended)
            if case.signals == 1 and len(ended.err.splitlines()) != 1:
                yield f"{len(ended.err.splitlines())} lines: {ended.err[-400:]}"
        hidden = [name for name in self.left if name.startswith(".")]
        if hidden and case.signals == 1 and ended.code > 0:
            yield f"left over: {hidden}"
        if case.results and not {*case.results} & {*self.left}:
            yield f"the results are lost: there are {sorted(self.left)}"
        if case.partial and case.partial not in self.left:
            yield f"no {case.partial}, but {sorted(self.left)}"
        if case.partial and case.partial.removesuffix(".partial") in self.left:
            yield "a transcript that is not whole has the name of one that is"

    def clean(self) -> None:
        for path in self.left.values():
            path.unlink()

    def _wait(self, case: Case, cache: Path, process: subprocess.Popen[bytes]) -> None:
        """Wait until the process is at the stage of the case."""
        begun: dict[str, Callable[[], bool]] = {
            "loading": lambda: any(cache.rglob("*")),
            "writing": lambda: any(path.stat().st_size > 1 << 20 for path in self.work.glob(".harken-*")),
        }
        if case.journal:
            # The head and two windows: the segments of the first have been taken over when the second is decoded.
            begun[case.stage] = lambda: n_lines(self.work / case.journal) > 2
        if case.stage in begun:
            give_up = time.monotonic() + 20 * self.start_s
            while not begun[case.stage]() and process.poll() is None and time.monotonic() < give_up:
                time.sleep(0.005)
        else:
            time.sleep(STARTING_S if case.stage == "starting" else 1.5 * self.start_s + 1)


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _outputs(process: subprocess.Popen[bytes], patience_s: float) -> tuple[str, str]:
    """Return both outputs of a process when it ends; kill it after some time. Its input stays open."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
    assert process.stdout
    assert process.stderr
    out, err = process.stdout.read().decode(errors="replace"), process.stderr.read().decode(errors="replace")
    process.wait()
    return out, err


def main(arguments: list[str] | None = None) -> int:
    """Stop every command at every stage with every signal, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args(arguments)
    wrong = 0
    print(f"{'':<42}" + "".join(f"{name:>9}" for name in NUMBERS) + "   slowest, seconds")
    with tempfile.TemporaryDirectory(prefix="harken-signals-") as folder:
        stage = Stage(Path(folder), Path(folder) / "cache")
        for case in CASES:
            times = []
            for name, number in NUMBERS.items():
                slowest_s = 0.0
                for _ in range(given.rounds):
                    elapsed_s, ended = stage.stop(case, number)
                    for fault in stage.faults(case, number, elapsed_s, ended):
                        wrong += 1
                        print(f"FAULT {case.name}, {name}: {fault!r}", flush=True)
                    stage.clean()
                    slowest_s = max(slowest_s, elapsed_s)
                times.append(slowest_s)
            print(f"{case.name:<42}" + "".join(f"{seconds:>9.2f}" for seconds in times), flush=True)
    print(f"faults: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
