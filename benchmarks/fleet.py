"""``harken batch`` compared with one process that loads the model and transcribes the same files.

`overhead_percent` compares the whole runs, `steady_percent` without their starts (measured with the shortest recording
alone), which is what an archive of many hours costs.

    python benchmarks/fleet.py --minutes 20 --save fleet-overhead
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

from program import DEFAULT_SET, Args, Parser, Row, add, harken_command, main, note, ratios, require, spread
from recordings import SPEECH, read_sets

PROCESS = "process"
LABELS = {
    PROCESS: "one process, no batch",
    "in-process": "harken batch",
    "worker": "harken batch --workers 1",
    "ray": "harken batch --ray, one actor",
}
ONE_PROCESS = """
import json, sys
import harken
recognizer = harken.load(sys.argv[2], threads=int(sys.argv[3]))
for line in open(sys.argv[1], encoding="utf-8"):
    recognizer.transcribe(json.loads(line)["audio_filepath"], word_timestamps=True).result()
"""


def options(parser: Parser) -> None:
    add(parser, "--minutes", 20.0, "audio of a run")
    add(parser, "--shard-minutes", 30.0, "audio of a shard")
    add(parser, "--repeats", 3, "rounds")
    add(parser, "--ways", tuple(LABELS), "ways", choices=LABELS)


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each way; the ways take turns."""
    ways = [way for way in LABELS if way in {PROCESS, *args.ways}]
    with (
        tempfile.TemporaryDirectory() as name,
        ray_node(args.threads) if "ray" in ways else nullcontext("") as address,
    ):
        folder, lines = Path(name), list(manifest_lines(args))
        whole, single = folder / "whole.jsonl", folder / "single.jsonl"
        for path, own in ((whole, lines), (single, [min(lines, key=lambda line: line["duration"])])):
            path.write_text("".join(json.dumps(line) + "\n" for line in own), encoding="utf-8")
        folders = (folder / f"out{number}" for number in count())
        options = {"worker": ("--workers", 1), "ray": ("--ray", address, "--workers", 1)}

        def seconds_of(way: str, manifest: Path) -> float:
            if way == PROCESS:
                command = [sys.executable, "-c", ONE_PROCESS, str(manifest), args.model, str(args.threads)]
            else:
                common = "--shard-minutes", args.shard_minutes, "--quiet"
                batch = manifest, next(folders), *common, *options.get(way, ())
                command = harken_command(args, "batch", *batch)
            began_s = perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            return perf_counter() - began_s

        runs: dict[str, list[float]] = {way: [] for way in ways}
        starts: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(args.repeats):
            for way in ways:
                runs[way].append(seconds_of(way, whole))
                starts[way].append(seconds_of(way, single))
                note(f"round {turn + 1}: {way} {runs[way][-1]:.2f} s, start {starts[way][-1]:.2f} s")
    steady = {way: [run - start for run, start in zip(runs[way], starts[way], strict=True)] for way in ways}
    for way in ways:
        yield {
            "way": LABELS[way],
            "recordings": len(lines),
            "audio_minutes": round(sum(line["duration"] for line in lines) / 60, 1),
            "seconds": round(median(runs[way]), 2),
            "start_s": round(median(starts[way]), 2),
            **spread("overhead_percent", above(runs[way], runs[PROCESS]), 1),
            **spread("steady_percent", above(steady[way], steady[PROCESS]), 1),
        }


def above(own: Sequence[float], first: Sequence[float]) -> list[float]:
    """Return by how many percent the time of each turn is above another one."""
    return [100 * (ratio - 1) for ratio in ratios(own, first)]


def manifest_lines(args: Args) -> Iterator[Row]:
    """Yield lines of a manifest of some sets, until their recordings last long enough."""
    from harken.audio import audio_duration

    total_s = 0.0
    for _, entry in read_sets(args):
        if total_s >= 60 * args.minutes:
            return
        duration_s = audio_duration(entry.path) or 0.0
        yield {"audio_filepath": str(entry.path), "duration": duration_s}
        total_s += duration_s


@contextmanager
def ray_node(processors: int) -> Iterator[str]:
    """Run a cluster of Ray on this machine, a head and a node; yield its address."""
    require("ray")
    from ray.cluster_utils import Cluster

    common = {"include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    try:
        cluster.add_node(num_cpus=processors, **common)
        yield str(cluster.address)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(
        rows, options, model="tiny.en", sets=("long-form", DEFAULT_SET, "arctic", SPEECH),
        packages=("ray",), settings=("shard_minutes", "set", "repeats"),
    )  # fmt: skip
