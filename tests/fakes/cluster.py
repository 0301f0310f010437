"""A simulated cluster for the plan and the driver of a batch: its own clock, and workers that transcribe nothing."""

from __future__ import annotations

import heapq
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from harken.batch.driver import Driver
from harken.batch.inputs import read_recordings
from harken.batch.plan import Recipe, make_plan
from harken.batch.rows import ShardReport
from harken.batch.store import Store
from harken.batch.worker import Progress, Task
from harken.batch.workers import Advanced, Broken, Handle, Published
from harken.formats import Layout
from harken.transcribe import TranscribeOptions

END_OF_TASK, LOSS, READY, PROGRESS = range(4)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster.

    Parameters
    ----------
    workers : int
    speed : float
        Median seconds of audio a second.
    speed_spread : float
        Standard deviation of the logarithm of a worker's speed.
    work_spread : float
        The same of the work for a second of audio of a recording.
    recording_s, shard_s : float
        Seconds that each recording, and each shard, takes beside its audio.
    start_s : tuple of float
        Least and greatest time until a worker has loaded the model.
    hours_to_loss : float
        Mean hours until a worker is lost; another one takes its place.
    progress_s : float
        Time between two messages of progress.
    """

    workers: int
    speed: float = 30.0
    speed_spread: float = 0.15
    work_spread: float = 0.25
    recording_s: float = 0.05
    shard_s: float = 0.5
    start_s: tuple[float, float] = (10.0, 60.0)
    hours_to_loss: float = 24.0
    progress_s: float = math.inf


@dataclass
class _SimulatedWorker:
    speed: float
    task: Task | None = None
    began_s: float = 0.0


class SimulatedWorkers:
    """Workers of a cluster.

    Parameters
    ----------
    cluster : Cluster
    seed : int
    on_published : callable
        Called with every task that is done.

    Attributes
    ----------
    now_s : float
        The time of the cluster.
    busy_s, wasted_s, absent_s : float
        Time of workers in shards that were done; in shards in which they were lost; and before they were there.
    lost : int
        Number of workers that were lost.
    """

    def __init__(
        self, cluster: Cluster, seed: int = 0, on_published: Callable[[Task], None] = lambda task: None
    ) -> None:
        self._cluster, self._on_published = cluster, on_published
        self._random = random.Random(seed)
        self._order = count()
        self._events: list[tuple[float, int, int, _SimulatedWorker, Task | None]] = []
        self._free: list[_SimulatedWorker] = []
        self.n_alive = self.lost = 0
        self.now_s = self.busy_s = self.wasted_s = self.absent_s = 0.0
        for _ in range(cluster.workers):
            self._begin_worker()

    @property
    def n_free(self) -> int:
        """Number of workers that are there and have no task."""
        return len(self._free)

    def clock(self) -> float:
        """Return the time of the cluster."""
        return self.now_s

    def start(self, task: Task) -> None:
        """Give a task to a free worker."""
        worker = self._free.pop()
        worker.task, worker.began_s = task, self.now_s
        work_s, loss_s = self._work_s(task, worker.speed), self._random.expovariate(1 / 3600)
        loss_s *= self._cluster.hours_to_loss
        self._push(min(work_s, loss_s), END_OF_TASK if work_s <= loss_s else LOSS, worker)
        if self._cluster.progress_s < work_s:
            self._push(self._cluster.progress_s, PROGRESS, worker)

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Move the clock to the next event, at most as far as the timeout."""
        if not self._events or self._events[0][0] > self.now_s + timeout_s:
            self.now_s += timeout_s
            return
        self.now_s, _, kind, worker, task = heapq.heappop(self._events)
        event = self._take(kind, worker, task)
        if event:
            handle(event)

    def give_up(self, task: Task) -> None:
        """Do nothing: no worker hangs."""

    def close(self) -> None:
        """Do nothing."""

    def _take(
        self, kind: int, worker: _SimulatedWorker, task: Task | None
    ) -> Published | Broken | Advanced | None:
        if kind == READY:
            self._free.append(worker)
            self.n_alive += 1
            return None
        if worker.task is not task or not task:  # progress of a task that is over
            return None
        taken_s = self.now_s - worker.began_s
        if kind == PROGRESS:
            self._push(self._cluster.progress_s, PROGRESS, worker)
            return Advanced(task, Progress(min(taken_s * worker.speed, task.shard.seconds), 0))
        worker.task = None
        if kind == LOSS:
            self.lost += 1
            self.n_alive -= 1
            self.wasted_s += taken_s
            self._begin_worker()
            return Broken(task, "its worker was lost")
        self.busy_s += taken_s
        self._free.append(worker)
        self._on_published(task)
        report = ShardReport(rows=len(task.shard.recordings), audio_s=task.shard.seconds, work_s=taken_s)
        return Published(task, report)

    def _begin_worker(self) -> None:
        start_s = self._random.uniform(*self._cluster.start_s)
        self.absent_s += start_s
        speed = self._cluster.speed * self._random.lognormvariate(0, self._cluster.speed_spread)
        self._push(start_s, READY, _SimulatedWorker(speed))

    def _push(self, in_s: float, kind: int, worker: _SimulatedWorker) -> None:
        heapq.heappush(self._events, (self.now_s + in_s, next(self._order), kind, worker, worker.task))

    def _work_s(self, task: Task, speed: float) -> float:
        draw, spread = self._random.lognormvariate, self._cluster.work_spread
        recordings = task.shard.recordings
        audio_s = sum(recording.estimate_s * draw(0, spread) for recording in recordings)
        return audio_s / speed + self._cluster.recording_s * len(recordings) + self._cluster.shard_s


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of an archive.

    Parameters
    ----------
    idle_percent : float
        Time of all workers without a shard, although they were there.
    least_idle_percent : float
        What no order could avoid, as the longest recording takes longer than all work would, evenly divided.
    workers_lost, rows_missing, rows_doubled : int
    """

    idle_percent: float
    least_idle_percent: float
    workers_lost: int
    rows_missing: int
    rows_doubled: int


def simulate(lengths_s: Sequence[float], folder: Path, cluster: Cluster) -> Outcome:
    """Plan an archive of recordings of these lengths, and run it on simulated workers."""
    manifest = folder / "archive.jsonl"
    lines = [{"audio_filepath": f"{i}.mp3", "duration": round(s, 2)} for i, s in enumerate(lengths_s)]
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    recordings = read_recordings(str(manifest), lambda message: None)
    store = Store(str(folder / "out"))
    recipe = Recipe(name="", load={}, weights="", options=TranscribeOptions(), layout=Layout())
    plan = make_plan(recordings, recipe, store, str(manifest), shard_s=1800, workers=cluster.workers)
    done: Counter[str] = Counter()
    workers = SimulatedWorkers(cluster, 0, lambda task: done.update(each.id for each in task.shard.recordings))
    driver = Driver(workers, store, recipe, tries=3, time_limit=20.0, clock=workers.clock)
    for shard in plan.unfinished:
        driver.add(Task(shard))
    driver.run()
    all_s = cluster.workers * workers.now_s
    mean_s, longest_s = workers.busy_s / cluster.workers, max(lengths_s) / cluster.speed
    return Outcome(
        idle_percent=100 * (all_s - workers.busy_s - workers.wasted_s - workers.absent_s) / all_s,
        least_idle_percent=100 * max(longest_s - mean_s, 0) / max(longest_s, mean_s),
        workers_lost=workers.lost,
        rows_missing=len(lines) - len(done),
        rows_doubled=sum(count > 1 for count in done.values()),
    )
