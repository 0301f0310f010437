"""A worker in this process: nothing to start, and nothing that outlives a crash."""

from __future__ import annotations

from harken.batch.worker import Progress, Task, Worker, WorkerSettings
from harken.batch.workers.protocol import Advanced, Handle, Published, broken_by


class InProcessWorkers:
    """One worker, which works while the driver waits for it.

    Parameters
    ----------
    settings : WorkerSettings
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._worker: Worker | None = None
        self._task: Task | None = None

    @property
    def n_free(self) -> int:
        """1, unless it has a task."""
        return int(self._task is None)

    @property
    def n_alive(self) -> int:
        """1 once the model is loaded."""
        return int(self._worker is not None)

    def start(self, task: Task) -> None:
        """Take a task, which is done when the driver waits."""
        self._task = task

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Do the task.

        Raises
        ------
        HarkenError
            If the model cannot be loaded.
        """
        task, self._task = self._task, None
        if task is None:
            return
        self._worker = self._worker or Worker(self._settings)

        failures: list[Exception] = []

        def report(progress: Progress) -> None:
            try:
                handle(Advanced(task, progress))
            except Exception as error:  # the driver's, for which no recording is to blame
                failures.append(error)
                raise

        try:
            counts = self._worker.transcribe(task, report)
        except Exception as error:
            if failures:
                raise failures[0] from None
            handle(broken_by(task, error))
        else:
            handle(Published(task, counts))

    def give_up(self, task: Task) -> None:
        """Do nothing: the worker minds the time itself."""

    def close(self) -> None:
        """Do nothing."""
