"""The pump between a WebSocket and the state machine of a protocol, which knows neither sockets nor threads.

Nothing grows with a client that does not keep up. What it does not read stays with its stream, whose engine then waits
(only interims are merged, committed words and segments never lost); what it sends faster than it can be processed
stays with it, as nothing more is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from logging import getLogger
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from harken.contract import Floats
from harken.errors import HarkenError
from harken.serve.close_codes import NORMAL, RESTART, TOO_BIG, UNFORESEEN
from harken.serve.service import Service
from harken.serve.work.live_job import Failed, LiveJob, LiveUpdate
from harken.streaming import StreamOptions
from harken.transcribe import TranscribeOptions

log = getLogger("harken.serve")

MAX_MESSAGE_BYTES = (15 << 20) + 4096
"""Largest message: an append of 15 MiB, and what is around it."""
MAX_UNSENT = 16
"""Messages that may wait for a slow reader before its stream waits."""
SEND_LIMIT_S = 30.0
"""Seconds that a reader may take for a message before it counts as gone."""
FINALS_LIMIT_S = 60.0
"""Seconds to wait for the last results of a stream that the server ends."""
MAX_REASON_BYTES = 120


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Open a stream; one that is open before has ended, and `StreamClosed` has come."""

    model: str
    options: TranscribeOptions
    stream_options: StreamOptions


@dataclass(frozen=True, slots=True)
class Feed:
    """Give samples, float32 at 16 kHz, to the open stream."""

    samples: Floats


@dataclass(frozen=True, slots=True)
class Flush:
    """End the current utterance of the open stream; `Flushed` with the token comes behind its events."""

    token: object = None


@dataclass(frozen=True, slots=True)
class CloseStream:
    """End the open stream behind the samples so far; `StreamClosed` comes behind its last events."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the WebSocket behind the messages before.

    Parameters
    ----------
    code : int
    cause : str
        A word for programs, such as ``"draining"``.
    reason : str
        One line.
    """

    code: int
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream has ended; no update of it follows."""


Output = str | bytes | OpenStream | Feed | Flush | CloseStream | HangUp
"""What a state machine wants done: texts and bytes are messages to send."""


class StateMachine(Protocol):
    """A protocol between a client and a live stream: what comes in, and what is to be done about it.

    Outputs are taken one by one, and each is done before the next is asked for; so a generator can decode a long
    message piece by piece, at the pace of the engine. Other methods may be called before it goes on.
    """

    def opened(self) -> Iterable[Output]:
        """Return what to do once the WebSocket is open."""
        ...

    def received(self, message: str | bytes) -> Iterable[Output]:
        """Take a message of the client."""
        ...

    def updated(self, update: LiveUpdate | StreamClosed) -> Iterable[Output]:
        """Take an update of the stream. Only messages and `HangUp` are allowed in return."""
        ...

    def refused(self, error: Exception) -> Iterable[Output]:
        """Take the reason why a stream could not be opened, before the output behind its `OpenStream` is asked for."""
        ...

    def ended(self, hang_up: HangUp) -> Iterable[Output]:
        """Return what to do so that the client gets its last results, as the server is about to hang up."""
        ...


async def serve_socket(
    socket: WebSocket,
    service: Service,
    machine: StateMachine,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    send_limit_s: float = SEND_LIMIT_S,
) -> None:
    """Serve an accepted WebSocket until it is closed.

    Parameters
    ----------
    socket : WebSocket
    service : Service
        Its options limit the length of the session and the time without messages.
    machine : StateMachine
    max_message_bytes : int
    send_limit_s : float
        Seconds that a reader may take for a message.
    """
    with service.in_progress():
        await _Pump(socket, service, machine, max_message_bytes, send_limit_s).run()


class _Pump:
    def __init__(
        self,
        socket: WebSocket,
        service: Service,
        machine: StateMachine,
        max_message_bytes: int,
        send_limit_s: float,
    ) -> None:
        self._socket, self._service, self._machine = socket, service, machine
        self._max_message_bytes, self._send_limit_s = max_message_bytes, send_limit_s
        self._unsent: deque[str | bytes] = deque()
        self._has_unsent, self._was_sent = asyncio.Event(), asyncio.Event()
        self._ending: asyncio.Future[HangUp | None] = asyncio.get_running_loop().create_future()
        self._stream = AsyncExitStack()
        self._job: LiveJob | None = None
        self._updates: asyncio.Task[None] | None = None

    async def run(self) -> None:
        receiving, sending, watching = map(self._start, (self._receive(), self._send(), self._watch()))
        try:
            hang_up = await self._ending
            await _cancelled(receiving, watching)
            if hang_up:
                await self._hang_up(hang_up)
        finally:
            await _cancelled(receiving, watching, sending, *filter(None, [self._updates]))
            await self._stream.aclose()

    def _start(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._guarded(loop))

    async def _guarded(self, loop: Coroutine[Any, Any, None]) -> None:
        """Run a loop; the client of one that fails is told no more than that."""
        try:
            await loop
        except Exception as error:
            _log_unforeseen(error)
            self._end(HangUp(UNFORESEEN, "internal_error", "the server did not foresee this"))

    def _end(self, hang_up: HangUp | None) -> None:
        """Note why the session ends, None if the client has gone; the first reason counts."""
        if not self._ending.done():
            self._ending.set_result(hang_up)

    async def _receive(self) -> None:
        idle_s = self._service.options.idle_s
        await self._perform(self._machine.opened())
        while True:
            try:
                message = await asyncio.wait_for(self._socket.receive(), idle_s)
            except TimeoutError:
                self._end(HangUp(NORMAL, "idle_timeout", f"no message has come for {idle_s:g} s"))
                return
            if message["type"] == "websocket.disconnect":
                self._end(None)
                return
            text = message.get("text")
            data: str | bytes = text if text is not None else message.get("bytes") or b""
            if len(data) > self._max_message_bytes:
                reason = f"a message has {len(data)} bytes; allowed are {self._max_message_bytes}"
                self._end(HangUp(TOO_BIG, "message_too_big", reason))
                return
            await self._perform(self._machine.received(data))

    async def _send(self) -> None:
        while True:
            while self._unsent:
                try:
                    async with asyncio.timeout(self._send_limit_s):
                        await self._send_message(self._unsent[0])
                except (TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
                    self._end(None)
                    return
                self._unsent.popleft()
                self._was_sent.set()
            self._has_unsent.clear()
            await self._has_unsent.wait()

    async def _send_message(self, message: str | bytes) -> None:
        if isinstance(message, str):
            await self._socket.send_text(message)
        else:
            await self._socket.send_bytes(message)

    async def _watch(self) -> None:
        """End the session when the server ends, or when it has lasted as long as it may."""
        limit_s = self._service.options.session_limit_s
        try:
            async with asyncio.timeout(limit_s or None):
                await self._service.draining.wait()
            self._end(HangUp(RESTART, "draining", "the server is about to end"))
        except TimeoutError:
            self._end(HangUp(NORMAL, "session_expired", f"the session has lasted {limit_s:g} s"))

    async def _take_updates(self, job: LiveJob) -> None:
        async for update in job.updates:
            if isinstance(update, Failed):
                _log_unforeseen(update.failure)
            await self._perform(self._machine.updated(update))
        await self._perform(self._machine.updated(StreamClosed()))

    async def _perform(self, outputs: Iterable[Output]) -> None:
        """Do what the state machine wants; then wait until a slow reader has taken enough of what it was sent."""
        for output in outputs:
            match output:
                case str() | bytes():
                    self._unsent.append(output)
                    self._has_unsent.set()
                case OpenStream():
                    await self._open(output)
                case Feed(samples) if self._job:
                    await self._job.feed(samples)
                case Flush(token) if self._job:
                    self._job.flush(token)
                case CloseStream() if self._job:
                    self._job.close()
                case HangUp():
                    self._end(output)
        while len(self._unsent) >= MAX_UNSENT:
            self._was_sent.clear()
            await self._was_sent.wait()

    async def _open(self, wanted: OpenStream) -> None:
        if self._updates:
            await asyncio.wait([self._updates])  # which goes on if this is cancelled
            await self._stream.aclose()
            self._job = self._updates = None
        opening = self._service.stream(wanted.model, wanted.options, wanted.stream_options)
        try:
            self._job = await self._stream.enter_async_context(opening)
        except Exception as error:
            _log_unforeseen(error)
            await self._perform(self._machine.refused(error))
        else:
            self._updates = self._start(self._take_updates(self._job))

    async def _hang_up(self, hang_up: HangUp) -> None:
        """Send the last results, and close the WebSocket."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINALS_LIMIT_S):
                if hang_up.code in (NORMAL, RESTART):
                    await self._perform(self._machine.ended(hang_up))
                    if self._updates:
                        await self._updates
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
            async with asyncio.timeout(self._send_limit_s):
                while self._unsent and self._socket.application_state is WebSocketState.CONNECTED:
                    self._was_sent.clear()
                    await self._was_sent.wait()
                reason = hang_up.reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
                await self._socket.close(hang_up.code, reason)


def _log_unforeseen(error: BaseException) -> None:
    """Log an error that nothing was meant to raise; of others the client is told."""
    if not isinstance(error, HarkenError):
        log.error("unforeseen error", exc_info=error)


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
