"""The own WebSocket, /v1/stream: audio in, the events of `harken listen --json` out, and no word lost in between.

Two kinds of messages come from the server: events, which have ``event``, and answers, which have ``type``.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from harken.formats import dump_json
from harken.serve.close_codes import ABNORMAL, NORMAL, POLICY_VIOLATION, RESTART, TOO_BIG, TRY_LATER, UNFORESEEN
from harken.serve.errors import RequestError
from harken.serve.service import Service
from harken.serve.streams.hello import Resume, parse_first_message
from harken.serve.streams.resumable_session import ResumableSession
from harken.serve.streams.resumable_sessions import ResumableSessions
from harken.serve.waiting import first_of

SUBPROTOCOL = "realtime"
"""What browsers offer beside the key in a subprotocol; they refuse a server that chooses none."""
MAX_AUDIO_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 18
CLOSE_CODES = {413: TOO_BIG, 429: TRY_LATER, 500: UNFORESEEN, 503: TRY_LATER}
"""Close codes of errors, by their status; a client's own errors are violations of policy."""
IDLE = "idle"
SEND_LIMIT_S = 30.0
"""Seconds that a reader may take for a message before its connection counts as lost."""


def routes(service: Service) -> list[BaseRoute]:
    """Return the route of the WebSocket."""
    sessions = ResumableSessions(service)

    async def stream(websocket: WebSocket) -> None:
        offered = websocket.scope["subprotocols"]
        await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        await _Connection(service, sessions, websocket).run()

    return [WebSocketRoute("/v1/stream", stream)]


class _Connection:
    """One connection of a client."""

    def __init__(self, service: Service, sessions: ResumableSessions, websocket: WebSocket) -> None:
        self._service, self._sessions, self._websocket = service, sessions, websocket
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Serve the client up to the end of the stream or of the connection."""
        try:
            await self._serve()
            await self._websocket.close(NORMAL)
        except WebSocketDisconnect:
            return
        except RequestError as error:
            with suppress(WebSocketDisconnect, RuntimeError):  # gone meanwhile
                await self._refuse(error)

    async def _serve(self) -> None:
        message = parse_first_message(await self._receive_object())
        if isinstance(message, Resume):
            session, seq = self._sessions.resume(message), message.seq
        else:
            session, seq = self._sessions.open(message), 0
        async with session.connected() as taken_over:
            with self._service.in_progress():
                await self._converse(session, seq, taken_over)

    async def _converse(self, session: ResumableSession, seq: int, taken_over: asyncio.Event) -> None:
        """Send the messages behind a number, and take those of the client."""
        session.check_kept(seq)
        try:
            await self._send(await session.ready(seq))
        except (RequestError, WebSocketDisconnect):  # nobody knows how to resume it
            if not session.received:
                session.cancel()
            raise
        await first_of(self._send_all(session, seq), self._receive_all(session), _raise_when(taken_over))

    async def _send_all(self, session: ResumableSession, seq: int) -> None:
        """Send the messages of a session, up to its end."""
        async for text in session.log.after(seq):
            await self._send_text(text)
        if session.failure:
            raise session.failure
        await self._send({"type": "done", "seq": session.log.last})

    async def _receive_all(self, session: ResumableSession) -> None:
        """Take the messages of the client, until it goes."""
        try:
            while True:
                # Who has ended the stream may wait for its last events in silence.
                message = await self._receive(None if session.ended else self._service.options.idle_s)
                if isinstance(message, bytes):
                    await session.take(message)
                else:
                    await self._obey(session, _as_object(message))
        except RequestError as error:
            if error.code != IDLE:
                session.cancel()
            raise

    async def _obey(self, session: ResumableSession, message: dict[str, Any]) -> None:
        match message:
            case {"type": "flush"}:
                await session.flush()
            case {"type": "end"}:
                await session.end()
            case {"type": "ping"}:
                await self._send({"type": "pong"})
            case {"type": "ack", "seq": int(seq)}:
                session.log.acknowledge(seq)
            case _:
                allowed = "binary audio, or an object of type flush, end, ping, or ack with a seq"
                raise RequestError(
                    f"this message is unknown; allowed is {allowed}", code="invalid_value", param="type"
                )

    async def _receive_object(self) -> dict[str, Any]:
        message = await self._receive(self._service.options.idle_s)
        if isinstance(message, bytes):
            raise RequestError("audio came before the hello; the first message is JSON", code="invalid_value")
        return _as_object(message)

    async def _receive(self, idle_s: float | None) -> str | bytes:
        try:
            message = await asyncio.wait_for(self._websocket.receive(), idle_s)
        except TimeoutError:
            raise RequestError(f"no message came for {idle_s:g} s; send audio or a ping", code=IDLE) from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        data: str | bytes = message.get("bytes") or message.get("text") or b""
        limit = MAX_AUDIO_BYTES if isinstance(data, bytes) else MAX_TEXT_BYTES
        if len(data) > limit:
            raise RequestError(
                f"a message of {len(data)} bytes; allowed are {MAX_AUDIO_BYTES} of audio, {MAX_TEXT_BYTES} of text",
                status=413,
                code="message_too_big",
            )
        return data

    async def _send(self, fields: dict[str, Any]) -> None:
        await self._send_text(dump_json(fields))

    async def _send_text(self, text: str) -> None:
        async with self._sending:
            try:
                async with asyncio.timeout(SEND_LIMIT_S):
                    await self._websocket.send_text(text)
            except TimeoutError:
                raise WebSocketDisconnect(ABNORMAL) from None

    async def _refuse(self, error: RequestError) -> None:
        """Tell why, and close."""
        if self._websocket.application_state is WebSocketState.CONNECTED:
            retry = {} if error.retry_after_s is None else {"retry_after_s": error.retry_after_s}
            fields = {"type": "error", "code": error.code, "message": str(error), "param": error.param} | retry
            await self._send(fields)
            await self._websocket.close(close_code(error), error.code)


def close_code(error: RequestError) -> int:
    """Return the code to close a WebSocket with."""
    return RESTART if error.code == "draining" else CLOSE_CODES.get(error.status, POLICY_VIOLATION)


def _as_object(message: str | bytes) -> dict[str, Any]:
    """Return the object in a message of text."""
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestError("a message of text is no JSON object", code="invalid_json")
    return value


async def _raise_when(taken_over: asyncio.Event) -> None:
    await taken_over.wait()
    raise RequestError("another connection has resumed this session", code="taken_over")
