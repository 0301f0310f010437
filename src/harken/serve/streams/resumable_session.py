"""A live stream of the own WebSocket, which outlasts the connections of its client."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum, auto
from logging import getLogger
from secrets import token_hex, token_urlsafe
from typing import Any

from harken.contract import Floats
from harken.serve.errors import RequestError, draining, request_error
from harken.serve.pcm import PcmDecoder
from harken.serve.service import Service
from harken.serve.streams.audio_inputs import AudioInput, ContainerInput, RawInput
from harken.serve.streams.hello import CONTAINER, Hello
from harken.serve.streams.replay_log import ReplayLog
from harken.serve.work.live_job import Failed, Flushed, LiveJob, LiveUpdate
from harken.types import SAMPLE_RATE

log = getLogger("harken.serve")

WAITING_MESSAGES = 2
"""Binary messages that may wait for their samples to be fed; then the client has to wait."""


class Action(Enum):
    """A mark in the order of the audio, or in that of the events."""

    OPEN = auto()
    FLUSH = auto()
    END = auto()


class ResumableSession:
    """A stream, what it has said, and whoever is connected to it.

    Parameters
    ----------
    service : Service
    hello : Hello
    on_end : callable
        Called once nobody can resume it any more.

    Attributes
    ----------
    id, token : str
        Its name, and the secret by which its client resumes it.
    log : ReplayLog
        Its messages; closed at its end.
    failure : RequestError or None
        Reason why it ended before its client wanted it to.
    received : int
        Bytes of audio that were taken.
    flushes : int
        Flushes that were taken.
    ended : bool
        True once no more audio is taken.
    """

    def __init__(self, service: Service, hello: Hello, on_end: Callable[[ResumableSession], object]) -> None:
        self.id, self.token = token_hex(8), token_urlsafe(24)
        self.log = ReplayLog()
        self.failure: RequestError | None = None
        self.received = self.flushes = 0
        self.ended = False
        self._service, self._hello, self._on_end = service, hello, on_end
        self._model = hello.model or service.models.ids[0]
        self._inputs: asyncio.Queue[bytes | Action] = asyncio.Queue(WAITING_MESSAGES)
        self._turn, self._taken_over, self._waiting = asyncio.Lock(), asyncio.Event(), 0
        self._flushed = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._task = loop.create_task(self._run())

    @property
    def finished(self) -> bool:
        """True once it needs no engine any more."""
        return self._task.done()

    async def ready(self, seq: int) -> dict[str, Any]:
        """Return the message ``ready``, once its stream is open; the messages after a number follow it.

        Raises
        ------
        RequestError
            If it cannot be opened.
        """
        facts = await asyncio.shield(self._opened)
        return {
            "type": "ready",
            "session": self.id,
            "resume_token": self.token,
            **facts,
            "resume_s": self._service.options.resume_s,
            "received": self.received,
            "flushes": self.flushes,
            "ended": self.ended,
            "seq": seq,
        }

    def check_kept(self, seq: int) -> None:
        """Raise a `RequestError` if the messages after a number cannot all be sent again."""
        first, last = self.log.forgotten, self.log.last
        if not first <= seq <= last:
            message = f"seq={seq}: allowed is {first} to {last}; earlier messages are not kept any more"
            raise RequestError(message, code="messages_not_kept", param="seq")

    async def take(self, data: bytes) -> None:
        """Take bytes of audio, once there is room for them."""
        await self._put(data)
        self.received += len(data)

    async def flush(self) -> None:
        """End the utterance behind the audio so far."""
        await self._put(Action.FLUSH)
        self.flushes += 1

    async def end(self) -> None:
        """End the stream behind the audio so far; a client that has resumed it may say so again."""
        if not self.ended:
            await self._put(Action.END)
            self.ended = True

    def cancel(self) -> None:
        """End it at once, and let nobody resume it."""
        self._stop_expiry()
        self.failure = self.failure or RequestError("the session has been ended", code="session_ended")
        self._task.cancel()
        self._on_end(self)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[asyncio.Event]:
        """Belong to a connection; the event tells that a newer one takes the session over, and waits for its turn."""
        self._stop_expiry()
        self._waiting += 1
        self._taken_over.set()
        async with self._turn:
            self._waiting -= 1
            self._stop_expiry()
            self._taken_over = asyncio.Event()
            if self._waiting:
                self._taken_over.set()
            try:
                yield self._taken_over
            finally:
                loop = asyncio.get_running_loop()
                self._expiry = loop.call_later(self._service.options.resume_s, self.cancel)

    async def _put(self, item: bytes | Action) -> None:
        if self.failure:  # the client will be told; what it sends until then is too late
            return
        if self.ended:
            raise RequestError("the stream has been ended; allowed are ack and ping", code="stream_ended")
        await self._inputs.put(item)

    async def _run(self) -> None:
        options, stream_options = self._hello.options, self._hello.stream_options
        try:
            async with self._service.stream(self._model, options, stream_options) as job:
                job.flush(Action.OPEN)
                feeding = asyncio.create_task(self._feed_all(job))
                try:
                    async for update in job.updates:
                        self._record(update, job)
                        await self.log.room()
                finally:
                    feeding.cancel()
                    await asyncio.gather(feeding, return_exceptions=True)
        except Exception as error:
            self._fail(error)
        finally:
            self._opened.cancel()
            self.ended = True
            self.log.close()

    def _record(self, update: LiveUpdate, job: LiveJob) -> None:
        """Add an update of the stream to the log."""
        match update:
            case Flushed(token=Action.OPEN):
                assert job.session
                facts = {
                    "model": self._service.models.resolve(self._model),
                    "delay": self._hello.stream_options.delay,
                    "bound_ms": job.session.plan.bound.total_ms,
                }
                self._opened.set_result(facts)
            case Flushed():
                self._flushed.set()
                self.log.add_fields({"type": "flushed"})
            case Failed(failure=failure):
                raise failure
            case event:
                self.log.add(event)

    def _fail(self, error: Exception) -> None:
        if self._service.draining.is_set():
            error = draining()
        self.failure = self.failure or request_error(error)
        if self.failure.status >= 500 and not isinstance(error, RequestError):
            log.error("a live stream failed", exc_info=error)
        if not self._opened.done():
            self._opened.set_exception(self.failure)
            self._opened.exception()  # whether or not somebody waits for it

    async def _feed_all(self, job: LiveJob) -> None:
        """Feed the audio that comes; close the stream at its end, when it is too long, or when the server ends."""
        audio = self._open_input(job)
        stopping = asyncio.create_task(self._service.draining.wait())
        taking = asyncio.create_task(self._take_all(audio, job))
        try:
            await asyncio.wait(
                (taking, stopping),
                timeout=self._service.options.session_limit_s or None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if stopping.done():
                raise draining()
            if not taking.done():
                raise self._too_long()
            taking.result()
        except Exception as error:
            self.failure = request_error(error)
        finally:
            self.ended = True
            taking.cancel()
            stopping.cancel()
            audio.abandon()
            job.close()

    def _open_input(self, job: LiveJob) -> AudioInput:
        """Return what decodes the audio and feeds it to the stream, as long as that is not too long."""
        left = self._service.options.session_limit_s * SAMPLE_RATE or math.inf

        async def feed(samples: Floats) -> None:
            nonlocal left
            left -= len(samples)
            if left < 0:
                raise self._too_long()
            await job.feed(samples)

        audio = self._hello.audio
        if audio.format == CONTAINER:
            return ContainerInput(feed)
        return RawInput(PcmDecoder(audio.format, audio.rate, audio.channels), feed)

    async def _take_all(self, audio: AudioInput, job: LiveJob) -> None:
        """Take what the client sends, up to the end of the stream."""
        while True:
            match await self._inputs.get():
                case bytes() as data:
                    await audio.take(data)
                case Action.FLUSH:
                    await audio.decoded()
                    self._flushed.clear()
                    job.flush(Action.FLUSH)
                    await self._flushed.wait()  # so that no more wait for the engine than come through
                case Action.END:
                    await audio.finish()
                    return

    def _too_long(self) -> RequestError:
        limit_s = self._service.options.session_limit_s
        message = f"the stream is longer than {limit_s:g} s, the longest that this server allows"
        return RequestError(message, code="session_limit")

    def _stop_expiry(self) -> None:
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
