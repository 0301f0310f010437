"""A simulated cluster: how long its workers wait for work, and what the plan and the driver cost.

The manifest, the plan and the driver are those of ``harken batch``; the workers are simulated, with a clock of their
own. The archive holds messages, calls, podcasts and lectures whose lengths are drawn from those of real recordings.
Workers differ in speed, recordings in work, and workers are lost.

Of the time of all workers until the end, `idle_percent` is that without a shard; `least_idle_percent` is what no order
could avoid, because the longest recording takes longer than all work would, evenly divided.

    python benchmarks/fleet cluster --hours 100000 --workers 1000
    python benchmarks/fleet cluster --hours 10000 1000 --workers 1000
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import results
from arguments import note, parser, positive, require
from fleet._archive import recorded_seconds, write_manifest
from process_memory import peak_mb, resident_mb

if TYPE_CHECKING:
    from fleet._simulated import Cluster
    from harken.batch.plan import Recipe

ORDERS = {"by kind": False, "mixed": True}


def main() -> None:
    args = arguments()
    require("harken")
    from fleet._simulated import Cluster

    cluster = Cluster(workers=args.workers, speed=args.speed, hours_to_loss=args.loss, progress_s=args.progress)
    plan = {"shard_minutes": args.shard_minutes, "planned_for": args.planned_for, "seed": args.seed}
    settings = {
        "workers": args.workers, "shard minutes": args.shard_minutes, "hours to the loss of a worker": args.loss,
        "audio seconds a second of a worker": args.speed, "seed": args.seed,
    }  # fmt: skip
    result = results.begin(args.save or "fleet-cluster", settings)
    recorded = recorded_seconds(args.audio)
    for hours in args.hours:
        for order in args.order:
            with ProcessPoolExecutor(1, get_context("fork")) as process:  # so that memory is that of this row
                row = process.submit(draw_and_simulate, recorded, hours, ORDERS[order], cluster, **plan)
                result.add(hours=hours, order=order, **row.result())
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument(
        "--hours", nargs="+", type=positive, default=[100_000, 10_000, 1_000], metavar="H",
        help="hours of audio (100000 10000 1000)",
    )  # fmt: skip
    options.add_argument(
        "--order", nargs="+", choices=ORDERS, default=[*ORDERS], help="order of the manifest (both)"
    )
    options.add_argument("--workers", type=positive, default=1000, metavar="N", help="workers (1000)")
    options.add_argument(
        "--planned-for", type=positive, metavar="N", help="workers that the plan counts on (--workers)"
    )
    options.add_argument("--shard-minutes", type=float, default=30.0, metavar="M", help="audio of a shard (30)")
    options.add_argument("--speed", type=float, default=30.0, metavar="X", help="times real time (30)")
    options.add_argument("--loss", type=float, default=24.0, metavar="H", help="hours a worker lives (24)")
    options.add_argument("--progress", type=float, default=60.0, metavar="S", help="between messages (60)")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="seed (0)")
    return options.parse_args()


def draw_and_simulate(
    recorded: list[float], hours: int, mixed: bool, cluster: Cluster, **plan: Any
) -> dict[str, Any]:
    """Write the manifest of an archive, and simulate its batch."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder, "manifest.jsonl")
        write_manifest(manifest, recorded, hours, mixed=mixed, seed=plan["seed"])
        return simulate(manifest, Path(folder, "out"), cluster, **plan)


def simulate(
    manifest: Path,
    folder: Path,
    cluster: Cluster,
    *,
    shard_minutes: float = 30.0,
    planned_for: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Plan and run a batch on simulated workers.

    Parameters
    ----------
    manifest, folder : Path
        Input and output.
    cluster : Cluster
    shard_minutes : float
    planned_for : int, optional
        Workers that the plan counts on.
    seed : int
    """
    from fleet._simulated import SimulatedWorkers
    from harken.batch.driver import Driver
    from harken.batch.inputs import read_recordings
    from harken.batch.plan import make_plan
    from harken.batch.store import Store
    from harken.batch.worker import Task

    before_mb, began_s = resident_mb() or 0.0, perf_counter()
    recordings = read_recordings(str(manifest), note)
    read_s, began_s = perf_counter() - began_s, perf_counter()
    store, recipe = Store(str(folder)), any_recipe()
    counted_on = planned_for or cluster.workers
    plan = make_plan(recordings, recipe, store, str(manifest), shard_s=60 * shard_minutes, workers=counted_on)
    plan_s = perf_counter() - began_s
    done: Counter[str] = Counter()
    workers = SimulatedWorkers(
        cluster, seed, lambda task: done.update(each.id for each in task.shard.recordings)
    )
    driver = Driver(workers, store, recipe, tries=3, time_limit=20.0, clock=workers.clock)
    began_s = process_time()
    for shard in plan.unfinished:
        driver.add(Task(shard))
    driver.run()
    driver_s = process_time() - began_s - workers.own_s
    all_s = cluster.workers * workers.now_s
    mean_s = workers.busy_s / cluster.workers
    longest_s = max(each.estimate_s for shard in plan.unfinished for each in shard.recordings) / cluster.speed
    return {
        "recordings": len(recordings),
        "shards": len(plan.unfinished),
        "read_s": round(read_s, 1),
        "plan_s": round(plan_s, 1),
        "peak_mb": round(peak_mb() - before_mb),
        "driver_ms_a_shard": round(1000 * driver_s / len(plan.unfinished), 3),
        "cluster_hours": round(workers.now_s / 3600, 2),
        "idle_percent": percent(all_s - workers.busy_s - workers.wasted_s - workers.absent_s, all_s),
        "least_idle_percent": percent(max(longest_s - mean_s, 0), max(longest_s, mean_s)),
        "loading_percent": percent(workers.absent_s, all_s),
        "wasted_percent": percent(workers.wasted_s, all_s),
        "workers_lost": workers.lost,
        "rows_missing": len(recordings) - len(done),
        "rows_doubled": sum(count > 1 for count in done.values()),
    }


def any_recipe() -> Recipe:
    """Return a recipe for workers that load no model."""
    from harken.batch.plan import Recipe
    from harken.formats import Layout
    from harken.transcribe import TranscribeOptions

    return Recipe(name="", load={}, weights="", options=TranscribeOptions(), layout=Layout())


def percent(part: float, whole: float) -> float:
    """Return a share in percent."""
    return round(100 * part / whole, 2)
