"""Peak memory of ``harken transcribe`` and ``harken listen`` for a short recording against a long one.

Both are made of the recordings of one set, repeated with silence between them, as 16 kHz wav in a temporary directory
(115 MB an hour). Each is transcribed in a process of its own, whose peak resident memory the operating system reports.

    python benchmarks/memory.py --hours 3 --save memory
    python benchmarks/memory.py --hours 10 --command listen
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from time import perf_counter

from program import DEFAULT_SET, Args, Parser, Row, add, harken_command, main, note, stop
from recordings import read_sets, write_joined

SHORT_S = 180.0


def options(parser: Parser) -> None:
    add(parser, "--hours", 3.0, "length of the long one")
    add(parser, "--command", "transcribe", "of harken", choices=("transcribe", "listen"))


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each length."""
    if not hasattr(os, "wait4"):
        stop("this platform does not report the peak memory of a process; Linux and macOS do")
    if not 0 < args.hours <= 24:
        stop(f"--hours {args.hours}: allowed is above 0, up to 24")
    recordings = [entry.path for _, entry in read_sets(args, language="en")]
    with tempfile.TemporaryDirectory() as scratch:
        for seconds in sorted({min(SHORT_S, args.hours * 3600), args.hours * 3600}):
            path = Path(scratch) / "speech.wav"
            note(f"{seconds / 60:.0f} minutes")
            write_joined(cycle(recordings), path, seconds)
            yield {"recording": f"{seconds / 60:.0f} minutes"} | transcribe(path, seconds, args)


def transcribe(path: Path, audio_s: float, args: Args) -> Row:
    """Transcribe a file in a process; return the process's peak memory, its lines of text and its time."""
    with path.with_suffix(".txt").open("w+b") as screen:
        started = perf_counter()
        process = subprocess.Popen(harken_command(args, args.command, path), stdout=screen)
        # A process reports at least the memory of its parent at the fork; this program stays far smaller.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            stop(f"harken {args.command} ended with exit code {process.returncode}; the reason stands above")
        screen.seek(0)
        return {
            "peak_mb": round(
                usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6, 1
            ),  # macOS: bytes
            "lines": len(screen.readlines()),
            "seconds": round(seconds, 2),
            "times_real_time": round(audio_s / seconds, 2),
        }


if __name__ == "__main__":
    main(rows, options, model="tiny.en", sets=(DEFAULT_SET,), settings=("command",))
