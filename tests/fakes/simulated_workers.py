"""Workers of a simulated cluster: they take time by a clock of their own, and transcribe nothing."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass
from itertools import count

from harken.batch.rows import ShardReport
from harken.batch.worker import Progress, Task
from harken.batch.workers import Advanced, Broken, Event, Handle, Published

SPEED, SPEED_SPREAD, WORK_SPREAD = 30.0, 0.15, 0.25
"""Median seconds of audio a second, and how much workers and recordings differ (standard deviations of logarithms)."""
SHARD_S, START_S = 0.5, (10.0, 60.0)
"""Seconds that each shard takes beside its audio, and until a worker has loaded the model."""


@dataclass
class _Worker:
    speed: float
    task: Task | None = None
    began_s: float = 0.0


class SimulatedWorkers:
    """Workers of a cluster, of which each is lost after so many hours in the mean; another one takes its place.

    Workers are busy in shards that were done, waste the time in shards in which they were lost, and are absent before
    they are there. `done` counts how often each recording was done, by its id.
    """

    def __init__(self, n_workers: int, *, hours_to_loss: float = 24.0, progress_s: float = math.inf) -> None:
        self._hours_to_loss, self._progress_s = hours_to_loss, progress_s
        self._random = random.Random(0)
        self._order = count()
        self._events: list[tuple[float, int, str, _Worker, Task | None]] = []
        self._free: list[_Worker] = []
        self.n_alive = self.lost = 0
        self.now_s = self.busy_s = self.wasted_s = self.absent_s = 0.0
        self.done: Counter[str] = Counter()
        for _ in range(n_workers):
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
        spread = (self._random.lognormvariate(0, WORK_SPREAD) for _ in task.shard.recordings)
        audio_s = sum(each.estimate_s * work for each, work in zip(task.shard.recordings, spread, strict=True))
        work_s = audio_s / worker.speed + SHARD_S
        loss_s = self._random.expovariate(1 / 3600) * self._hours_to_loss
        self._push(min(work_s, loss_s), "done" if work_s <= loss_s else "lost", worker)
        if self._progress_s < work_s:
            self._push(self._progress_s, "progress", worker)

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Move the clock to the next event, at most as far as the timeout."""
        if not self._events or self._events[0][0] > self.now_s + timeout_s:
            self.now_s += timeout_s
            return
        self.now_s, _, kind, worker, task = heapq.heappop(self._events)
        if event := self._take(kind, worker, task):
            handle(event)

    def give_up(self, task: Task) -> None:
        """Do nothing: no worker hangs."""

    def close(self) -> None:
        """Do nothing."""

    def _take(self, kind: str, worker: _Worker, task: Task | None) -> Event | None:
        if kind == "ready":
            self._free.append(worker)
            self.n_alive += 1
            return None
        if worker.task is not task or not task:  # progress of a task that is over
            return None
        taken_s = self.now_s - worker.began_s
        if kind == "progress":
            self._push(self._progress_s, "progress", worker)
            return Advanced(task, Progress(min(taken_s * worker.speed, task.shard.seconds), 0))
        worker.task = None
        if kind == "lost":
            self.lost += 1
            self.n_alive -= 1
            self.wasted_s += taken_s
            self._begin_worker()
            return Broken(task, "its worker was lost")
        self.busy_s += taken_s
        self._free.append(worker)
        self.done.update(each.id for each in task.shard.recordings)
        report = ShardReport(rows=len(task.shard.recordings), audio_s=task.shard.seconds, work_s=taken_s)
        return Published(task, report)

    def _begin_worker(self) -> None:
        start_s = self._random.uniform(*START_S)
        self.absent_s += start_s
        self._push(start_s, "ready", _Worker(SPEED * self._random.lognormvariate(0, SPEED_SPREAD)))

    def _push(self, in_s: float, kind: str, worker: _Worker) -> None:
        heapq.heappush(self._events, (self.now_s + in_s, next(self._order), kind, worker, worker.task))
