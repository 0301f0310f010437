"""Workers of a batch: what the driver asks of them and what they tell it; one in this process, and pools of others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from harken.batch.plan import Shard
from harken.batch.rows import ShardReport
from harken.batch.worker import Progress, Worker, WorkerSettings
from harken.errors import HarkenError, OutputError, WorkerError

LOST = "WorkerLost"
"""Type of the error of a recording with which workers were lost."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A shard was not finished, for a reason that is not an error of a recording as far as can be told."""

    reason: str  # in one line
    kind: str = LOST  # type of the error in the row of a recording that is given up
    unwritten: bool = False  # its rows could not be written, which is not cured by smaller shards


def broken_by(error: Exception) -> Broken:
    """Return that a shard was not finished because of an exception."""
    kind = type(error).__name__
    if isinstance(error, OutputError):
        return Broken(str(error), kind, unwritten=True)
    return Broken(" ".join(f"{kind}: {error}".split()), kind)


Message = Progress | ShardReport | Broken
"""What is heard of a shard: that it goes on, that its rows are in the output folder, or that it was not finished."""
Handle = Callable[[Shard, Message], None]


class Workers(Protocol):
    """Some workers, each of which does one shard at a time."""

    @property
    def n_free(self) -> int:
        """Number of workers that could take a shard now."""

    @property
    def n_alive(self) -> int:
        """Number of workers that have loaded the model."""

    def start(self, shard: Shard) -> None:
        """Give a shard to a free worker."""

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Wait until something has happened, or the time is over; `handle` is called with every message about a shard.

        It raises the error of loading if no worker has the model, a `WorkerError` if several in turn ended while they
        loaded it.
        """

    def give_up(self, shard: Shard) -> None:
        """End the worker of a shard that takes too long, which is broken then; by default it minds the time itself."""
        return

    def close(self) -> None:
        """End all workers; by default nothing, if they are in this process."""
        return


class InProcessWorkers(Workers):
    """One worker, which works while the driver waits for it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._worker: Worker | None = None
        self._shard: Shard | None = None

    @property
    def n_free(self) -> int:
        return int(self._shard is None)

    @property
    def n_alive(self) -> int:
        return int(self._worker is not None)

    def start(self, shard: Shard) -> None:
        """Take a shard, which is done when the driver waits."""
        self._shard = shard

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Do the shard."""
        shard, self._shard = self._shard, None
        if shard is None:
            return
        self._worker = self._worker or Worker(self._settings)
        failures: list[Exception] = []

        def report(progress: Progress) -> None:
            try:
                handle(shard, progress)
            except Exception as error:  # the driver's, for which no recording is to blame
                failures.append(error)
                raise

        try:
            counts = self._worker.transcribe(shard, report)
        except Exception as error:
            if failures:
                raise failures[0] from None
            handle(shard, broken_by(error))
        else:
            handle(shard, counts)


READY = "ready"
"""What a worker says when it has loaded the model."""


@dataclass(eq=False)
class Member:
    """A worker of a pool."""

    place: Any  # its process, or its actor
    is_ready: bool = False  # it has loaded the model
    shard: Shard | None = None


class Pool(Workers):
    """Workers elsewhere, each of which may end at any time: then its shard is broken, and another one takes its place.

    A subclass starts them, sends them shards, ends them, and hears what they say.
    """

    most_start_failures: ClassVar[int]
    """Workers that may end, one after another, before they have loaded the model."""

    def __init__(self, count: int) -> None:
        self._start_failures = 0
        self._members: list[Member] = []
        for _ in range(count):
            self._members.append(self._spawn())

    @property
    def n_free(self) -> int:
        return len(self._free())

    @property
    def n_alive(self) -> int:
        return sum(each.is_ready for each in self._members)

    def _free(self) -> list[Member]:
        return [each for each in self._members if each.is_ready and each.shard is None]

    def start(self, shard: Shard) -> None:
        free, *_ = self._free()
        free.shard = shard
        self._send(free, shard)

    def give_up(self, shard: Shard) -> None:
        for each in self._members:
            if each.shard is shard:
                self._kill(each)

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        for each in self._members:
            self._kill(each)
        for each in self._members:
            self._forget(each)

    @abstractmethod
    def _spawn(self) -> Member:
        """Start a worker."""

    @abstractmethod
    def _send(self, each: Member, shard: Shard) -> None:
        """Send a shard to a worker."""

    @abstractmethod
    def _kill(self, each: Member) -> None:
        """End a worker."""

    def _forget(self, each: Member) -> None:
        """Release what belongs to a worker that was ended."""

    def _take(self, each: Member, message: object, handle: Handle) -> None:
        """Take a message of a worker."""
        shard = each.shard
        if message == READY:
            each.is_ready, self._start_failures = True, 0
        elif isinstance(message, HarkenError):
            self._replace(each, message)
        elif shard and isinstance(message, Message):
            if not isinstance(message, Progress):
                each.shard = None
            handle(shard, message)

    def _lose(self, each: Member, reason: str, handle: Handle, kind: str = LOST) -> None:
        """Replace a worker that has ended; its shard is broken, by an error of that kind."""
        error = f"{self.most_start_failures} workers in turn ended while they loaded the model: {reason}"
        self._replace(each, None if each.is_ready else WorkerError(error))
        if each.shard:
            handle(each.shard, Broken(reason, kind))

    def _replace(self, each: Member, error: HarkenError | None) -> None:
        """Replace a worker; after an error of several in turn before they were ready, the others go on without it.

        An error of harken's own is the same for all, unless others have loaded the model.
        """
        self._kill(each)
        self._forget(each)
        self._members.remove(each)
        self._start_failures += error is not None
        most = self.most_start_failures if self.n_alive or isinstance(error, WorkerError) else 1
        if error is None or self._start_failures < most:
            self._members.append(self._spawn())
        elif not self.n_alive:
            raise error


_CONTEXT = multiprocessing.get_context("spawn")
_END = object()
_OUT_OF_MEMORY = 7
"""Exit status of a worker without memory; what it has taken is given back with the process."""


class _Place(NamedTuple):
    number: int
    process: SpawnProcess
    connection: Connection


class ProcessWorkers(Pool):
    """Processes of this machine: one that dies takes nothing with it but the shard in its hands."""

    most_start_failures = 3

    def __init__(self, settings: WorkerSettings, count: int) -> None:
        self._settings = settings
        super().__init__(count)

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Wait for messages of processes, and for their ends; those that have ended are replaced."""
        by_connection = {each.place.connection: each for each in self._members}
        for connection in wait([*by_connection], timeout_s):
            each = by_connection[cast(Connection, connection)]
            for message in _messages(each.place.connection):
                if message is _END:
                    each.place.process.kill()  # it may have closed its end of the connection alone
                    each.place.process.join()
                    code = each.place.process.exitcode
                    kind = MemoryError.__name__ if code == _OUT_OF_MEMORY else LOST
                    self._lose(each, f"its worker ended with {_exit_text(code)}", handle, kind)
                else:
                    self._take(each, message, handle)
                if each not in self._members:
                    break

    def _spawn(self) -> Member:
        ours, theirs = _CONTEXT.Pipe()
        taken = {each.place.number for each in self._members}
        number = min({*range(len(taken) + 1)} - taken)
        settings = replace(self._settings, number=number)
        process = _CONTEXT.Process(target=_serve, args=(theirs, settings), daemon=True)
        with _shielding():
            process.start()
        theirs.close()
        return Member(_Place(number, process, ours))

    def _send(self, each: Member, shard: Shard) -> None:
        with suppress(OSError):  # it has just ended, which `wait` finds out
            each.place.connection.send(shard)

    def _kill(self, each: Member) -> None:
        each.place.process.kill()

    def _forget(self, each: Member) -> None:
        each.place.process.join()
        each.place.connection.close()


@contextmanager
def _shielding() -> Iterator[None]:
    """Keep Ctrl-C, which reaches all, from processes started in the block, also while they import what they need."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # as its start, which would be within the block, lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _messages(connection: Connection) -> Iterator[object]:
    """Yield the messages that have come, and `_END` behind the last one of a process that has ended."""
    try:
        while connection.poll():
            yield connection.recv()
    except (EOFError, OSError):  # also in the middle of a message
        yield _END


def _exit_text(code: int | None) -> str:
    if code == _OUT_OF_MEMORY:
        return "too little memory"
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"


def _serve(connection: Connection, settings: WorkerSettings) -> None:
    """Work for the driver, which is another process, until it has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the driver ends its workers itself
    threading.Thread(target=_end_with_driver, name="harken driver", daemon=True).start()
    with suppress(EOFError, OSError):  # the driver has gone
        try:
            worker = Worker(settings)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)
        except HarkenError as error:
            connection.send(error)
        except Exception as error:  # whatever else a damaged installation raises
            connection.send(WorkerError(f"the model cannot be loaded: {type(error).__name__}: {error}"))
        else:
            connection.send(READY)
            while True:
                _serve_shard(connection, worker)
    os._exit(0)


def _end_with_driver() -> None:
    """End this process when the driver ends, however it does, and whatever a call of the engine is doing."""
    driver = multiprocessing.parent_process()
    assert driver
    wait([driver.sentinel])
    os._exit(0)


def _serve_shard(connection: Connection, worker: Worker) -> None:
    """Do the next shard."""
    shard: Shard = connection.recv()

    def report(progress: Progress) -> None:
        try:
            connection.send(progress)
        except OSError:
            os._exit(0)

    try:
        connection.send(worker.transcribe(shard, report))
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception as error:
        connection.send(broken_by(error))
