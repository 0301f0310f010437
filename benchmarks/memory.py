"""Peak memory of ``harken transcribe`` for a short recording against a long one.

Both are made of the recordings of one set, repeated with 0.3 s of silence between them, as 16 kHz wav in a
temporary directory (115 MB an hour). Each is transcribed in a process of its own, whose peak resident memory
the operating system tells.

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

from common import (
    COMMAND,
    DEFAULT_SET,
    limit_threads,
    machine,
    note,
    parser,
    read_set,
    require,
    rss_mb,
    run,
    stop,
    table,
    write_joined,
)

SHORT_S = 180.0
COLUMNS = ("recording", "peak MB", "lines", "seconds", "times real time")


def main() -> None:
    args = arguments()
    require("harken")
    if not hasattr(os, "wait4"):
        stop("this platform does not tell the peak memory of a process; Linux and macOS do")
    recordings = [recording.path for recording in read_set(args.audio, args.set)]
    print(machine())
    peaks, rows = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for seconds in (SHORT_S, args.hours * 3600):
            path = Path(scratch) / f"{seconds:.0f}.wav"
            note(f"writing {seconds / 60:.0f} minutes")
            write_joined(cycle(recordings), path, seconds)
            note(f"transcribing {seconds / 60:.0f} minutes")
            peak_mb, lines, taken_s = transcribe(path, args.threads)
            path.unlink()
            peaks.append(peak_mb)
            numbers = (f"{peak_mb:.1f}", str(lines), f"{taken_s:.1f}", f"{seconds / taken_s:.1f}")
            rows.append([f"{seconds / 60:.0f} minutes", *numbers])
    print(f"\n### {args.set} repeated: {peaks[1] - peaks[0]:+.1f} MB for the longer\n\n{table(COLUMNS, rows)}")


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--hours", type=float, default=3.0, metavar="H", help="length of the long one (3)")
    its.add_argument("--set", default=DEFAULT_SET, metavar="NAME", help=f"what to repeat ({DEFAULT_SET})")
    args = its.parse_args()
    if not SHORT_S / 3600 < args.hours <= 24:
        stop(f"--hours {args.hours}: allowed is above {SHORT_S / 3600}, up to 24")
    return args


def transcribe(path: Path, threads: int) -> tuple[float, int, float]:
    """Peak memory in MB, lines of the transcript, and seconds that the command took."""
    with path.with_suffix(".txt").open("w+b") as screen:
        started = perf_counter()
        command = [*COMMAND, "transcribe", "--threads", str(threads), str(path)]
        process = subprocess.Popen(command, stdout=screen, env=limit_threads(threads))
        # As its own peak a process also reports that of its parent at the fork; this script stays far smaller.
        _, status, usage = os.wait4(process.pid, 0)
        taken_s = perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            stop(f"harken transcribe ended with exit code {process.returncode}; the reason stands above")
        screen.seek(0)
        return rss_mb(usage.ru_maxrss), len(screen.readlines()), taken_s


if __name__ == "__main__":
    run(main)
