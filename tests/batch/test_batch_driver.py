"""The driver of a batch, with workers of a test's own and their clock: nothing is lost, and nobody waits long."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from batch_files import RECIPE, recordings_of

from harken.batch.driver import Driver
from harken.batch.plan import Shard, make_plan
from harken.batch.recordings import BatchRecording
from harken.batch.rows import ShardReport
from harken.batch.store import Store
from harken.batch.worker import Progress, Task
from harken.batch.workers import Advanced, Broken, Event, Handle, Published


class OneWorker:
    """A worker that hangs with its first task, and still says how far it is; it does the next one."""

    n_alive = 1

    def __init__(self) -> None:
        self.now_s, self.given_up_s = 0.0, 0.0
        self._task: Task | None = None

    @property
    def n_free(self) -> int:
        return int(self._task is None)

    def start(self, task: Task) -> None:
        self._task = task

    def wait(self, timeout_s: float, handle: Handle) -> None:
        self.now_s += 60.0
        assert self.now_s < 86_400.0
        task = self._task
        if task and self.given_up_s:
            self._task = None
            handle(Published(task, ShardReport(rows=1)))
        elif task:
            handle(Advanced(task, Progress(30.0, 0)))

    def give_up(self, task: Task) -> None:
        self.given_up_s, self._task = self.now_s, None
        self.handle(Broken(task, "it hung"))

    def close(self) -> None:
        """Do nothing."""


def test_a_worker_that_says_the_same_again_and_again_is_ended(tmp_path: Path) -> None:
    workers = OneWorker()
    driver = Driver(
        workers, Store(str(tmp_path)), RECIPE, tries=3, time_limit=20.0, clock=lambda: workers.now_s
    )
    workers.handle = driver._handle  # type: ignore[attr-defined]
    driver.add(Task(Shard((*recordings_of(60.0),), RECIPE.digest)))
    driver.run()
    assert 600.0 < workers.given_up_s < 3600.0
    assert [report.rows for report in driver.reports.values()] == [1]


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

    `used_s` is the time of all workers in which they had a task, or were not there yet; `done` counts how often each
    recording was done, by its id.
    """

    def __init__(self, n_workers: int, *, hours_to_loss: float = 24.0, progress_s: float = math.inf) -> None:
        self._hours_to_loss, self._progress_s = hours_to_loss, progress_s
        self._random = random.Random(0)
        self._order = count()
        self._events: list[tuple[float, int, str, _Worker, Task | None]] = []
        self._free: list[_Worker] = []
        self.n_alive = self.lost = 0
        self.now_s = self.used_s = 0.0
        self.done: Counter[str] = Counter()
        for _ in range(n_workers):
            self._begin_worker()

    @property
    def n_free(self) -> int:
        """Number of workers that are there and have no task."""
        return len(self._free)

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
        self.used_s += taken_s
        if kind == "lost":
            self.lost += 1
            self.n_alive -= 1
            self._begin_worker()
            return Broken(task, "its worker was lost")
        self._free.append(worker)
        self.done.update(each.id for each in task.shard.recordings)
        report = ShardReport(rows=len(task.shard.recordings), audio_s=task.shard.seconds, work_s=taken_s)
        return Published(task, report)

    def _begin_worker(self) -> None:
        start_s = self._random.uniform(*START_S)
        self.used_s += start_s
        self._push(start_s, "ready", _Worker(SPEED * self._random.lognormvariate(0, SPEED_SPREAD)))

    def _push(self, in_s: float, kind: str, worker: _Worker) -> None:
        heapq.heappush(self._events, (self.now_s + in_s, next(self._order), kind, worker, worker.task))


KINDS = {"messages": (0.02, 8, 0.5), "calls": (0.5, 240, 0.7), "talks": (0.48, 2400, 0.4)}
"""Share of the hours, median seconds, and spread of the lengths of the recordings of an archive."""


def archive(hours: float, *, mixed: bool) -> list[BatchRecording]:
    """Return recordings of several kinds that are some hours long together, one kind behind the other or mixed."""
    rng = np.random.default_rng(0)
    lengths: list[float] = []
    for share, median_s, spread in KINDS.values():
        drawn = median_s * rng.lognormal(0, spread, int(share * hours * 3600 / median_s))
        lengths += drawn.clip(1, 5 * 3600).tolist()
    return recordings_of(*(rng.permutation(lengths) if mixed else lengths))


@pytest.mark.parametrize(
    ("mixed", "changes"),
    [(False, {}), (True, {}), (True, {"progress_s": 5.0}), (True, {"hours_to_loss": 0.5})],
    ids=["short ones first", "mixed", "with progress", "workers are lost"],
)
def test_every_recording_is_done_once_and_no_worker_waits_long(
    tmp_path: Path, mixed: bool, changes: dict[str, float]
) -> None:
    recordings = archive(300, mixed=mixed)
    store, workers = Store(str(tmp_path)), SimulatedWorkers(20, **changes)
    plan = make_plan(recordings, RECIPE, store, "/archive", shard_s=1800.0, workers=20)
    driver = Driver(workers, store, RECIPE, tries=3, time_limit=20.0, clock=lambda: workers.now_s)
    for shard in plan.unfinished:
        driver.add(Task(shard))
    driver.run()
    assert workers.done == {each.id: 1 for each in recordings}
    if "hours_to_loss" in changes:
        assert workers.lost > 3
    else:
        assert workers.used_s > 0.98 * 20 * workers.now_s
