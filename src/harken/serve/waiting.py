"""Waiting: for the first of several coroutines, for changes, for threads, and for something that is loaded once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any, Generic, TypeVar

from harken.serve.errors import ended

T = TypeVar("T")


async def first_of(*coroutines: Coroutine[Any, Any, object]) -> int:
    """Run coroutines until the first ends, and the others no further.

    Returns
    -------
    int
        Index of the one that ended; its error is raised.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = next(i for i, task in enumerate(tasks) if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    tasks[first].result()
    return first


def call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a function in an event loop, from any thread; not if that has been closed, as nobody waits any more."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class Changes:
    """Changes that wake the coroutines which wait for something to be true.

    It belongs to the event loop that runs while it is made.
    """

    def __init__(self) -> None:
        self._loop, self._next = asyncio.get_running_loop(), asyncio.Event()

    def tell(self) -> None:
        """Have all who wait look again, from any thread."""
        call_soon(self._loop, self._wake)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something is true."""
        while not holds():
            await self._next.wait()

    def _wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()


async def in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """Return what a function returns, called in a thread of its own.

    Unlike threads of `asyncio.to_thread`, it does not keep the process from ending.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # who waits no longer leaves the thread alone

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=call, name=name, daemon=True).start()
    return await asyncio.wrap_future(result)


class LoadOnce(Generic[T]):
    """Something that is loaded when it is first asked for; after a failure a later request tries again.

    Parameters
    ----------
    load : callable
    failed_s : float
        Seconds for which a failure is the answer to further requests.

    Attributes
    ----------
    value : T or None
        None before it is loaded, and after a failure.
    """

    def __init__(self, load: Callable[[], Coroutine[Any, Any, T]], *, failed_s: float = 0.0) -> None:
        self.value: T | None = None
        self._load, self._failed_s = load, failed_s
        self._loading: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return it, loaded if it is not in memory; a `RequestError` says that the server ends meanwhile."""
        loading = self._loading = self._loading or asyncio.create_task(self._try())
        try:
            # A request that is cancelled meanwhile does not end the loading, for which others may wait.
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            if loading.cancelled():
                raise ended("the server has ended") from None
            raise

    def forget(self) -> None:
        """Let go of it, and wait no longer for the loading."""
        if self._loading:
            self._loading.cancel()
        self.value = self._loading = None

    async def _try(self) -> T:
        try:
            self.value = await self._load()
        except Exception:
            asyncio.get_running_loop().call_later(self._failed_s, self.forget)
            raise
        return self.value
