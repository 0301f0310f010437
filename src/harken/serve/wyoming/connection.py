"""The Wyoming protocol, by which Home Assistant and satellites send what somebody says.

Audio is decoded while it comes. The text is that of an offline transcription: a ``transcript-chunk`` is a segment that
is final, so the chunks joined are the transcript, and nothing that was shown is taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from logging import getLogger
from typing import Any

from harken.option_types import checked_value
from harken.serve.errors import RequestError, request_error
from harken.serve.service import Service
from harken.serve.wyoming.frames import FrameError, WyomingEvent, encode_event, read_event
from harken.serve.wyoming.info import info, transcribe_options
from harken.serve.wyoming.utterance import Utterance, audio_format, send_transcript
from harken.streaming import StreamOptions
from harken.transcribe import TranscribeOptions

log = getLogger("harken.serve")

STREAM_OPTIONS = StreamOptions(delay="high")
"""Nobody sees words before they are final, so few updates are enough."""

SEND_LIMIT_S = 30.0
"""Seconds that a reader may take for an event before it counts as gone."""


class WyomingConnection:
    """A connection of a client, with any number of utterances one after another.

    Home Assistant waits for a transcript and takes nothing else for an answer but the end of the connection. So
    audio that could not be transcribed ends the connection when it stops, behind the event ``error``; after other
    errors the connection goes on.

    Parameters
    ----------
    service : Service
    reader : StreamReader
    writer : StreamWriter
    """

    def __init__(self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._service, self._reader, self._writer = service, reader, writer
        self._model = service.models.ids[0]
        self._options: TranscribeOptions | None = TranscribeOptions()  # None if the last request was refused
        self._utterance: Utterance | None = None
        self._stream = AsyncExitStack()
        self._failed = False

    async def run(self) -> None:
        """Serve the client until it goes, or the server ends."""
        draining = asyncio.create_task(self._service.draining.wait())
        try:
            while await self._serve_next(draining):
                pass
        except FrameError as error:
            await self._send_error(error)
        except OSError:
            return
        finally:
            draining.cancel()
            await self._abandon()
            self._writer.close()

    async def _serve_next(self, draining: asyncio.Task[Any]) -> bool:
        """Serve the next event; return whether another may follow."""
        reading = asyncio.create_task(read_event(self._reader))
        try:
            idle_s = self._service.options.idle_s if self._utterance else None
            await asyncio.wait((reading, draining), timeout=idle_s, return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                if self._utterance:
                    await self._serve(WyomingEvent("audio-stop", {}))
                return False
            if not reading.done():
                return False
            event = reading.result()
        finally:
            reading.cancel()
        return event is not None and await self._serve(event)

    async def _serve(self, event: WyomingEvent) -> bool:
        try:
            match event.type:
                case "describe":
                    await self._send("info", info(self._service))
                case "ping":
                    await self._send("pong", {"text": event.data.get("text")})
                case "transcribe":
                    self._prepare(event.data)
                case "audio-start":
                    await self._start(event.data)
                case "audio-chunk":
                    await self._take(event)
                case "audio-stop":
                    return await self._stop()
        except ConnectionError:
            raise
        except Exception as error:
            await self._send_error(error)
        return True

    def _prepare(self, data: Mapping[str, Any]) -> None:
        """Note the model and the options of the utterances that follow."""
        self._options = None
        name = checked_value("name", data.get("name"), str | None)
        self._model = self._service.models.resolve(name or self._service.models.ids[0])
        self._options = transcribe_options(data)

    async def _start(self, format: Mapping[str, Any]) -> None:
        """Begin an utterance."""
        await self._abandon()
        self._failed = True
        audio_format(format)
        if self._options:
            opening = self._service.stream(self._model, self._options, STREAM_OPTIONS)
            job = await self._stream.enter_async_context(opening)
            self._utterance = Utterance(job, self._send, self._service.options.session_limit_s)
            self._failed = False

    async def _take(self, event: WyomingEvent) -> None:
        if not (self._utterance or self._failed):
            await self._start(event.data)
        if self._utterance:
            try:
                await self._utterance.take(event.payload, audio_format(event.data))
            except Exception:
                await self._abandon()
                self._failed = True
                raise

    async def _stop(self) -> bool:
        """Answer the utterance; return whether the connection goes on."""
        if self._failed:
            return False
        if not self._utterance:
            await send_transcript(self._send, "", None, started=False)
            return True
        try:
            await self._utterance.finish()
        except ConnectionError:
            raise
        except Exception as error:
            await self._send_error(error)
            return False
        finally:
            await self._abandon()
        return True

    async def _abandon(self) -> None:
        """Give back what an utterance holds."""
        if self._utterance:
            await self._utterance.abandon()
            self._utterance = None
        await self._stream.aclose()

    async def _send(self, kind: str, data: Mapping[str, Any]) -> None:
        self._writer.write(encode_event(kind, data))
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                await self._writer.drain()
        except TimeoutError:
            raise ConnectionAbortedError("the client does not read") from None

    async def _send_error(self, error: Exception) -> None:
        if isinstance(error, FrameError):
            await self._send("error", {"text": str(error), "code": "invalid_frame"})
            return
        problem = request_error(error)
        if problem.status >= 500 and not isinstance(error, RequestError):
            log.error("an utterance failed", exc_info=error)
        await self._send("error", {"text": str(problem), "code": problem.code or problem.type})
