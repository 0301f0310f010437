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

POLL_S = 0.1
"""Longest wait at once: on Windows a wait without an end is not interrupted by Ctrl-C."""


class Abandoned(Exception):
    """Loading ends here, as nobody waits for it any more."""


class ParallelLoading:
    """Functions that load parts of a model at the same time, each in a thread.

    If one fails, or a signal interrupts the waiting, the others are abandoned: they end where they next call
    `check_wanted`. Until then they run on in the background, and the interpreter waits for them before it ends, as a
    thread must not be cut inside of a runtime.
    """

    def __init__(self) -> None:
        self._abandoned = Event()

    def check_wanted(self) -> None:
        """Raise `Abandoned` if nobody waits for the functions any more; they call this between their steps."""
        if self._abandoned.is_set():
            raise Abandoned

    def run(self, *functions: Callable[[], Any]) -> list[Any]:
        """Call functions in parallel and return their results in order.

        Raises
        ------
        Exception
            The first error of a function, at once.
        """
        futures = [_start(function) for function in functions]
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, POLL_S, FIRST_EXCEPTION)
                for future in done:
                    future.result()
        except BaseException:
            self._abandoned.set()
            raise
        return [future.result() for future in futures]


def _start(function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a thread that nobody has to wait for."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        finally:
            atexit.unregister(thread.join)

    thread = Thread(target=run, name="harken-loading", daemon=True)
    atexit.register(thread.join)
    thread.start()
    return future
