"""The driver of a batch, with simulated workers and their clock: nothing is lost, and nobody waits long."""

import heapq
import math
import random
from collections import Counter
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from batch_files import RECIPE, recordings_of

from harken.batch.driver import Driver
from harken.batch.plan import make_plan
from harken.batch.rows import ShardReport
from harken.batch.store import Store
from harken.batch.worker import Progress
from harken.batch.workers import Broken, Workers

N_WORKERS = 20
SPEED, SPEED_SPREAD, WORK_SPREAD = 30.0, 0.15, 0.25
"""Median seconds of audio a second, and how much workers and recordings differ (standard deviations of logarithms)."""
SHARD_S, START_S = 0.5, (10.0, 60.0)
"""Seconds that each shard takes beside its audio, and until a worker has loaded the model."""


class SimulatedWorkers(Workers):
    """Workers of a cluster, of which each is lost after so many hours in the mean; another one takes its place.

    The first `n_hanging` shards hang, and their workers say the same again and again; `hung_s` is how long each did.
    `used_s` is the time of all workers in which they had a shard, or were not there yet; `done` counts how often each
    recording was done, by its id.
    """

    n_alive = 0

    def __init__(self, *, hours_to_loss=24.0, progress_s=math.inf, n_hanging=0):
        self._hours_to_loss, self._progress_s, self._n_hanging = hours_to_loss, progress_s, n_hanging
        self._random, self._order = random.Random(0), count()
        self._events, self._free = [], []
        self.now_s, self.used_s, self.hung_s, self.lost = 0.0, 0.0, [], 0
        self.done = Counter()
        for _ in range(N_WORKERS):
            self._begin_worker()

    @property
    def n_free(self):
        return len(self._free)

    def start(self, shard):
        worker = self._free.pop()
        worker.shard, worker.began_s = shard, self.now_s
        if self._n_hanging:
            self._n_hanging -= 1
            self._push(60.0, "stuck", worker)
            return
        spread = (self._random.lognormvariate(0, WORK_SPREAD) for _ in shard.recordings)
        audio_s = sum(each.estimate_s * work for each, work in zip(shard.recordings, spread, strict=True))
        work_s = audio_s / worker.speed + SHARD_S
        loss_s = self._random.expovariate(1 / 3600) * self._hours_to_loss
        self._push(min(work_s, loss_s), "done" if work_s <= loss_s else "lost", worker)
        if self._progress_s < work_s:
            self._push(self._progress_s, "progress", worker)

    def wait(self, timeout_s, handle):
        """Move the clock to the next event, at most as far as the timeout."""
        if not self._events or self._events[0][0] > self.now_s + timeout_s:
            self.now_s += timeout_s
            return
        self.now_s, _, kind, worker, shard = heapq.heappop(self._events)
        if message := self._take(kind, worker, shard):
            handle(shard, message)

    def give_up(self, shard):
        (worker,) = (worker for *_, worker, its_shard in self._events if its_shard is shard)
        self.hung_s.append(self.now_s - worker.began_s)
        self._push(0.0, "lost", worker)

    def _take(self, kind, worker, shard):
        if kind == "ready":
            self._free.append(worker)
            self.n_alive += 1
            return None
        if worker.shard is not shard or not shard:  # progress of a shard that is over
            return None
        taken_s = self.now_s - worker.began_s
        if kind == "stuck":
            self._push(60.0, kind, worker)
            return Progress(30.0, 0)
        if kind == "progress":
            self._push(self._progress_s, kind, worker)
            return Progress(min(taken_s * worker.speed, shard.seconds), 0)
        worker.shard = None
        self.used_s += taken_s
        if kind == "lost":
            self.lost += 1
            self.n_alive -= 1
            self._begin_worker()
            return Broken("its worker was lost")
        self._free.append(worker)
        self.done.update(each.id for each in shard.recordings)
        return ShardReport(rows=len(shard.recordings), audio_s=shard.seconds)

    def _begin_worker(self):
        start_s = self._random.uniform(*START_S)
        self.used_s += start_s
        speed = SPEED * self._random.lognormvariate(0, SPEED_SPREAD)
        self._push(start_s, "ready", SimpleNamespace(speed=speed, shard=None))

    def _push(self, in_s, kind, worker):
        heapq.heappush(self._events, (self.now_s + in_s, next(self._order), kind, worker, worker.shard))


KINDS = {"messages": (0.02, 8, 0.5), "calls": (0.5, 240, 0.7), "talks": (0.48, 2400, 0.4)}
"""Share of the hours, median seconds, and spread of the lengths of the recordings of an archive."""
HOURS = 300


@pytest.mark.parametrize(
    ("mixed", "changes"),
    [
        *((False, {}), (True, {}), (True, {"progress_s": 5.0})),
        *((True, {"hours_to_loss": 0.5}), (True, {"n_hanging": 3})),
    ],
    ids=["short ones first", "mixed", "with progress", "workers are lost", "workers hang"],
)
def test_every_recording_is_done_once_and_no_worker_waits_long(tmp_path, monkeypatch, mixed, changes):
    rng, lengths = np.random.default_rng(0), []
    for share, median_s, spread in KINDS.values():
        drawn = median_s * rng.lognormal(0, spread, int(share * HOURS * 3600 / median_s))
        lengths += drawn.clip(1, 5 * 3600).tolist()
    recordings = recordings_of(*(rng.permutation(lengths) if mixed else lengths))
    store, workers = Store(str(tmp_path)), SimulatedWorkers(**changes)
    plan = make_plan(recordings, RECIPE, store, "/archive", shard_s=1800.0, workers=N_WORKERS)
    monkeypatch.setattr("harken.batch.driver.monotonic", lambda: workers.now_s)
    heard = {"on_state": lambda state: None, "note": lambda text: None, "before": ShardReport(rows=0)}
    Driver(plan.unfinished, workers, store, RECIPE, tries=3, time_limit=20.0, **heard).run()
    assert workers.done == {each.id: 1 for each in recordings}
    assert len(workers.hung_s) == changes.get("n_hanging", 0)
    assert all(600.0 < hung_s < 3600.0 for hung_s in workers.hung_s)
    if "hours_to_loss" in changes:
        assert workers.lost > 3
    else:
        assert workers.used_s > 0.98 * N_WORKERS * workers.now_s
