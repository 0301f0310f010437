"""Diarizers, each in a process of its own that is given recordings over a pipe.

Run as a program, this file is such a process; the interpreter may be that of another environment, in which the engine
is installed and harken is not: ``_engines.py NAME THREADS``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from types import TracebackType
from typing import Any

Turns = list[tuple[float, float, str]]
Diarize = Callable[[str], dict[str, Turns]]
"""From the path of a recording to the turns, by a label where an engine has several results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to one recording: turns by label, and the time that they took."""

    seconds: float
    cpu_s: float
    peak_mb: float
    turns: dict[str, Turns]


class Worker:
    """An engine in a process of its own; a context manager that ends the process."""

    def __init__(self, name: str, threads: int, python: Path) -> None:
        variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        self._process = subprocess.Popen(
            [str(python), __file__, name, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=dict(os.environ) | dict.fromkeys(variables, str(threads)),
        )
        self.load_s = self._reply().seconds

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closes its standard input, at which it ends

    def diarize(self, path: Path) -> Reply:
        """Have one recording diarized; the time is taken over there."""
        assert self._process.stdin
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> Reply:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of an engine ended with exit code {self._process.wait()}")
        return Reply(**json.loads(line))


def load_harken(threads: int) -> Diarize:
    """Load harken with its defaults."""
    import harken

    diarizer = harken.load_diarizer(threads=threads)
    return lambda path: {
        "harken": [(turn.start_s, turn.end_s, turn.speaker) for turn in diarizer.diarize(path).turns]
    }


def load_senko(threads: int) -> Diarize:
    """Load senko. Its `merged_segments` bridge pauses of one speaker, `raw_segments` keep them."""
    os.cpu_count = lambda: threads  # type: ignore[assignment]  # from which it takes its number of threads
    import senko

    diarizer = senko.Diarizer(device="cpu", warmup=True, quiet=True)

    def diarize(path: str) -> dict[str, Turns]:
        found: dict[str, Any] = diarizer.diarize(path) or {"merged_segments": [], "raw_segments": []}
        return {
            label: [(part["start"], part["end"], str(part["speaker"])) for part in found[key]]
            for label, key in (("senko", "merged_segments"), ("senko-raw", "raw_segments"))
        }

    return diarize


LOADERS = {"harken": load_harken, "senko": load_senko}


def serve(name: str, threads: int) -> None:
    """Load an engine, then answer each path on standard input with one line of JSON."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an engine prints goes to standard error
    start_s, start_cpu_s = perf_counter(), process_time()
    diarize: Diarize = LOADERS[name](threads)
    turns: dict[str, Turns] = {}
    while True:
        answer = {"seconds": perf_counter() - start_s, "cpu_s": process_time() - start_cpu_s}
        print(json.dumps(answer | {"peak_mb": peak_mb(), "turns": turns}), file=pipe, flush=True)
        if not (line := sys.stdin.readline()):
            return
        start_s, start_cpu_s = perf_counter(), process_time()
        turns = diarize(line.rstrip("\n"))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from process_memory import peak_mb

    serve(sys.argv[1], int(sys.argv[2]))
