"""Loading in threads, for which the calling thread waits in such a way that a signal ends the waiting at once.

A runtime compiles a graph for seconds without returning to Python, which handles signals in the main thread only, and a
`ThreadPoolExecutor` waits for its threads whatever happens.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from threading import Event, Thread
from typing import Any

from harken.backends.memory import reporting_memory
from harken.errors import OutOfMemory

POLL_S = 0.1
"""Longest wait at once: on Windows a wait without an end is not interrupted by Ctrl-C."""


class Abandoned(Exception):
    """Loading ends here, as nobody waits for it any more."""


class ParallelLoading:
    """Functions that load parts of a model at the same time, each in a thread.

    If one fails, or a signal interrupts the waiting, the others are abandoned: they end where they next call
    `check_not_abandoned`. Until then they run on in the background, and the interpreter waits for them before it ends,
    as a thread must not be cut inside of a runtime.
    """

    def __init__(self) -> None:
        self._abandoned = Event()

    def check_not_abandoned(self) -> None:
        """Raise `Abandoned` if nobody waits for the functions any more; they call this between their steps."""
        if self._abandoned.is_set():
            raise Abandoned

    def run(self, *functions: Callable[[], Any]) -> list[Any]:
        """Call functions in parallel and return their results in order.

        Raises
        ------
        OutOfMemory
            If the system has no room for another thread.
        Exception
            The first error of a function, at once.
        """
        futures: list[Future[Any]] = []
        try:
            for function in functions:
                futures.append(Future())
                _start(function, futures[-1])
            pending = set(futures)
            while pending:
                done, pending = wait(pending, POLL_S, FIRST_EXCEPTION)
                for future in done:
                    future.result()
        except BaseException:
            self._abandoned.set()
            raise
        return [future.result() for future in futures]


def _start(function: Callable[[], Any], future: Future[Any]) -> None:
    """Call a function in a thread that nobody has to wait for."""

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        finally:
            atexit.unregister(finish)

    def finish() -> None:
        if thread.is_alive():  # a signal can come before it was started
            thread.join()

    thread = Thread(target=run, name="harken-loading", daemon=True)
    atexit.register(finish)
    try:
        with reporting_memory("a thread that loads the model"):
            thread.start()
    except OutOfMemory:
        atexit.unregister(finish)
        raise
