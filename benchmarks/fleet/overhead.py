"""Overhead of ``harken batch`` over one process that loads the model and transcribes the same files.

Each run is a process of its own, timed from outside. The ways take turns with all recordings, and with the shortest one
alone, which takes what starting takes. `overhead_percent` compares the whole runs; `steady_percent` compares them
without their starts, which is what an archive of many hours costs. `processor_percent` is that of their
processor time, which other work on the machine disturbs less; actors of Ray are no children of the command, so theirs
is not known. All are medians of the rounds' own ratios.

    python benchmarks/fleet overhead --minutes 20
    python benchmarks/fleet overhead --ways process ray
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import results
from arguments import limit_threads, note, parser, positive, require
from fleet._runs import SETS, Cost, batch_command, cost_of, one_process_command, ray_cluster, write_manifest

PROCESS, IN_PROCESS, WORKER, RAY = "process", "in-process", "worker", "ray"
LABELS = {
    PROCESS: "one process, no batch",
    IN_PROCESS: "harken batch",
    WORKER: "harken batch --workers 1",
    RAY: "harken batch --ray, one actor",
}


def main() -> None:
    args = arguments()
    require("harken", *["ray"] * (RAY in args.ways))
    limit_threads(args.threads)
    settings = {"model": args.model, "threads": args.threads, "sets": args.set, "rounds": args.repeat}
    result = results.begin(args.save or "fleet-overhead", settings, ["ray"] * (RAY in args.ways))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        whole, single = folder / "whole.jsonl", folder / "single.jsonl"
        audio_s = write_manifest(whole, args.audio, args.set, args.minutes, args.model)
        lines = whole.read_text(encoding="utf-8").splitlines()
        single.write_text(min(lines, key=lambda line: json.loads(line)["duration"]) + "\n", encoding="utf-8")
        commands = way_commands(args, folder, stack)
        turns: dict[str, list[tuple[Cost, Cost]]] = {way: [] for way in args.ways}
        for turn in range(args.repeat):
            for way in args.ways:
                turns[way].append((cost_of(commands[way](whole)), cost_of(commands[way](single))))
                own, start = turns[way][-1]
                note(f"round {turn + 1}: {way} {own.seconds:.2f} s, start {start.seconds:.2f} s")
    for way in args.ways:
        result.add(
            way=LABELS[way],
            recordings=len(lines),
            audio_minutes=round(audio_s / 60, 1),
            **row(turns[way], turns[PROCESS], counts_processors=way != RAY),
        )
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--set", nargs="+", default=[*SETS], metavar="NAME", help=f"({' '.join(SETS)})")
    options.add_argument("--minutes", type=positive, default=20, metavar="N", help="audio of a run (20)")
    options.add_argument("--repeat", type=positive, default=3, metavar="N", help="rounds (3)")
    options.add_argument("--ways", nargs="+", choices=LABELS, default=[*LABELS], help="(all)")
    args = options.parse_args()
    args.ways = [way for way in LABELS if way in {PROCESS, *args.ways}]
    return args


def way_commands(
    args: argparse.Namespace, folder: Path, stack: ExitStack
) -> dict[str, Callable[[Path], list[str]]]:
    """Return the command line of each way for a manifest; a cluster runs as long as the stack."""
    number = count()
    address = stack.enter_context(ray_cluster(args.threads)) if RAY in args.ways else ""

    def batch(*options: object) -> Callable[[Path], list[str]]:
        return lambda manifest: batch_command(
            manifest, folder / f"out{next(number)}", args.model, "--threads", args.threads, *options
        )

    return {
        PROCESS: lambda manifest: one_process_command(manifest, args.model, args.threads),
        IN_PROCESS: batch(),
        WORKER: batch("--workers", 1),
        RAY: batch("--ray", address, "--workers", 1),
    }


def row(
    own: list[tuple[Cost, Cost]], first: list[tuple[Cost, Cost]], *, counts_processors: bool
) -> dict[str, Any]:
    """Return the times of a way, and how they compare with those of the first one."""
    pairs = [*zip(own, first, strict=True)]
    whole = [more(one[0].seconds, other[0].seconds) for one, other in pairs]
    steady = [
        more(one[0].seconds - one[1].seconds, other[0].seconds - other[1].seconds) for one, other in pairs
    ]
    processor = [
        more(one[0].processor_s - one[1].processor_s, other[0].processor_s - other[1].processor_s)
        for one, other in pairs
    ]
    return {
        "seconds": round(median(cost.seconds for cost, _ in own), 2),
        "start_s": round(median(start.seconds for _, start in own), 2),
        **spread("overhead_percent", whole),
        **spread("steady_percent", steady),
        "processor_percent": round(median(processor), 1) if counts_processors else None,
    }


def more(one: float, other: float) -> float:
    """Return how much more a time is than another one, in percent."""
    return 100 * (one / other - 1)


def spread(name: str, values: list[float]) -> dict[str, float]:
    """Return the median of values, and their range."""
    return {
        name: round(median(values), 1),
        f"{name}_low": round(min(values), 1),
        f"{name}_high": round(max(values), 1),
    }
