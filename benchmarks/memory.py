"""Peak memory of ``harken transcribe`` for a short recording against a long one.

Both are made of the recordings of one set, repeated with silence between them, as 16 kHz wav in a temporary directory
(115 MB an hour). Each is transcribed in a process of its own, whose peak resident memory the operating system reports.

    python benchmarks/memory.py
    python benchmarks/memory.py --hours 0.5
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import results
from arguments import COMMAND, DEFAULT_SET, limit_threads, note, parser, require, run, stop
from process_memory import maxrss_mb
from recordings import read_set, write_joined

SHORT_S = 180.0


def main() -> None:
    args = arguments()
    require("harken")
    if not hasattr(os, "wait4"):
        stop("this platform does not report the peak memory of a process; Linux and macOS do")
    result = results.begin(
        args.save or "memory", {"model": "tiny.en", "threads": args.threads, "set": args.set}
    )
    recordings = [entry.path for entry in read_set(args.audio, args.set, language="en")]
    with tempfile.TemporaryDirectory() as scratch:
        for seconds in (SHORT_S, args.hours * 3600):
            path = Path(scratch) / f"{seconds:.0f}.wav"
            note(f"writing {seconds / 60:.0f} minutes")
            write_joined(cycle(recordings), path, seconds)
            note(f"transcribing {seconds / 60:.0f} minutes")
            result.add(recording=f"{seconds / 60:.0f} minutes", **transcribe(path, seconds, args.threads))
            path.unlink()
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--hours", type=float, default=3.0, metavar="H", help="length of the long one (3)")
    options.add_argument("--set", default=DEFAULT_SET, metavar="NAME", help=f"set to repeat ({DEFAULT_SET})")
    args = options.parse_args()
    if not SHORT_S / 3600 < args.hours <= 24:
        stop(f"--hours {args.hours}: allowed is above {SHORT_S / 3600}, up to 24")
    return args


def transcribe(path: Path, audio_s: float, threads: int) -> dict[str, Any]:
    """Transcribe a file in a process; return the process's peak memory, its lines of text and its time."""
    with path.with_suffix(".txt").open("w+b") as screen:
        started = perf_counter()
        command = [*COMMAND, "transcribe", "--threads", str(threads), str(path)]
        process = subprocess.Popen(command, stdout=screen, env=limit_threads(threads))
        # A process reports at least the memory of its parent at the fork; this program stays far smaller.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            stop(f"harken transcribe ended with exit code {process.returncode}; the reason stands above")
        screen.seek(0)
        return {
            "peak_mb": round(maxrss_mb(usage.ru_maxrss), 1),
            "lines": len(screen.readlines()),
            "seconds": round(seconds, 2),
            "times_real_time": round(audio_s / seconds, 2),
        }


if __name__ == "__main__":
    run(main)
