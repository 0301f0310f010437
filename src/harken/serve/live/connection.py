"""A live session: a stream, the translator between it and a client, and the lines that carry their messages.

Nothing grows with a client that does not keep up. What it does not read stays with its stream, whose engine then waits
(only interims are merged, committed words and segments never lost); what it sends faster than it can be processed
stays with it, as nothing more is read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from harken.contract import Floats
from harken.serve.errors import NORMAL, RequestError, draining, request_error
from harken.serve.live.audio import AudioFormat, AudioInput, open_input
from harken.serve.live.outgoing import Outgoing, ReplayLog
from harken.serve.live.translator import (
    Audio,
    Check,
    CloseStream,
    DropStream,
    Flush,
    HangUp,
    Mark,
    Output,
    Outputs,
    Translator,
)
from harken.serve.service import Service
from harken.serve.waiting import first_of
from harken.serve.work.captions import shared_as
from harken.serve.work.jobs import Flushed, LiveJob, OpenStream
from harken.types import SAMPLE_RATE

SEND_LIMIT_S = 30.0
"""Seconds that a reader may take for a message before it counts as gone."""
FINALS_LIMIT_S = 60.0
"""Seconds to wait for the last results of a stream that the server ends."""
MAX_REASON_BYTES = 120
MAX_TEXT_BYTES, MAX_AUDIO_BYTES = 1 << 18, 1 << 24
"""Largest messages, if a protocol has no others: some clients send a whole recording in one."""
SUBPROTOCOLS = ("realtime", "token", "bearer", "ws")
"""What clients offer, browsers beside the key; they refuse a server that chooses none."""
IDLE, SESSION_LIMIT, TOO_LARGE = "idle", "session_limit", "message_too_big"
"""Codes of the errors by which a session ends, beside ``"draining"``."""
ANSWERED = object()
"""What a line returns for a message that it has answered itself: its client is there."""


class Line(Protocol):
    """The messages of one connection."""

    async def receive(self) -> Any:
        """Return the next message, or `ANSWERED`; None once the client has gone. A `RequestError` ends the session."""

    async def send(self, message: Any) -> None:
        """Send a message; a `ConnectionError` says that the client has gone, or does not read."""

    async def close(self, code: int, reason: str) -> None:
        """Close the connection, if it is open."""


class Session:
    """A live session: a stream, the translator between it and a client, and the messages for the client.

    It belongs to the event loop that runs while it is made, and is closed by `aclose`.

    Parameters
    ----------
    service : Service
        Its options limit the time without messages.
    translator : Translator
    limit_s : float
        Seconds that it may last; 0 for no limit.
    kept : ReplayLog, optional
        Keeps the messages for a client who comes back: the session goes on when its connection ends.
    captions : str, optional
        Name under which viewers see what is said.
    """

    def __init__(
        self,
        service: Service,
        translator: Translator,
        *,
        limit_s: float = 0.0,
        kept: ReplayLog | None = None,
        captions: str | None = None,
    ) -> None:
        self._service, self._translator, self._outlives = service, translator, kept is not None
        self._outgoing = kept or Outgoing()
        self._captions = service.captions.share(captions) if captions else None
        self._hang_up: HangUp | None = None
        self._stream = AsyncExitStack()
        self._job: LiveJob | None = None
        self._input: AudioInput | None = None
        self._format: AudioFormat | None = None
        self._left = math.inf  # what the stream may still take, in samples
        self._flushed = asyncio.Event()
        self._flush_token: object = None  # of the flush that is waited for; marks have others
        self._updates: asyncio.Task[None] | None = None
        self._handling: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._watching = self._start(self._watch(limit_s))

    async def run(self, line: Line) -> None:
        """Serve a client whose session ends with its connection."""
        with self._service.in_progress():
            try:
                self._handling = self._start(self._perform(self._translator.opened()))
                await self.serve(line)
            finally:
                await self.aclose()

    async def serve(self, line: Line, seq: int = 0) -> None:
        """Serve a client up to the end of the session, or of the connection.

        Parameters
        ----------
        line : Line
        seq : int
            Number of the last message that the client has; those after it are sent.

        Raises
        ------
        RequestError
            If the connection is to be ended, but not the session.
        """
        with suppress(ConnectionError):
            await first_of(self._send_all(line, seq), self._receive_all(line))

    def _end(self, problem: RequestError) -> None:
        """End the session for a reason, behind the last results of its stream; the first reason counts."""
        if not (self._ending or self._hang_up):
            self._ending = self._start(self._finish(problem))

    async def aclose(self) -> None:
        """End the session at once, and give back what it holds."""
        await cancelled(self._handling, self._ending, self._watching, self._updates)
        self._hang(HangUp(NORMAL, ""))
        self._abandon_input()
        await self._stream.aclose()

    @property
    def over(self) -> bool:
        """True once nothing more comes from its stream."""
        return self._hang_up is not None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work; the session ends if it fails."""
        try:
            await work
        except Exception as error:
            self._end(request_error(error))

    async def _receive_all(self, line: Line) -> None:
        """Have the messages of a client handled, one after another, until it goes."""
        try:
            while (
                message := await received(line, self._service.options.idle_s, lambda: self._busy)
            ) is not None:
                if self._handling:
                    await asyncio.wait((self._handling,))
                if not (self._ending or self._hang_up):
                    self._handling = self._start(self._perform(self._translator.received(message)))
        except RequestError as problem:
            if self._outlives:
                raise
            self._end(problem)
            await asyncio.Event().wait()  # until all has been sent

    @property
    def _busy(self) -> bool:
        """True while the client may be silent, as it waits for the server."""
        return self.over or (self._handling is not None and not self._handling.done())

    async def _send_all(self, line: Line, seq: int) -> None:
        async for message in self._outgoing.after(seq):
            await line.send(message)
        if self._hang_up:
            if self._hang_up.last is not None:
                await line.send(self._hang_up.last)
            await line.close(self._hang_up.code, self._hang_up.reason)

    async def _watch(self, limit_s: float) -> None:
        """End the session when the server ends, or when it has lasted as long as it may."""
        try:
            async with asyncio.timeout(limit_s or None):
                await self._service.draining.wait()
            self._end(draining())
        except TimeoutError:
            self._end(
                RequestError(f"the session has lasted {limit_s:g} s, the longest allowed", code=SESSION_LIMIT)
            )

    async def _finish(self, problem: RequestError) -> None:
        """Send the last results, and hang up."""
        await cancelled(self._handling)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINALS_LIMIT_S):
                    await self._perform(self._translator.ended(problem))
        finally:
            self._hang(HangUp(problem.close_code, str(problem)))

    def _hang(self, hang_up: HangUp) -> None:
        """Note how the session ends, and that nothing more is said; the first time counts."""
        self._hang_up = self._hang_up or hang_up
        self._outgoing.close()
        if self._captions:
            self._captions.close()
        if self._job:
            self._job.cancel()

    async def _perform(self, outputs: Outputs) -> None:
        """Do what the translator wants; then wait until a slow reader has taken enough of what it was sent."""
        with suppress(StopIteration):
            output = next(outputs)
            while True:
                try:
                    await self._obey(output)
                except Exception as error:
                    if not isinstance(output, Check):
                        self._abandon_input()
                    output = outputs.throw(error)
                else:
                    output = next(outputs)
        await self._outgoing.room()

    async def _obey(self, output: Output) -> None:
        match output:
            case OpenStream():
                await self._open(output)
            case Check(stream):
                await self._service.check(stream)
            case Audio():
                await self._take(output)
            case Flush(token, drops):
                await self._flush(token, drops)
            case Mark(token):
                if self._job:
                    self._job.ask("mark", token)
            case CloseStream():
                await self._close_stream()
            case DropStream():
                self._abandon_input()
                await cancelled(self._updates)
                await self._release()
            case HangUp():
                self._hang(output)
            case _:
                self._outgoing.add(output)

    async def _open(self, wanted: OpenStream) -> None:
        self._job = await self._stream.enter_async_context(self._service.stream(wanted))
        self._left = self._service.options.session_limit_s * SAMPLE_RATE * wanted.is_bounded or math.inf
        self._updates = self._start(self._take_updates(self._job))

    async def _take_updates(self, job: LiveJob) -> None:
        async for update in job.updates:
            if self._captions:
                self._captions.update(update)
            await self._perform(self._translator.updated(update))
            if isinstance(update, Flushed) and update.token is self._flush_token:
                self._flushed.set()

    async def _take(self, audio: Audio) -> None:
        if self._input is None or audio.format != self._format:
            await self._finish_input()
            self._input, self._format = open_input(audio.format, self._feed), audio.format
        await self._input.take(audio.data)

    async def _feed(self, samples: Floats) -> None:
        self._left -= len(samples)
        if self._left < 0:
            limit_s = self._service.options.session_limit_s
            raise RequestError(
                f"the stream is longer than {limit_s:g} s, the longest allowed", code=SESSION_LIMIT
            )
        if self._job and len(samples):
            await self._job.feed(samples)

    async def _flush(self, token: object, drops: bool) -> None:
        if self._job is None or self._updates is None:
            await self._perform(self._translator.updated(Flushed(token=token)))
            return
        if self._input:
            await self._input.decoded()
        self._flush_token = token
        self._flushed.clear()
        self._job.ask("drop" if drops else "flush", token)
        await first_of(self._flushed.wait(), asyncio.wait((self._updates,)))

    async def _finish_input(self) -> None:
        """Feed what is left of the audio; of a container that the server cuts short, nothing more."""
        if self._input:
            await self._input.finish(whole=self._ending is None)
            self._input = None

    def _abandon_input(self) -> None:
        if self._input:
            self._input.abandon()
            self._input = None

    async def _close_stream(self) -> None:
        await self._finish_input()
        if self._job and self._updates:
            self._job.ask("close")
            await asyncio.wait((self._updates,))  # which goes on if this is cancelled
            await self._release()

    async def _release(self) -> None:
        """Give back the stream."""
        await self._stream.aclose()
        self._job = self._updates = None


class WebSocketLine:
    """Messages over a WebSocket: texts and bytes.

    Parameters
    ----------
    socket : WebSocket
        An accepted one.
    max_text, max_bytes : int
        Largest messages of a client, in characters and bytes.
    """

    def __init__(self, socket: WebSocket, max_text: int, max_bytes: int) -> None:
        self._socket, self._max_text, self._max_bytes = socket, max_text, max_bytes
        self._sending = asyncio.Lock()

    async def receive(self) -> Any:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        data: str | bytes = message.get("bytes") or b"" if text is None else text
        if len(data) > (self._max_bytes if isinstance(data, bytes) else self._max_text):
            allowed = f"{self._max_bytes} of audio, {self._max_text} of text"
            raise RequestError(
                f"a message of {len(data)} bytes; allowed are {allowed}", status=413, code=TOO_LARGE
            )
        return data

    async def send(self, message: Any) -> None:
        try:
            async with self._sending, asyncio.timeout(SEND_LIMIT_S):
                await self._socket.send_text(message)
        except (TimeoutError, WebSocketDisconnect, RuntimeError) as error:
            raise ConnectionAbortedError("the client has gone, or does not read") from error

    async def close(self, code: int, reason: str) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        shown = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
            async with asyncio.timeout(SEND_LIMIT_S):
                await self._socket.close(code, shown)


async def accept(socket: WebSocket) -> None:
    """Accept a WebSocket, with the subprotocol that its client offers."""
    offered = socket.scope["subprotocols"]
    await socket.accept(next((known for known in SUBPROTOCOLS if known in offered), None))


async def serve_socket(
    service: Service,
    socket: WebSocket,
    translator: Translator,
    max_text: int = MAX_TEXT_BYTES,
    max_bytes: int = MAX_AUDIO_BYTES,
) -> None:
    """Accept a WebSocket, and serve a session that ends with it; the numbers are the largest messages of its client.

    Raises
    ------
    RequestError
        If it is to be shared as captions under a name that is not allowed.
    """
    captions = shared_as(socket.query_params)
    await accept(socket)
    line = WebSocketLine(socket, max_text, max_bytes)
    limit_s = service.options.session_limit_s
    await Session(service, translator, limit_s=limit_s, captions=captions).run(line)


async def received(line: Line, idle_s: float, is_busy: Callable[[], bool] = lambda: False) -> Any:
    """Return the next message of a client, None once it has gone.

    Raises
    ------
    RequestError
        If none comes for some seconds while it does not wait for the server, or if the line raises it.
    """
    message = ANSWERED
    while message is ANSWERED:
        receiving = asyncio.create_task(line.receive())
        try:
            while not (await asyncio.wait((receiving,), timeout=idle_s))[0]:
                if not is_busy():
                    raise RequestError(f"no message has come for {idle_s:g} s", code=IDLE)
            message = receiving.result()
        finally:
            receiving.cancel()
    return message


async def cancelled(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel those tasks that there are, and wait until they have ended."""
    begun = [task for task in tasks if task]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
