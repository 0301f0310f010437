"""The engine: one thread that serves the jobs of a loaded model in turn, one step at a time.

A step is a window of a file, or the samples of a live stream that have come. Live streams go first, the one whose
samples have waited longest before the others. Files share the rest equally: each has a turn, the time that it has been
served, and begins at the turn that one which had shared from the start would have reached. So a new file waits for one
step of the others, and a row of new files holds up no old one.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger
from threading import Condition, Thread
from time import monotonic
from typing import Protocol

log = getLogger("harken.serve")


class Job(Protocol):
    """Work for the engine, done step by step in its thread.

    Attributes
    ----------
    live : bool
        True for a live stream.
    done : bool
        True once it wants no more steps; the engine then forgets it.
    service_s : float
        Seconds that it has been served; the engine counts them.
    """

    live: bool
    done: bool
    service_s: float

    def waiting_since(self) -> float | None:
        """Return since when it has had something to do, by the engine's clock; None if it has nothing to do now."""
        ...

    def step(self) -> None:
        """Do a step; an error is the job's own to report."""
        ...

    def abandon(self, reason: str) -> None:
        """Report that it will not be finished."""
        ...


class Engine:
    """A thread that serves jobs.

    Parameters
    ----------
    name : str
        Name of the thread.
    on_step : callable
        Called with each job and the seconds that its step took.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self,
        name: str,
        on_step: Callable[[Job, float], None] = lambda job, seconds: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock, self._on_step = clock, on_step
        self._turns: dict[Job, float] = {}
        self._fair_turn, self._n_sharing = 0.0, 0
        self._changed = Condition()
        self._stopped = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, job: Job) -> None:
        """Take a job.

        Raises
        ------
        RuntimeError
            If the engine has been stopped.
        """
        with self._changed:
            if self._stopped:
                raise RuntimeError("the engine has been stopped")
            self._turns[job] = self._fair_turn
            self._changed.notify()

    def wake(self) -> None:
        """Look at the jobs again: one of them has something to do."""
        with self._changed:
            self._changed.notify()

    def stop(self, reason: str) -> None:
        """Abandon all jobs after the present step, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()
        for job in self._turns:
            job.abandon(reason)
        self._turns.clear()

    @property
    def idle(self) -> bool:
        """True while there is no job."""
        return not self._turns

    def _run(self) -> None:
        while job := self._next_job():
            start_s = self._clock()
            try:
                job.step()
                self._count(job, self._clock() - start_s)
            except Exception:  # ends that job alone: the others need this thread
                log.exception("a step failed")
                job.abandon("the server did not foresee an error; its log has the details")

    def _count(self, job: Job, seconds: float) -> None:
        """Count the time that a job has been served."""
        job.service_s += seconds
        with self._changed:
            self._turns[job] += seconds
            if not job.live:
                self._fair_turn += seconds / self._n_sharing
        self._on_step(job, seconds)

    def _next_job(self) -> Job | None:
        """Wait for a job that has something to do; return None once the engine has been stopped."""
        with self._changed:
            while not self._stopped:
                for job in [job for job in self._turns if job.done]:
                    del self._turns[job]
                waiting = [(since, job) for job in self._turns if (since := job.waiting_since()) is not None]
                for job in self._turns.keys() - {job for _, job in waiting}:  # what they do not want, they lose
                    self._turns[job] = max(self._turns[job], self._fair_turn)
                self._n_sharing = sum(not job.live for _, job in waiting)
                if waiting:
                    return min(waiting, key=self._order)[1]
                self._changed.wait()
            return None

    def _order(self, waiting: tuple[float, Job]) -> tuple[bool, float, float]:
        """Return the sort key of a job: live before files; live by waiting time, files by turn, then the newest."""
        since, job = waiting
        return (False, since, 0.0) if job.live else (True, self._turns[job], -since)
