"""From the start of ``harken transcribe`` to its first line on standard output.

The cache of graphs is a temporary one: empty once (cold), then kept (warm). A second table tells where the time
of a warm start goes, one part after another in a process of its own. The command itself lets some parts run at
the same time, so together they may take longer than it does.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from common import COMMAND, EXAMPLE, limit_threads, machine, note, parser, positive, require, run, stop, table

PARTS = str(Path(__file__).with_name("start_parts.py"))


def main() -> None:
    args = arguments()
    require("harken")
    if not args.recording.is_file():
        stop(f"{args.recording}: no such file")
    print(machine())
    recording, threads = str(args.recording), str(args.threads)
    with tempfile.TemporaryDirectory() as cache:
        environment = {**limit_threads(args.threads), "HARKEN_CACHE": cache}
        command = [*COMMAND, "transcribe", "--threads", threads, recording]
        cold, line = first_line(command, environment)
        warm, shares = [], []
        for number in range(1, args.repeats + 1):
            warm.append(first_line(command, environment)[0])
            shares.append(parts([sys.executable, PARTS, recording, threads], environment))
            note(f"{number} of {args.repeats}: {warm[-1]:.2f} s")
    starts = [
        [f"warm, {args.repeats} times", *(f"{pick(warm):.2f}" for pick in (median, min, max))],
        ["cold, once", *3 * [f"{cold:.2f}"]],
    ]
    print(f"\n### First segment of {args.recording.name}: `{line}`\n")
    print(table(["start", "median s", "least s", "most s"], starts))
    its = {part: f"{median(share[part] for share in shares) * 1e3:.0f}" for part in shares[0]}
    its["all parts"] = f"{median(sum(share.values()) for share in shares) * 1e3:.0f}"
    print(f"\n{table(['part of a warm start', 'median ms'], its.items())}")


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--repeats", type=positive, default=9, metavar="N", help="warm starts (9)")
    its.add_argument(
        "--recording", type=Path, default=EXAMPLE, metavar="FILE", help="what to transcribe (examples/jfk.flac)"
    )
    return its.parse_args()


def first_line(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, str]:
    """Seconds from the start of a process to its first line, and the line."""
    started = perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    ) as process:
        assert process.stdout
        line = process.stdout.readline().strip()
        seconds = perf_counter() - started
        process.stdout.read()
    if process.returncode or not line:
        stop(f"harken transcribe gave no line, exit code {process.returncode}; the reason stands above")
    return seconds, line


def parts(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Seconds of each part of a start, that of the bare interpreter included."""
    started = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
    interpreter_s = perf_counter() - started
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if result.returncode:
        stop("the parts of a start cannot be taken; the reason stands above")
    return {"start Python": interpreter_s, **json.loads(result.stdout)}


if __name__ == "__main__":
    run(main)
