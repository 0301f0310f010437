"""Time of a transcription beside processes that keep cores busy, for harken and for other engines.

A busy process is an endless loop on a core of its own. With each number of them all engines take turns, in processes
of their own and with their defaults otherwise; that round is repeated. A slowdown is the time of a turn over that of
the same engine in the same round without busy processes. The first engine is the one that the slowdowns of the others
are compared with.

    python benchmarks/busy.py --engines 'faster-whisper batched' harken 'harken batched' --save busy
    python benchmarks/busy.py --set long-form --limit 1 --busy 0 1 --repeats 1
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import results
from arguments import limit_threads, note, parser, positive, require, run
from compare import Turns, add_engine_options, engine, module_of
from engines import Worker
from recordings import read_set

ENGINES = ("faster-whisper batched", "harken", "harken batched")
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
"""An endless loop that ends with the process that began it."""


def main() -> None:
    args = arguments()
    require(*dict.fromkeys(module_of(name) for name in args.engines))
    limit_threads(args.threads)
    settings = {
        "model": args.model,
        "threads": args.threads,
        "beam size": args.beam,
        "precision": args.precision,
        "set": args.set,
    }
    result = results.begin(args.save or "busy", settings, ("faster-whisper", "ctranslate2", "openvino-genai"))
    entries = [
        entry
        for name in args.set
        for entry in read_set(args.audio, name, args.limit, model=args.model, language="en", speech=False)
    ]
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(engine(name, args))) for name in args.engines]
        for worker in workers:
            worker.transcribe(entries[0].path)
        turns = {(worker.engine.label, busy): Turns(worker) for busy in args.busy for worker in workers}
        for repeat in range(args.repeats):
            for (label, busy), own in turns.items():
                with busy_processes(busy):
                    own.take(entries, args.beam)
                note(f"round {repeat + 1}, {busy} busy: {label} {own.seconds[-1]:.2f} s")
    for row in rows({case: own.seconds for case, own in turns.items()}, args.engines, args.busy):
        result.add(**row)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en", sets=("long-form",))
    add_engine_options(options, ENGINES)
    options.add_argument("--beam", type=positive, default=1, metavar="N", help="beam width; 1 is greedy (1)")
    options.add_argument(
        "--busy", type=int, nargs="+", default=[0, 1, 2], metavar="N",
        help="numbers of busy processes, each on a core of its own; 0 is one of them (0 1 2)",
    )  # fmt: skip
    options.add_argument("--repeats", type=positive, default=3, metavar="N", help="rounds (3)")
    args = options.parse_args()
    n_cores = len(usable_cores())
    if not {0} <= {*args.busy} <= {*range(n_cores + 1)}:
        options.error(f"--busy {' '.join(map(str, args.busy))}: allowed are 0 and numbers up to {n_cores}")
    args.busy = sorted({*args.busy})
    return args


def usable_cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


@contextmanager
def busy_processes(n: int) -> Iterator[None]:
    """Keep so many cores busy; where the system allows it, each process stays on its core."""
    processes = []
    try:
        for core in usable_cores()[:n]:
            processes.append(subprocess.Popen([sys.executable, "-c", BUSY]))
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(processes[-1].pid, {core})
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rows(
    seconds: dict[tuple[str, int], list[float]], engines: Sequence[str], busy: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each engine and number of busy processes, from the seconds of every round."""
    slowdowns = {
        (label, n): [own / quiet for own, quiet in zip(taken, seconds[label, 0], strict=True)]
        for (label, n), taken in seconds.items()
    }
    for n in busy:
        for label in engines:
            own = slowdowns[label, n]
            ratios = [one / other for one, other in zip(own, slowdowns[engines[0], n], strict=True)]
            yield {
                "busy": n,
                "engine": label,
                "seconds": round(median(seconds[label, n]), 3),
                "slowdown": round(median(own), 3),
                "slowdown_low": round(min(own), 3),
                "slowdown_high": round(max(own), 3),
                "ratio": round(median(ratios), 3),
                "ratio_low": round(min(ratios), 3),
                "ratio_high": round(max(ratios), 3),
            }


if __name__ == "__main__":
    run(main)
