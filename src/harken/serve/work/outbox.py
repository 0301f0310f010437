"""An outbox: results on their way from the engine's thread to a coroutine that sends them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from threading import Lock
from typing import Generic, TypeVar

from harken.serve.waiting import call_soon

T = TypeVar("T")


class Outbox(Generic[T]):
    """Results in order; the engine's thread puts them, a coroutine takes them.

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
        self._loop, self._came = asyncio.get_running_loop(), asyncio.Event()
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
        self._wake()

    def close(self) -> None:
        """Note that nothing follows, from any thread."""
        self._closed = True
        self._wake()

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
            self._came.clear()
            if not self._results and not self._closed:
                await self._came.wait()

    def _wake(self) -> None:
        call_soon(self._loop, self._came.set)
