"""Server-sent events: a response of JSON objects, sent as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Send

from harken.formats import dump_json

T = TypeVar("T")
HEARTBEAT_S = 15.0
"""Seconds of silence after which a proxy might close the connection."""
HEARTBEAT = b": \n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies of the nginx kind pass each event on at once
}


class EventStream:
    """A response that is open.

    Parameters
    ----------
    send
        Of the ASGI application.
    """

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send an object; waits while the client reads slowly."""
        await self._write(_encoded(event))

    async def send_all(self, make_events: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Send objects that a function makes, in a thread, as they may be large."""
        for data in await asyncio.to_thread(lambda: [*map(_encoded, make_events())]):
            await self._write(data)

    async def send_heartbeat(self) -> None:
        """Send a comment, which clients skip."""
        await self._write(HEARTBEAT)

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def _encoded(event: Mapping[str, Any]) -> bytes:
    return f"data: {dump_json(event)}\n\n".encode()


@asynccontextmanager
async def event_stream(send: Send) -> AsyncIterator[EventStream]:
    """Open a response of events, which ends with the block."""
    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    yield EventStream(send)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def with_pauses(results: AsyncIterable[T], pause_s: float) -> AsyncGenerator[T | None, None]:
    """Yield results as they come, and None whenever none has come for some seconds."""
    iterator = aiter(results)
    following: asyncio.Future[T] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(iterator))
            if not (await asyncio.wait({following}, timeout=pause_s))[0]:
                yield None
                continue
            try:
                result = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield result
    finally:
        if following:
            following.cancel()
