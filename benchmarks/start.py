"""Time from the start of ``harken transcribe`` to its first line, and of the steps of a start.

The first start finds an empty cache of packed weights; the others find it filled. The steps run one after another in a
process of their own; the command lets some run at the same time.

    python benchmarks/start.py --repeats 9 --save start
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter

from program import COMMAND, ROOT, Args, Program, Row, add, limit_threads, main, note, spread, stop

EXAMPLE = ROOT / "examples" / "jfk.flac"
STEPS = """
import json, sys
from time import perf_counter
times = [perf_counter()]
import harken
times.append(perf_counter())
recognizer = harken.load(sys.argv[1], threads=int(sys.argv[2]))
times.append(perf_counter())
next(iter(recognizer.transcribe(sys.argv[3])))
times.append(perf_counter())
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""


def options(parser: argparse.ArgumentParser) -> None:
    add(parser, "--repeats", 5, "starts")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each step of a start."""
    arguments = (args.model, str(args.threads), str(EXAMPLE))
    command = [*COMMAND, "transcribe", "--model", args.model, "--threads", str(args.threads), str(EXAMPLE)]
    with tempfile.TemporaryDirectory() as cache:
        environment = limit_threads(args.threads) | {"HARKEN_CACHE": cache}
        seconds = {"to the first line, nothing cached": [first_line_s(command, environment)]}
        for number in range(args.repeats):
            warm = first_line_s(command, environment)
            seconds.setdefault("to the first line", []).append(warm)
            seconds.setdefault("a process that does nothing", []).append(process_s("pass", environment))
            output = subprocess.check_output(
                [sys.executable, "-c", STEPS, *arguments], text=True, env=environment
            )
            names = ("import harken", "load the model", "first segment")
            for name, taken in zip(names, json.loads(output), strict=True):
                seconds.setdefault(name, []).append(taken)
            note(f"{number + 1} of {args.repeats}: {warm:.2f} s")
    for step, taken in seconds.items():
        yield {"step": step} | spread("ms", [1000 * each for each in taken], 1)


def first_line_s(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the seconds from the start of a process to its first line."""
    started = perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    ) as process:
        assert process.stdout
        line = process.stdout.readline()
        seconds = perf_counter() - started
        process.stdout.read()
    if process.returncode or not line:
        stop(f"harken transcribe gave no line, exit code {process.returncode}; the reason stands above")
    return seconds


def process_s(code: str, environment: Mapping[str, str]) -> float:
    """Return the seconds that a process takes for some code."""
    started = perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return perf_counter() - started


if __name__ == "__main__":
    main(Program(doc=__doc__, name="start", rows=rows, options=options, model="tiny.en"))
