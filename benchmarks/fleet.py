"""``harken batch``: its overhead, how it scales to two workers, and rows lost or doubled when it is killed.

``overhead`` compares with one process that loads the model and transcribes the same files: `overhead_percent` compares
the whole runs, `steady_percent` without their starts (measured with the shortest recording alone), which is what an
archive of many hours costs. ``scaling`` compares two workers of one thread with one; `most` is what two processes
without a batch gain, as processors share memory and caches. ``kills`` begins batches and kills (SIGKILL) their driver
or a worker after random times, with ``--ray`` also a node, runs the same command again until all is done, and compares
the rows with those of a run that nobody disturbed.

    python benchmarks/fleet.py overhead --minutes 20 --save fleet-overhead
    python benchmarks/fleet.py scaling --minutes 15 --save fleet-scaling
    python benchmarks/fleet.py kills --count 20 --save fleet-kills
    python benchmarks/fleet.py kills --count 10 --ray --save fleet-kills-ray
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from program import COMMAND, DEFAULT_SET, Args, Program, Row, add, main, note, ratios, require, spread, stop
from recordings import SPEECH, read_sets

PROCESS, IN_PROCESS, WORKER, RAY = "process", "in-process", "worker", "ray"
LABELS = {
    PROCESS: "one process, no batch",
    IN_PROCESS: "harken batch",
    WORKER: "harken batch --workers 1",
    RAY: "harken batch --ray, one actor",
}
DRIVER, NODE = "driver", "node"
MOST_RUNS = 1000
ONE_PROCESS = """
import json, sys
import harken
recognizer = harken.load(sys.argv[2], threads=int(sys.argv[3]))
for line in open(sys.argv[1], encoding="utf-8"):
    recognizer.transcribe(json.loads(line)["audio_filepath"], word_timestamps=True).result()
"""


def write_manifest(to: Path, args: Args) -> float:
    """Write the manifest of recordings of some sets, until they last long enough; return their seconds."""
    from harken.audio import audio_duration

    total_s = 0.0
    with to.open("w", encoding="utf-8") as file:
        for _, entry in read_sets(args):
            if total_s >= 60 * args.minutes:
                break
            duration_s = audio_duration(entry.path) or 0.0
            file.write(json.dumps({"audio_filepath": str(entry.path), "duration": duration_s}) + "\n")
            total_s += duration_s
    return total_s


def batch_command(manifest: Path, folder: Path, model: str, *options: object) -> list[str]:
    """Return the command line of a batch."""
    return [*COMMAND, "batch", str(manifest), str(folder), "--model", model, "--quiet", *map(str, options)]


def one_process_command(manifest: Path, model: str, threads: int) -> list[str]:
    """Return the command line of the process that a batch is compared with."""
    return [sys.executable, "-c", ONE_PROCESS, str(manifest), model, str(threads)]


def seconds_of(command: Sequence[str], times: int = 1) -> float:
    """Run a command, several times at once, and return the seconds that this took."""
    began_s = perf_counter()
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(times)]
    if any(statuses := [process.wait() for process in processes]):
        stop(f"exit status {max(statuses, key=abs)}: {' '.join(command)}")
    return perf_counter() - began_s


class Nodes:
    """A cluster of Ray on this machine: a head, and nodes with a processor or more each, which may be killed."""

    def __init__(self, n_nodes: int, processors: int) -> None:
        self._n_nodes, self._processors = n_nodes, processors

    def __enter__(self) -> Nodes:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=self._arguments(0))
        self._nodes = [self._add() for _ in range(self._n_nodes)]
        return self

    def __exit__(self, *error: object) -> None:
        self._cluster.shutdown()

    def _arguments(self, processors: int) -> dict[str, object]:
        return {"num_cpus": processors, "include_dashboard": False, "object_store_memory": 100 << 20}

    def _add(self) -> Any:
        return self._cluster.add_node(**self._arguments(self._processors))

    @property
    def address(self) -> str:
        """Address of the cluster."""
        return str(self._cluster.address)

    @property
    def parents(self) -> set[int]:
        """Processes of which actors are children."""
        return {node.all_processes["raylet"][0].process.pid for node in self._nodes}

    def kill_one(self) -> None:
        """Kill a node with all on it, and add another one."""
        self._cluster.remove_node(self._nodes.pop(0), allow_graceful=False)
        self._nodes.append(self._add())


def batch_options(parser: argparse.ArgumentParser, minutes: float, shard_minutes: float) -> None:
    add(parser, "--minutes", minutes, "audio of a run")
    add(parser, "--shard-minutes", shard_minutes, "audio of a shard")
    add(parser, "--repeats", 3, "rounds")


def overhead_options(parser: argparse.ArgumentParser) -> None:
    batch_options(parser, 20.0, 30.0)
    add(parser, "--ways", tuple(LABELS), "ways", choices=LABELS)


def overhead(args: Args) -> Iterator[Row]:
    """Yield a row for each way; the ways take turns."""
    require(*["ray"] * (RAY in args.ways))
    ways = [way for way in LABELS if way in {PROCESS, *args.ways}]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, number = Path(name), count()
        whole, single = folder / "whole.jsonl", folder / "single.jsonl"
        audio_s = write_manifest(whole, args)
        lines = whole.read_text(encoding="utf-8").splitlines()
        single.write_text(min(lines, key=lambda line: json.loads(line)["duration"]) + "\n", encoding="utf-8")
        address = stack.enter_context(Nodes(1, args.threads)).address if RAY in ways else ""
        options: dict[str, list[object]] = {
            IN_PROCESS: [],
            WORKER: ["--workers", 1],
            RAY: ["--ray", address, "--workers", 1],
        }

        def command(way: str, manifest: Path) -> list[str]:
            if way == PROCESS:
                return one_process_command(manifest, args.model, args.threads)
            out = folder / f"out{next(number)}"
            common = ("--threads", args.threads, "--shard-minutes", args.shard_minutes)
            return batch_command(manifest, out, args.model, *common, *options[way])

        turns: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for turn in range(args.repeats):
            for way in ways:
                turns[way].append((seconds_of(command(way, whole)), seconds_of(command(way, single))))
                note(f"round {turn + 1}: {way} {turns[way][-1][0]:.2f} s, start {turns[way][-1][1]:.2f} s")
    for way in ways:
        own, first = ([(whole, whole - start) for whole, start in turns[each]] for each in (way, PROCESS))
        more = [
            [100 * (ratio - 1) for ratio in ratios([one[i] for one in own], [one[i] for one in first])]
            for i in (0, 1)
        ]
        yield {
            "way": LABELS[way],
            "recordings": len(lines),
            "audio_minutes": round(audio_s / 60, 1),
            "seconds": round(median(whole for whole, _ in turns[way]), 2),
            "start_s": round(median(start for _, start in turns[way]), 2),
            **spread("overhead_percent", more[0], 1),
            **spread("steady_percent", more[1], 1),
        }


def scaling_options(parser: argparse.ArgumentParser) -> None:
    batch_options(parser, 15.0, 5.0)
    add(parser, "--workers", 2, "compared with one")


def scaling(args: Args) -> Iterator[Row]:
    """Yield a row for one worker and one for several, each with one thread."""
    turns: dict[int, list[float]] = {1: [], args.workers: []}
    most = []
    with tempfile.TemporaryDirectory() as name:
        manifest = Path(name, "manifest.jsonl")
        audio_s = write_manifest(manifest, args)
        alone = one_process_command(manifest, args.model, 1)
        for turn in range(args.repeats):
            for workers, seconds in turns.items():
                options = ("--threads", 1, "--workers", workers, "--shard-minutes", args.shard_minutes)
                out = Path(name, f"out{turn}-{workers}")
                seconds.append(seconds_of(batch_command(manifest, out, args.model, *options)))
            most.append(args.workers * seconds_of(alone) / seconds_of(alone, args.workers))
            note(f"round {turn + 1}: {[round(own[-1], 2) for own in turns.values()]} s, most {most[-1]:.2f}")
    for workers, seconds in turns.items():
        yield {
            "workers": workers,
            "audio_minutes": round(audio_s / 60, 1),
            "seconds": round(median(seconds), 2),
            **spread("ratio", ratios(turns[1], seconds)),
            "most": round(median(most), 3) if workers > 1 else 1.0,
        }


def kills_options(parser: argparse.ArgumentParser) -> None:
    batch_options(parser, 8.0, 0.3)
    add(parser, "--count", 20, "kills")
    add(parser, "--most-wait", 5.0, "seconds between two kills")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers (0)")
    parser.add_argument("--ray", action="store_true", help="workers on two nodes of a cluster of Ray")


def kills(args: Args) -> Iterator[Row]:
    """Yield one row: the kills, and what became of the rows."""
    require(*["ray"] * args.ray)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_manifest(folder / "manifest.jsonl", args)
        nodes = stack.enter_context(Nodes(2, 1)) if args.ray else None
        disturber = Disturber(args, folder / "manifest.jsonl", nodes)
        disturber.run(folder / "undisturbed", kills=0)
        expected = read_rows(folder / "undisturbed")
        outcomes: Counter[str] = Counter()
        for number in count():
            if disturber.kills.total() >= args.count:
                break
            out = folder / f"out{number}"
            disturber.run(out, kills=args.count - disturber.kills.total())
            outcomes.update(compare_rows(expected, read_rows(out)))
            note(f"folder {number + 1}: {disturber.kills.total()} kills, {dict(outcomes)}")
    victims = {f"{victim}_kills": disturber.kills[victim] for victim in (DRIVER, WORKER, NODE)}
    where = {"where": "Ray, two nodes" if args.ray else "--workers 2"}
    yield where | victims | {"archives": number, "runs": disturber.runs} | dict(outcomes)


class Disturber:
    """Runs batches to their end, and kills what they consist of.

    Attributes
    ----------
    kills : Counter
        Number of kills of each sort.
    runs : int
        Number of times that a batch was begun, or begun again.
    """

    def __init__(self, args: Args, manifest: Path, nodes: Nodes | None) -> None:
        self._args, self._manifest, self._nodes = args, manifest, nodes
        self._random = random.Random(args.seed)
        self.kills: Counter[str] = Counter()
        self.runs = 0

    def run(self, folder: Path, kills: int) -> None:
        """Run a batch until it is complete, with at most so many kills."""
        cluster = ["--ray", self._nodes.address] if self._nodes else []
        options = ["--threads", 1, "--workers", 2, "--shard-minutes", self._args.shard_minutes]
        command = batch_command(self._manifest, folder, self._args.model, *options, *cluster)
        for _ in range(MOST_RUNS):
            self.runs += 1
            driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while driver.poll() is None:
                kills -= self._wait_and_kill(driver) if kills > 0 else 0
                if kills <= 0:
                    driver.wait()
            if driver.returncode == 0:
                return
            if driver.returncode > 0:
                stop(f"exit status {driver.returncode} of harken batch")
        stop(f"not complete after {MOST_RUNS} runs")

    def _wait_and_kill(self, driver: subprocess.Popen[bytes]) -> bool:
        """Kill something after a random time; return False if nothing was left to kill."""
        with suppress(subprocess.TimeoutExpired):
            driver.wait(self._random.uniform(0.2, self._args.most_wait))
            return False
        victim = self._random.choice([DRIVER, WORKER, *[NODE] * bool(self._nodes)])
        if victim == NODE and self._nodes:
            self._nodes.kill_one()
        elif victim == WORKER:
            workers = self._workers(driver)
            if not workers:
                return False
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(workers), signal.SIGKILL)
        else:
            driver.kill()
            driver.wait()
        self.kills[victim] += 1
        return True

    def _workers(self, driver: subprocess.Popen[bytes]) -> list[int]:
        """Return the processes that have worker code in them, in order."""
        parents, mark = (self._nodes.parents, "ray::") if self._nodes else ({driver.pid}, "spawn_main")
        return [pid for pid in children(parents) if mark in command_of(pid)]


def children(parents: set[int]) -> list[int]:
    """Return the processes whose parents are among some, in order."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) in parents:
                found.append(int(path.parent.name))
    return sorted(found)


def command_of(pid: int) -> str:
    """Return the command line of a process; nothing if it has gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def read_rows(folder: Path) -> list[Row]:
    """Return all rows of an output folder."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("shards/*.jsonl"))
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    ]


def compare_rows(expected: list[Row], rows: list[Row]) -> dict[str, int]:
    """Count rows that are lost, doubled or different."""
    counts = Counter(row["id"] for row in rows)
    by_id = {row["id"]: row for row in expected}
    return {
        "rows": len(rows),
        "lost": len(by_id.keys() - counts.keys()),
        "doubled": sum(number > 1 for number in counts.values()),
        "different": sum(row != by_id.get(row["id"]) for row in rows),
    }


if __name__ == "__main__":
    common: dict[str, Any] = {"doc": __doc__, "model": "tiny.en"}
    sets = ("long-form", DEFAULT_SET, "arctic", SPEECH)
    settings = ("shard_minutes", "set", "repeats")
    main(
        Program(
            name="fleet-overhead", rows=overhead, options=overhead_options, sets=sets, settings=settings,
            packages=("ray",), **common,
        ),
        Program(
            name="fleet-scaling", rows=scaling, options=scaling_options, sets=(DEFAULT_SET, SPEECH),
            settings=settings, **common,
        ),
        Program(
            name="fleet-kills", rows=kills, options=kills_options, sets=(DEFAULT_SET, "arctic"),
            settings=("shard_minutes", "seed"), packages=("ray",), **common,
        ),
    )  # fmt: skip
