"""The engine: one thread that serves the jobs of a loaded model in turn; jobs, and the outboxes of their results.

A step is a window of a file, or the samples of a live stream that have come. Live streams go first, the one whose
samples have waited longest before the others. Files share the rest equally: each has a turn, the time that it has been
served, and begins at the turn that one which had shared from the start would have reached. So a new file waits for one
step of the others, and a row of new files holds up no old one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from logging import getLogger
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from harken.serve.errors import ended
from harken.serve.waiting import Changes

log = getLogger("harken.serve")

T = TypeVar("T")


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
        on_step: Callable[[Job[Any], float], None] = lambda job, seconds: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock, self._on_step = clock, on_step
        self._turns: dict[Job[Any], float] = {}
        self._fair_turn, self._n_sharing = 0.0, 0
        self._changed = Condition()
        self._stopped = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, job: Job[Any]) -> None:
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

    def _run(self) -> None:
        while job := self._next_job():
            start_s = self._clock()
            try:
                job.step()
                self._count(job, self._clock() - start_s)
            except Exception:  # ends that job alone: the others need this thread
                log.exception("a step failed")
                job.abandon("the server did not foresee an error; its log has the details")

    def _count(self, job: Job[Any], seconds: float) -> None:
        """Count the time that a job has been served."""
        job.service_s += seconds
        with self._changed:
            self._turns[job] += seconds
            if not job.live:
                self._fair_turn += seconds / self._n_sharing
        self._on_step(job, seconds)

    def _next_job(self) -> Job[Any] | None:
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

    def _order(self, waiting: tuple[float, Job[Any]]) -> tuple[bool, float, float]:
        """Return the sort key of a job: live before files; live by waiting time, files by turn, then the newest."""
        since, job = waiting
        return (False, since, 0.0) if job.live else (True, self._turns[job], -since)


class Outbox(Generic[T]):
    """Results on their way to a coroutine that sends them: the engine's thread puts them, in order.

    Parameters
    ----------
    capacity : int
        Results to hold before it counts as full. A job whose outbox is full waits, so that a slow reader costs no
        memory.
    on_room : callable
        Called when an outbox that was full has room again.

    Notes
    -----
    It belongs to the event loop that runs while it is made.
    """

    def __init__(self, capacity: int, on_room: Callable[[], None]) -> None:
        self._capacity, self._on_room = capacity, on_room
        self._changes = Changes()
        self._results: deque[T] = deque()
        self._lock = Lock()
        self._closed = False

    @property
    def full(self) -> bool:
        """True if it holds as many results as it may, or more: what is put is never refused."""
        return len(self._results) >= self._capacity

    def put(self, result: T, *, merge: Callable[[T, T], T | None] = lambda last, new: None) -> None:
        """Add a result, from any thread.

        Parameters
        ----------
        result : T
        merge : callable, optional
            Returns one result in place of the last that waits and this one, or None if both are needed.
        """
        with self._lock:
            if self._results and (merged := merge(self._results[-1], result)) is not None:
                self._results[-1] = merged
                return
            self._results.append(result)
        self._changes.tell()

    def close(self) -> None:
        """Note that nothing follows, from any thread."""
        self._closed = True
        self._changes.tell()

    async def __aiter__(self) -> AsyncIterator[T]:
        """Take the results as they come, up to the last one before `close`."""
        while True:
            while self._results:
                with self._lock:
                    was_full = self.full
                    result = self._results.popleft()
                if was_full and not self.full:
                    self._on_room()
                yield result
            if self._closed and not self._results:
                return
            await self._changes.until(lambda: self._results or self._closed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The error that ended a job: its last update."""

    failure: BaseException


class Job(ABC, Generic[T]):
    """Work for an engine, done step by step in its thread.

    It ends once: by itself, by an error, or because nobody waits for it any more.

    Parameters
    ----------
    engine : Engine
    on_end : callable
        Called once, in any thread, when it ends or is cancelled.
    max_updates : int
        Updates that may wait for a slow reader.

    Attributes
    ----------
    live : bool
        True for a live stream.
    updates : Outbox
        The results; the last is `Failed` if an error has ended it.
    done : bool
        True once it wants no more steps; the engine then forgets it.
    service_s : float
        Seconds that it has been served; the engine counts them.
    """

    live: ClassVar[bool]

    def __init__(self, engine: Engine, on_end: Callable[[], None], max_updates: int) -> None:
        self.updates: Outbox[T | Failed] = Outbox(max_updates, engine.wake)
        self.done = self._cancelled = False
        self.service_s = 0.0
        self._engine, self._on_end = engine, on_end

    def step(self) -> None:
        """Do a step."""
        try:
            is_last = self._cancelled or self._advance()
        except BaseException as failure:
            self._fail(failure)
        else:
            if is_last:
                self._end()

    def cancel(self) -> None:
        """End it before its next step, from any thread: nobody waits for it any more."""
        self._cancelled = True
        self._engine.wake()

    def abandon(self, reason: str) -> None:
        """Report that it will not be finished."""
        if not self.done:
            self._fail(ended(reason))

    @abstractmethod
    def waiting_since(self) -> float | None:
        """Return since when it has had something to do, by the engine's clock; None if it has nothing to do now."""

    @abstractmethod
    def _advance(self) -> bool:
        """Do a step; return True if it was the last."""

    @abstractmethod
    def _let_go(self) -> None:
        """Give back what it holds."""

    def _fail(self, failure: BaseException) -> None:
        self.updates.put(Failed(failure=failure))
        self._end()

    def _end(self) -> None:
        self.done = True
        try:
            self._let_go()
        finally:
            self._on_end()  # first, so that who sees the end finds its room free
            self.updates.close()
