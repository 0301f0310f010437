"""Workers in processes of this machine: one that dies takes nothing with it but the shard in its hands."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

from harken.batch.rows import ShardReport
from harken.batch.worker import Progress, Task, Worker, WorkerSettings
from harken.batch.workers.protocol import Advanced, Broken, Handle, Published, broken_by
from harken.errors import HarkenError, WorkerError

MAX_START_FAILURES = 3
"""Workers that may end, one after another, before any has loaded the model."""
_CONTEXT = multiprocessing.get_context("spawn")
READY = "ready"
_OUT_OF_MEMORY = 7
"""Exit status of a worker without memory; what it has taken is given back with the process."""


@dataclass
class _Process:
    process: SpawnProcess
    connection: Connection
    is_ready: bool = False
    task: Task | None = None


class ProcessWorkers:
    """Worker processes.

    Parameters
    ----------
    settings : WorkerSettings
    count : int
        Number of processes.
    """

    def __init__(self, settings: WorkerSettings, count: int) -> None:
        self._settings = settings
        self._start_failures = 0
        self._processes = [self._spawn() for _ in range(count)]

    @property
    def n_free(self) -> int:
        """Number of processes that have loaded the model and have no task."""
        return sum(each.is_ready and each.task is None for each in self._processes)

    @property
    def n_alive(self) -> int:
        """Number of processes that have loaded the model."""
        return sum(each.is_ready for each in self._processes)

    def start(self, task: Task) -> None:
        """Give a task to a free process."""
        free = next(each for each in self._processes if each.is_ready and each.task is None)
        free.task = task
        with suppress(OSError):  # it has just ended, which `wait` finds out
            free.connection.send(task)

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Wait for messages of processes, and for their ends; those that have ended are replaced.

        Raises
        ------
        HarkenError
            If the model cannot be loaded.
        WorkerError
            If several processes in turn end while they load the model.
        """
        by_connection = {each.connection: each for each in self._processes}
        for connection in wait([*by_connection], timeout_s):
            each = by_connection[cast(Connection, connection)]
            try:
                while each.connection.poll():
                    self._take(each, each.connection.recv(), handle)
            except (EOFError, OSError):  # also in the middle of a message
                self._replace(each, handle)

    def give_up(self, task: Task) -> None:
        """Kill the process of a task."""
        for each in self._processes:
            if each.task is task:
                each.process.kill()

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        for each in self._processes:
            each.process.kill()
        for each in self._processes:
            each.process.join()
            each.connection.close()

    def _spawn(self) -> _Process:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_serve, args=(theirs, self._settings), daemon=True)
        process.start()
        theirs.close()
        return _Process(process, ours)

    def _take(self, each: _Process, message: object, handle: Handle) -> None:
        """Take a message of a process."""
        task = each.task
        if message == READY:
            each.is_ready, self._start_failures = True, 0
        elif isinstance(message, HarkenError):
            raise message
        elif task and isinstance(message, Progress):
            handle(Advanced(task, message))
        elif task and isinstance(message, ShardReport):
            each.task = None
            handle(Published(task, message))
        elif isinstance(message, Broken):
            each.task = None
            handle(message)

    def _replace(self, each: _Process, handle: Handle) -> None:
        """Replace a process that has ended; its task is broken."""
        each.process.join()
        each.connection.close()
        reason = f"its worker ended with {_exit_text(each.process.exitcode)}"
        self._processes.remove(each)
        self._start_failures += not each.is_ready
        if each.is_ready or self._start_failures < MAX_START_FAILURES:
            self._processes.append(self._spawn())
        elif not self.n_alive:  # the others go on without it
            raise WorkerError(
                f"{MAX_START_FAILURES} workers in turn ended while they loaded the model: {reason}"
            )
        if each.task:
            handle(Broken(each.task, reason))


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
                _serve_task(connection, worker)
    os._exit(0)


def _end_with_driver() -> None:
    """End this process when the driver ends, however it does, and whatever a call of the engine is doing."""
    driver = multiprocessing.parent_process()
    assert driver
    wait([driver.sentinel])
    os._exit(0)


def _serve_task(connection: Connection, worker: Worker) -> None:
    """Do the next task."""
    task: Task = connection.recv()

    def report(progress: Progress) -> None:
        try:
            connection.send(progress)
        except OSError:
            os._exit(0)

    try:
        connection.send(worker.transcribe(task, report))
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception as error:
        connection.send(broken_by(task, error))
