"""Rows that are lost or doubled when drivers, workers and nodes are killed.

A batch is begun, and after a random time its driver, one of its workers or both are killed (SIGKILL), and with
``--ray`` also a node, which comes back. Where the driver is dead, the same command is run again, until all is done;
then another folder is begun, until there were enough kills. The rows are compared with those of a run that nobody
disturbed.

    python benchmarks/fleet kills --count 20
    python benchmarks/fleet kills --count 10 --ray
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import results
from arguments import limit_threads, note, parser, positive, require, stop
from fleet._runs import SETS, batch_command, node_arguments, write_manifest

DRIVER, WORKER, NODE = "driver", "worker", "node"
MOST_RUNS = 1000


def main() -> None:
    args = arguments()
    require("harken", *["ray"] * args.ray)
    limit_threads(1)
    settings = {
        "model": args.model, "workers": 2, "threads of a worker": 1, "shard minutes": args.shard_minutes,
        "seed": args.seed,
    }  # fmt: skip
    result = results.begin(args.save or "fleet-kills", settings, ["ray"] * args.ray)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        manifest = folder / "manifest.jsonl"
        write_manifest(manifest, args.audio, args.set, args.minutes, args.model)
        nodes = stack.enter_context(Nodes()) if args.ray else None
        disturber = Disturber(args, manifest, nodes)
        undisturbed = folder / "undisturbed"
        disturber.run(undisturbed, kills=0)
        expected = read_rows(undisturbed)
        outcomes: Counter[str] = Counter()
        for number in count():
            if disturber.kills.total() >= args.count:
                break
            out = folder / f"out{number}"
            disturber.run(out, kills=args.count - disturber.kills.total())
            outcomes.update(compare(expected, read_rows(out)))
            note(f"folder {number + 1}: {disturber.kills.total()} kills, {dict(outcomes)}")
        result.add(
            where="Ray, two nodes" if args.ray else "--workers 2",
            **{f"{victim}_kills": disturber.kills[victim] for victim in (DRIVER, WORKER, NODE)},
            archives=number,
            runs=disturber.runs,
            rows=outcomes["rows"],
            lost=outcomes["lost"],
            doubled=outcomes["doubled"],
            different=outcomes["different"],
        )
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--set", nargs="+", default=[SETS[1], SETS[2]], metavar="NAME", help="sets")
    options.add_argument("--minutes", type=positive, default=8, metavar="N", help="audio of an archive (8)")
    options.add_argument("--shard-minutes", type=float, default=0.3, metavar="M", help="audio of a shard (0.3)")
    options.add_argument("--count", type=positive, default=20, metavar="N", help="kills (20)")
    options.add_argument("--most-wait", type=float, default=5.0, metavar="S", help="between two kills (5)")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="seed (0)")
    options.add_argument("--ray", action="store_true", help="workers on two nodes of a cluster of Ray")
    return options.parse_args()


class Nodes:
    """A cluster of Ray on this machine: a head, and two nodes with a processor each that may be killed."""

    def __enter__(self) -> Nodes:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=node_arguments(0))
        self._nodes = [self._cluster.add_node(**node_arguments(1)) for _ in range(2)]
        return self

    def __exit__(self, *error: object) -> None:
        self._cluster.shutdown()

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
        node = self._nodes.pop(0)
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._cluster.add_node(**node_arguments(1)))


class Disturber:
    """Runs batches to their end, and kills what they consist of.

    Parameters
    ----------
    args : argparse.Namespace
    manifest : Path
    nodes : Nodes or None

    Attributes
    ----------
    kills : Counter
        Number of kills of each sort.
    runs : int
        Number of times that a batch was begun, or begun again.
    """

    def __init__(self, args: argparse.Namespace, manifest: Path, nodes: Nodes | None) -> None:
        self._args, self._manifest, self._nodes = args, manifest, nodes
        self._random = random.Random(args.seed)
        self._victims = [DRIVER, WORKER, *[NODE] * bool(nodes)]
        self.kills: Counter[str] = Counter()
        self.runs = 0

    def run(self, folder: Path, kills: int) -> None:
        """Run a batch until it is complete, with at most so many kills."""
        for _ in range(MOST_RUNS):
            self.runs += 1
            driver = subprocess.Popen(
                self._command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while driver.poll() is None:
                kills -= self._wait_and_kill(driver) if kills > 0 else 0
                if kills <= 0:
                    driver.wait()
            if driver.returncode == 0:
                return
            if driver.returncode > 0:
                stop(f"exit status {driver.returncode} of harken batch")
        stop(f"not complete after {MOST_RUNS} runs")

    def _command(self, folder: Path) -> list[str]:
        cluster = ["--ray", self._nodes.address] if self._nodes else []
        options = ["--threads", 1, "--workers", 2, "--shard-minutes", self._args.shard_minutes]
        return batch_command(self._manifest, folder, self._args.model, *options, *cluster)

    def _wait_and_kill(self, driver: subprocess.Popen[bytes]) -> bool:
        """Kill something after a random time; return False if nothing was left to kill."""
        with suppress(subprocess.TimeoutExpired):
            driver.wait(self._random.uniform(0.2, self._args.most_wait))
            return False
        victim = self._random.choice(self._victims)
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
        if self._nodes:
            return [pid for pid in children(self._nodes.parents) if "ray::_Actor" in command_of(pid)]
        return [pid for pid in children({driver.pid}) if "spawn_main" in command_of(pid)]


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


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return all rows of an output folder."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("shards/*.jsonl"))
        for line in path.read_text(encoding="utf-8").split("\n")
        if line
    ]


def compare(expected: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, int]:
    """Count rows that are lost, doubled or different."""
    counts = Counter(row["id"] for row in rows)
    by_id = {row["id"]: row for row in expected}
    return {
        "rows": len(rows),
        "lost": len(by_id.keys() - counts.keys()),
        "doubled": sum(number > 1 for number in counts.values()),
        "different": sum(row != by_id.get(row["id"]) for row in rows),
    }
