"""A file whose bytes are still coming: a coroutine writes it, a thread reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Condition

MAX_PIPE_BYTES = 1 << 18
"""Bytes that may wait for the thread."""


class AudioPipe:
    """A file that holds little: each side waits for the other.

    Notes
    -----
    It belongs to the event loop that runs while it is made.
    """

    name = "the audio"

    def __init__(self) -> None:
        self._data = bytearray()
        self._changed = Condition()
        self._starved = self._closed = False
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()

    def read(self, size: int) -> bytes:
        """Take up to `size` bytes, in the thread; none at the end."""
        with self._changed:
            while not self._data and not self._closed:
                self._starved = True
                self._tell()
                self._changed.wait()
            self._starved = False
            data = bytes(self._data[:size])
            del self._data[:size]
        self._tell()
        return data

    async def write(self, data: bytes) -> None:
        """Add bytes, once there is room."""
        await self._wait_until(lambda: len(self._data) < MAX_PIPE_BYTES)
        with self._changed:
            self._data += data
            self._starved = False
            self._changed.notify()

    async def starved(self) -> None:
        """Wait until the thread has read all, and asks for more."""
        await self._wait_until(lambda: self._starved)

    def close(self) -> None:
        """End the file behind what has been written."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._tell()

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        while not self._closed and not holds():
            self._news.clear()
            if not self._closed and not holds():
                await self._news.wait()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # the loop has been closed: nobody waits any more
            return
