"""The own WebSocket, /v1/stream: audio in, the events of `harken listen --json` out, and no word lost in between.

Two kinds of messages come from the server: events, which have ``event``, and answers, which have ``type``. A stream
outlasts the connections of its client, who may resume it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from secrets import token_hex, token_urlsafe
from types import MappingProxyType
from typing import Any

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from harken.errors import OptionError
from harken.formats import dump_json
from harken.option_types import check, checked_value
from harken.serve.errors import NORMAL, RequestError, object_in, request_error
from harken.serve.live.audio import AudioFormat
from harken.serve.live.connection import (
    ANSWERED,
    IDLE,
    MAX_TEXT_BYTES,
    Session,
    WebSocketLine,
    accept,
    received,
)
from harken.serve.live.outgoing import ReplayLog
from harken.serve.live.translator import Audio, CloseStream, Flush, HangUp, Outputs, Translator
from harken.serve.service import Service
from harken.serve.waiting import first_of
from harken.serve.work.captions import shared_as
from harken.serve.work.engine import Failed
from harken.serve.work.jobs import Flushed, LiveUpdate, OpenStream
from harken.serve.work.models import Models
from harken.streaming import StreamOptions
from harken.streaming.latency import LatencyPlan
from harken.text import from_language_tag
from harken.transcribe import TranscribeOptions

MAX_AUDIO_BYTES = 1 << 20
TAKEN_OVER, NOT_KEPT = "taken_over", "messages_not_kept"
RESUMABLE = (IDLE, TAKEN_OVER, NOT_KEPT)
"""Codes of errors that end a connection, but not its stream."""
TRANSCRIBE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "task": "task",
        "hotwords": "hotwords",
        "replace": "replace",
        "prompt": "initial_prompt",
        "words": "word_timestamps",
    }
)
"""Fields of a hello, and the options of a transcription that they set."""
STREAM_FIELDS = tuple(field.name for field in fields(StreamOptions))
PARAMS = MappingProxyType({option: name for name, option in TRANSCRIBE_FIELDS.items()} | {"file": "audio"})

Hello = tuple[OpenStream, AudioFormat]
"""The wish for a new stream, and the format of its audio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The wish to go on with a stream after a lost connection."""

    # Both are from the message ``ready``.
    session: str
    token: str
    seq: int = 0  # number of the last message that was received

    def __post_init__(self) -> None:
        check(self)


def routes(service: Service) -> list[BaseRoute]:
    """Return the route of the WebSocket."""
    streams = _Streams(service)

    async def serve(websocket: WebSocket) -> None:
        await accept(websocket)
        line = _StreamLine(websocket, MAX_TEXT_BYTES, MAX_AUDIO_BYTES)
        try:
            try:
                await streams.serve(line, shared_as(websocket.query_params))
            except RequestError as problem:
                await line.send(_error_fields(problem))
                await line.close(problem.close_code, problem.code or "")
        except ConnectionError:
            return

    return [WebSocketRoute("/v1/stream", serve)]


class _StreamLine(WebSocketLine):
    """Messages over a WebSocket: objects and audio. Pings are answered while the server works."""

    async def receive(self) -> Any:
        message = await super().receive()
        if isinstance(message, str):
            message = object_in(
                message, RequestError("a message of text is no JSON object", code="invalid_json")
            )
            if message.get("type") == "ping":
                await self.send({"type": "pong"})
                return ANSWERED
        return message

    async def send(self, message: Any) -> None:
        await super().send(message if isinstance(message, str) else dump_json(message))


class _Streams:
    """The streams that somebody is connected to, or may resume."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._streams: dict[str, ResumableStream] = {}

    async def serve(self, line: _StreamLine, captions: str | None) -> None:
        """Serve a connection; a stream that it opens is shared under a name, if there is one.

        Raises
        ------
        RequestError
            To be told to its client, before it is closed.
        """
        message = await received(line, self._service.options.idle_s)
        if message is None:
            return
        if isinstance(message, bytes):
            raise RequestError("audio came before the hello; the first message is JSON", code="invalid_value")
        wanted = parse_first_message(message, self._service.models)
        if isinstance(wanted, Resume):
            stream, seq = self._find(wanted), wanted.seq
        else:
            stream, seq = await self._open(*wanted, captions), 0
        try:
            await stream.serve(line, seq)
        except RequestError as problem:
            stream.refused |= problem.code not in RESUMABLE
            raise
        finally:
            if stream.refused:
                await stream.forget()

    async def _open(self, wish: OpenStream, audio: AudioFormat, captions: str | None) -> ResumableStream:
        """Open a stream. Of those that hold no slot and nobody, the oldest cannot be resumed when there are many."""
        idle = [stream for stream in self._streams.values() if stream.idle]
        for stream in idle[: max(0, len(idle) - self._service.options.max_streams)]:
            await stream.forget()
        try:
            plan = await self._service.plan(wish)
        except Exception as error:
            raise request_error(error, PARAMS) from error
        return ResumableStream(self._service, self._streams, wish, audio, plan, captions)

    def _find(self, resume: Resume) -> ResumableStream:
        stream = self._streams.get(resume.session)
        token = stream.token if stream else ""
        if not hmac.compare_digest(token.encode(), resume.token.encode()) or not stream:
            message = (
                "there is no such session, or it has another token; sessions end "
                f"{self._service.options.resume_s:g} s after a connection was lost"
            )
            raise RequestError(message, status=404, code="session_not_found", param="session")
        return stream


class ResumableStream(Translator):
    """A stream as its translator, and who is connected to it.

    Parameters
    ----------
    service : Service
    streams : dict
        Those that may be resumed, by their id; it is one of them until it is forgotten.
    wish : OpenStream
        What it is opened with at its first audio.
    audio : AudioFormat
    plan : LatencyPlan
        What its client is told of its latency.
    captions : str or None
        As for `Session`.

    Attributes
    ----------
    id, token : str
        Its name, and the secret by which its client resumes it.
    session : Session
    refused : bool
        True once the client has done what is not allowed; then nobody may resume it.
    """

    def __init__(
        self,
        service: Service,
        streams: dict[str, ResumableStream],
        wish: OpenStream,
        audio: AudioFormat,
        plan: LatencyPlan,
        captions: str | None,
    ) -> None:
        self.id, self.token = token_hex(8), token_urlsafe(24)
        self.refused = False
        self._streams = streams
        streams[self.id] = self
        self._service, self._wish, self._audio, self._plan = service, wish, audio, plan
        self._log = ReplayLog()
        self._is_open = self._has_ended = False
        self._n_bytes = self._n_flushes = 0
        self._problem: RequestError | None = None  # for which the stream is closed
        self._turn, self._taken_over = asyncio.Lock(), asyncio.Event()
        self._expiry: asyncio.Task[None] | None = None
        limit_s = service.options.session_limit_s
        self.session = Session(service, self, limit_s=limit_s, kept=self._log, captions=captions)

    @property
    def idle(self) -> bool:
        """True if it has ended; or if nobody is connected, and no audio has come."""
        return self.session.over or not (self._is_open or self._turn.locked())

    async def serve(self, line: _StreamLine, seq: int) -> None:
        """Serve a connection that has the messages up to a number; one that is served already ends.

        Raises
        ------
        RequestError
            To be told to its client, before it is closed.
        """
        self._check(seq)
        self._taken_over.set()
        self._taken_over = taken_over = asyncio.Event()  # which a newer connection sets, and waits for its turn
        async with self._turn:
            if self._expiry:
                self._expiry.cancel()
            try:
                self._check(seq)  # the other connection may have acknowledged more
                with self._service.in_progress():
                    await line.send(self._ready(seq))
                    ended = await first_of(self.session.serve(line, seq), taken_over.wait())
                if ended == 1:
                    raise RequestError("another connection has resumed this session", code=TAKEN_OVER)
            finally:
                self._expiry = asyncio.create_task(self.forget(self._service.options.resume_s))

    def _check(self, seq: int) -> None:
        first, last = self._log.forgotten, self._log.last
        if not first <= seq <= last:
            message = f"seq={seq}: allowed is {first} to {last}; earlier messages are not kept any more"
            raise RequestError(message, code=NOT_KEPT, param="seq")

    async def forget(self, after_s: float = 0.0) -> None:
        """End it, now or after some seconds, and let nobody resume it."""
        await asyncio.sleep(after_s)
        self._streams.pop(self.id, None)
        await self.session.aclose()

    def received(self, message: dict[str, Any] | bytes) -> Outputs:
        try:
            yield from self._take(message)
        except Exception as error:
            yield from self._close(request_error(error, PARAMS))

    def _take(self, message: dict[str, Any] | bytes) -> Outputs:
        match message:
            case {"type": "ack", "seq": int(seq)}:
                self._log.acknowledge(seq)
            case {"type": "end"}:
                self._has_ended = True
                yield from self._close()
            case bytes():
                self._n_bytes += len(message)
                if not self._is_open:
                    self._is_open = True
                    yield self._wish
                yield Audio(message, self._audio)
            case {"type": "flush"}:
                self._n_flushes += 1
                yield Flush()
            case _:
                allowed = "binary audio, or an object of type flush, end, ping, or ack with a seq"
                problem = f"this message is unknown; allowed is {allowed}"
                self.refused = True
                yield self._last(RequestError(problem, code="invalid_value", param="type"))

    def updated(self, update: LiveUpdate) -> Outputs:
        match update:
            case Failed(failure=failure):
                yield self._last(request_error(failure, PARAMS))
            case Flushed():
                yield {"type": "flushed"}
            case event:
                yield event

    def ended(self, problem: RequestError) -> Outputs:
        yield from self._close(None if self._has_ended else problem)

    def _close(self, problem: RequestError | None = None) -> Outputs:
        """End the stream behind its last events; the problem is why, if its client does not want it to."""
        self._problem = self._problem or problem
        yield CloseStream()
        yield self._last(problem)

    def _last(self, problem: RequestError | None) -> HangUp:
        """Return what the session ends with; the first problem counts."""
        self._has_ended = True
        if problem := self._problem or problem:
            return HangUp(problem.close_code, problem.code or "", _error_fields(problem))
        return HangUp(NORMAL, "", {"type": "done", "seq": self._log.last})

    def _ready(self, seq: int) -> dict[str, Any]:
        return {
            "type": "ready",
            "session": self.id,
            "resume_token": self.token,
            "model": self._wish.model,
            "delay": self._wish.stream_options.delay,
            "bound_ms": self._plan.bound.total_ms,
            "resume_s": self._service.options.resume_s,
            "received": self._n_bytes,
            "flushes": self._n_flushes,
            "ended": self._has_ended,
            "seq": seq,
        }


def _error_fields(problem: RequestError) -> dict[str, Any]:
    retry = {} if problem.retry_after_s is None else {"retry_after_s": problem.retry_after_s}
    return {"type": "error", "code": problem.code, "message": str(problem), "param": problem.param} | retry


def parse_first_message(message: Mapping[str, Any], models: Models) -> Hello | Resume:
    """Return what a client wants.

    Raises
    ------
    RequestError
        If a field is unknown, missing, or has a value that is not allowed; it names the field.
    """
    given = dict(message)
    kind = given.pop("type", None)
    try:
        if kind == "hello":
            return _hello(given, models)
        if kind == "resume":
            return Resume(**_known(Resume, given))
    except OptionError as error:
        raise request_error(error, PARAMS) from error
    allowed = 'allowed is {"type": "hello", ...} or {"type": "resume", ...}'
    raise RequestError(f"the first message has another type; {allowed}", code="invalid_value", param="type")


def _hello(given: dict[str, Any], models: Models) -> Hello:
    model = checked_value("model", given.pop("model", None), str | None)
    speakers = checked_value("speakers", given.pop("speakers", False), bool)
    audio = given.pop("audio", {})
    if not isinstance(audio, dict):
        raise OptionError("audio", audio, "an object such as {'format': 's16le', 'rate': 16000}")
    language = from_language_tag(checked_value("language", given.pop("language", None), str | None))
    options = {option: given.pop(name) for name, option in TRANSCRIBE_FIELDS.items() if name in given}
    stream_options = {name: given.pop(name) for name in STREAM_FIELDS if name in given}
    if given:
        known = ("model", "language", "audio", "speakers", *TRANSCRIBE_FIELDS, *STREAM_FIELDS)
        raise OptionError(next(iter(given)), next(iter(given.values())), f"one of {', '.join(known)}")
    wish = TranscribeOptions(language=language, **options), StreamOptions(**stream_options)
    model = models.resolve(model or models.ids[0])
    return OpenStream(model, *wish, speakers=speakers), AudioFormat(**_known(AudioFormat, audio))


def _known(kind: type[Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return what is given for a dataclass, if it has these fields, and all without a default are there."""
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for name, value in given.items():
        if name not in known:
            raise OptionError(name, value, f"one of {', '.join(known)}")
    for name, needed in known.items():
        if needed and name not in given:
            raise OptionError(name, None, "the value that the server has sent")
    return given
