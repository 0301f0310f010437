"""Loading parts of a model in threads, and the errors with which runtimes report that memory is short, as one kind.

The calling thread waits in such a way that a signal ends the waiting at once: a runtime compiles a graph for seconds
without returning to Python, which handles signals in the main thread only, and a `ThreadPoolExecutor` waits for its
threads whatever happens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any

from numpy.typing import NDArray

from harken.checkpoints.model_files import DerivedWeights
from harken.contract import Arrays
from harken.errors import HarkenError, OutOfMemory

POLL_S = 0.1
"""Longest wait at once: on Windows a wait without an end is not interrupted by Ctrl-C."""


class Abandoned(Exception):
    """Loading ends here, as nobody waits for it any more."""


def load_parts(weights: Arrays, *load: Callable[[Arrays], Any]) -> list[Any]:
    """Load parts of a model at the same time, each in a thread; return them in order.

    If one fails, or a signal interrupts the waiting, the others are abandoned: they end where they next read a weight.
    Until then they run on in the background, and the interpreter waits for them before it ends, as a thread must not be
    cut inside of a runtime.

    Parameters
    ----------
    weights : mapping of str to ndarray
    *load : callable
        Functions that load a part from the weights.

    Raises
    ------
    OutOfMemory
        If the system has no room for another thread.
    Exception
        The first error of a function, at once.
    """
    abandoned = Event()

    def read(name: str) -> NDArray[Any]:
        if abandoned.is_set():
            raise Abandoned
        return weights[name]

    futures: list[Future[Any]] = []
    try:
        for function in load:
            futures.append(Future())
            _start(partial(function, DerivedWeights(weights, read)), futures[-1])
        pending = set(futures)
        while pending:
            done, pending = wait(pending, POLL_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
    except BaseException:
        abandoned.set()
        raise
    return [future.result() for future in futures]


def _start(function: Callable[[], Any], future: Future[Any]) -> None:
    """Call a function in a thread."""

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    with reporting_memory("a thread that loads the model"):
        Thread(target=run, name="harken-loading").start()


_SIGNS = re.compile(
    r"bad_alloc|bad allocation|out of memory"
    r"|(unable to|failed to|can't|cannot) allocate"
    r"|failed to map segment"  # of a shared library
    r"|Resource temporarily unavailable|can't start new thread",  # no room for the stack of another thread
    re.IGNORECASE,
)


@contextmanager
def reporting_memory(work: str) -> Iterator[None]:
    """Convert the errors of a block that say that memory is short to `OutOfMemory`.

    Parameters
    ----------
    work : str
        The work of the block, for the message: "loading PATH".
    """
    try:
        yield
    except HarkenError:
        raise
    except Exception as error:
        sign = _SIGNS.search(str(error))
        if sign is None and not isinstance(error, MemoryError):
            raise
        raise OutOfMemory(f"not enough memory for {work}{f' ({sign[0]})' if sign else ''}") from error
