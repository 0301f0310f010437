"""Runs of ``harken batch``, and of one process that does nothing but transcribe the same files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from arguments import COMMAND, note, stop
from recordings import read_set

ONE_PROCESS = Path(__file__).with_name("_one_process.py")
SETS = ("long-form", "librispeech-test-other", "arctic", "librispeech-train-clean")


def write_manifest(to: Path, audio: Path, sets: Sequence[str], minutes: float, model: str) -> float:
    """Write the manifest of recordings of some sets, until they last long enough; return their seconds."""
    from harken.audio import audio_duration

    total_s = 0.0
    with to.open("w", encoding="utf-8") as file:
        for entry in (entry for name in sets for entry in read_set(audio, name, model=model)):
            if total_s >= 60 * minutes:
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
    return [sys.executable, str(ONE_PROCESS), str(manifest), model, str(threads)]


@dataclass(frozen=True)
class Cost:
    """What a run took.

    Parameters
    ----------
    seconds : float
    processor_s : float
        Processor time of all its processes.
    """

    seconds: float
    processor_s: float


def cost_of(command: Sequence[str], times: int = 1) -> Cost:
    """Run a command, several times at once, and return what that took."""
    import resource  # which Windows has not

    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(times)]
    statuses = [process.wait() for process in processes]
    seconds, after = perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    if any(statuses):
        stop(f"exit status {max(statuses, key=abs)}: {' '.join(command)}")
    return Cost(seconds, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


@contextmanager
def ray_cluster(processors: int) -> Iterator[str]:
    """Run a cluster of one node while the block runs; yield its address."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=node_arguments(processors))
    note(f"Ray at {cluster.address}")
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def node_arguments(processors: int) -> dict[str, object]:
    """Return the arguments of a small node."""
    return {"num_cpus": processors, "include_dashboard": False, "object_store_memory": 100 << 20}
