"""Time of a batch by one worker and by two, each with one thread.

What two workers can gain is less than twofold where processors share memory and its caches, or are two threads of one
core. `most` says how much: two processes that transcribe everything, at the same time and without a batch, against one.

    python benchmarks/fleet scaling --minutes 15
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

import results
from arguments import limit_threads, note, parser, positive, require
from fleet._runs import SETS, batch_command, cost_of, one_process_command, write_manifest


def main() -> None:
    args = arguments()
    require("harken")
    limit_threads(1)
    settings = {
        "model": args.model,
        "threads of a worker": 1,
        "shard minutes": args.shard_minutes,
        "sets": args.set,
        "rounds": args.repeat,
    }
    result = results.begin(args.save or "fleet-scaling", settings)
    one_s: list[float] = []
    many_s: list[float] = []
    most = []
    with tempfile.TemporaryDirectory() as name:
        manifest = Path(name, "manifest.jsonl")
        audio_s = write_manifest(manifest, args.audio, args.set, args.minutes, args.model)
        alone = one_process_command(manifest, args.model, 1)
        for turn in range(args.repeat):
            for workers, seconds in ((1, one_s), (args.workers, many_s)):
                folder = Path(name, f"out{turn}-{workers}")
                options = ("--threads", 1, "--workers", workers, "--shard-minutes", args.shard_minutes)
                seconds.append(cost_of(batch_command(manifest, folder, args.model, *options)).seconds)
            most.append(args.workers * cost_of(alone).seconds / cost_of(alone, args.workers).seconds)
            note(f"round {turn + 1}: {one_s[-1]:.2f} s, {many_s[-1]:.2f} s; most {most[-1]:.2f}")
    ratios = [one / many for one, many in zip(one_s, many_s, strict=True)]
    for workers, seconds, gain in ((1, one_s, [1.0]), (args.workers, many_s, ratios)):
        result.add(
            workers=workers,
            audio_minutes=round(audio_s / 60, 1),
            seconds=round(median(seconds), 2),
            ratio=round(median(gain), 3),
            ratio_low=round(min(gain), 3),
            ratio_high=round(max(gain), 3),
            most=round(median(most), 3) if workers > 1 else 1.0,
        )
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument(
        "--set",
        nargs="+",
        default=[SETS[1], SETS[3]],
        metavar="NAME",
        help="sets; short recordings divide evenly",
    )
    options.add_argument("--minutes", type=positive, default=15, metavar="N", help="audio of a run (15)")
    options.add_argument(
        "--shard-minutes", type=float, default=5.0, metavar="M", help="small, as the archive is (5)"
    )
    options.add_argument("--workers", type=positive, default=2, metavar="N", help="compared with one (2)")
    options.add_argument("--repeat", type=positive, default=3, metavar="N", help="rounds (3)")
    return options.parse_args()
