"""Workers in processes of this machine: one that dies takes nothing with it but the shard in its hands."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import NamedTuple, cast

from harken.batch.worker import Progress, Task, Worker, WorkerSettings
from harken.batch.workers import LOST, READY, Handle, Member, Pool, broken_by
from harken.errors import HarkenError, WorkerError

_CONTEXT = multiprocessing.get_context("spawn")
_END = object()
_OUT_OF_MEMORY = 7
"""Exit status of a worker without memory; what it has taken is given back with the process."""


class _Place(NamedTuple):
    process: SpawnProcess
    connection: Connection


class ProcessWorkers(Pool):
    """Worker processes.

    Parameters
    ----------
    settings : WorkerSettings
    count : int
        Number of processes.
    """

    most_start_failures = 3

    def __init__(self, settings: WorkerSettings, count: int) -> None:
        self._settings = settings
        super().__init__(count)

    def wait(self, timeout_s: float, handle: Handle) -> None:
        """Wait for messages of processes, and for their ends; those that have ended are replaced.

        Raises
        ------
        HarkenError
            If the model cannot be loaded.
        WorkerError
            If several processes in turn end while they load the model.
        """
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
        process = _CONTEXT.Process(target=_serve, args=(theirs, self._settings), daemon=True)
        process.start()
        theirs.close()
        return Member(_Place(process, ours))

    def _send(self, each: Member, task: Task) -> None:
        with suppress(OSError):  # it has just ended, which `wait` finds out
            each.place.connection.send(task)

    def _kill(self, each: Member) -> None:
        each.place.process.kill()

    def _forget(self, each: Member) -> None:
        each.place.process.join()
        each.place.connection.close()


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
