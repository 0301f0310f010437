"""The driver of a batch, with workers of a test's own and their clock: nothing is lost, and nobody waits long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batch_files import RECIPE, recordings_of

from fakes.simulated_workers import SimulatedWorkers
from harken.batch.driver import Driver
from harken.batch.plan import Shard, make_plan
from harken.batch.recordings import BatchRecording
from harken.batch.rows import ShardReport
from harken.batch.store import Store
from harken.batch.worker import Progress, Task
from harken.batch.workers import Advanced, Broken, Handle, Published


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


KINDS = {"messages": (0.02, 8, 0.5), "calls": (0.5, 240, 0.7), "talks": (0.48, 2400, 0.4)}
"""Share of the hours, median seconds, and spread of the lengths of the recordings of an archive."""


def archive(hours: float, *, mixed: bool) -> list[BatchRecording]:
    """Return recordings of several kinds that are some hours long together, one kind behind the other or mixed."""
    random = np.random.default_rng(0)
    lengths: list[float] = []
    for share, median_s, spread in KINDS.values():
        drawn = median_s * random.lognormal(0, spread, int(share * hours * 3600 / median_s))
        lengths += drawn.clip(1, 5 * 3600).tolist()
    return recordings_of(*(random.permutation(lengths) if mixed else lengths))


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
    driver = Driver(workers, store, RECIPE, tries=3, time_limit=20.0, clock=workers.clock)
    for shard in plan.unfinished:
        driver.add(Task(shard))
    driver.run()
    assert workers.done == {each.id: 1 for each in recordings}
    if "hours_to_loss" in changes:
        assert workers.lost > 3
    else:
        idle_s = 20 * workers.now_s - workers.busy_s - workers.wasted_s - workers.absent_s
        assert idle_s < 0.02 * 20 * workers.now_s
