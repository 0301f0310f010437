"""The driver of a batch, with workers of a test's own and a clock that it sets."""

from __future__ import annotations

from pathlib import Path

from harken.batch.driver import Driver
from harken.batch.plan import Recipe, Shard
from harken.batch.recordings import BatchRecording
from harken.batch.rows import ShardReport
from harken.batch.store import Store
from harken.batch.worker import Progress, Task
from harken.batch.workers import Advanced, Broken, Handle, Published
from harken.formats import Layout
from harken.transcribe import TranscribeOptions

RECIPE = Recipe(name="tiny.en", load={}, weights="w", options=TranscribeOptions(), layout=Layout())


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
    recording = BatchRecording(location="/a.wav", name="a.wav", keys={}, duration_s=60.0)
    driver.add(Task(Shard((recording,), RECIPE.digest)))
    driver.run()
    assert 600.0 < workers.given_up_s < 3600.0
    assert [report.rows for report in driver.reports.values()] == [1]
