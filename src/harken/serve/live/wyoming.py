"""The Wyoming protocol, by which Home Assistant and satellites send what somebody says.

Audio is decoded while it comes. The text is that of an offline transcription: a ``transcript-chunk`` is a segment that
is final, so the chunks joined are the transcript, and nothing that was shown is taken back.

A frame is a line of JSON, then data as JSON, then a payload, each of a size that is bounded.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any, BinaryIO, Literal
from urllib.parse import urlsplit

from harken.decoding.logit_rules import fitting_hotwords
from harken.errors import OptionError
from harken.option_types import checked_value
from harken.serve.errors import NORMAL, RequestError, object_in, request_error
from harken.serve.live.audio import AudioFormat
from harken.serve.live.connection import IDLE, SEND_LIMIT_S, Session, cancelled
from harken.serve.live.translator import Audio, CloseStream, DropStream, HangUp, Outputs, Translator
from harken.serve.options import host_and_port
from harken.serve.service import Service
from harken.serve.waiting import in_daemon_thread
from harken.serve.work.engine import Failed
from harken.serve.work.jobs import LiveUpdate, OpenStream
from harken.streaming import FinalSegment, StreamOptions
from harken.text import LANGUAGES, from_language_tag
from harken.transcribe import TranscribeOptions
from harken.version import __version__

MAX_CONNECTIONS = 256
ALLOWED_URIS = "tcp://HOST:PORT, unix:///PATH or stdio://"
COPY_BYTES = 1 << 16
LINGER_S = 2.0
"""Longest time for which what a client still sends is read, and dropped, after the end of its session: a connection
that is closed with unread bytes is reset, and the client loses the error that it was sent."""
MAX_LINE_BYTES = 1 << 16
MAX_DATA_BYTES = 1 << 16
MAX_PAYLOAD_BYTES = 1 << 20
FORMATS: Mapping[int, str] = MappingProxyType({1: "u8", 2: "s16le", 4: "s32le"})
"""Formats of samples, by their bytes."""
STREAM_OPTIONS = StreamOptions(delay="high")
"""Nobody sees words before they are final, so few updates are enough."""
END_OF_INPUT = ""
"""Type of the event that stands for the end of what a client sends; it may still read."""
INVALID_FRAME = "invalid_frame"
ATTRIBUTION = MappingProxyType({"name": "OpenAI", "url": "https://github.com/openai/whisper"})
ENGLISH_ONLY_SUFFIX = ".en"


@dataclass(frozen=True, slots=True)
class WyomingEvent:
    """An event."""

    type: str
    data: dict[str, Any]
    payload: bytes = b""


class WyomingTranslator(Translator):
    """A client with any number of utterances one after another, as a translator.

    Home Assistant waits for a transcript and takes nothing else for an answer but the end of the connection. So
    audio that could not be transcribed ends the connection when it stops, behind the event ``error``; after other
    errors the connection goes on.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._model = service.models.ids[0]
        self._options: TranscribeOptions | None = TranscribeOptions()  # None if the last request was refused
        self._utterance: Literal["none", "open", "failed"] = "none"
        self._texts: list[str] = []
        self._language: str | None = None

    def received(self, message: WyomingEvent) -> Outputs:
        try:
            match message.type:
                case "describe":
                    yield encode_event("info", info(self._service))
                case "ping":
                    yield encode_event("pong", {"text": message.data.get("text")})
                case "transcribe":
                    self._prepare(message.data)
                case "audio-start":
                    yield from self._start(message.data)
                case "audio-chunk":
                    yield from self._take(message)
                case "audio-stop":
                    yield from self._stop()
                case _ if message.type == END_OF_INPUT:
                    yield HangUp(NORMAL, "the client has sent all")
        except Exception as error:
            yield _error_event(error)
            if message.type.startswith("audio-"):
                self._utterance = "failed"
                yield DropStream()
            if message.type == "audio-stop":
                yield from self._stop()

    def updated(self, update: LiveUpdate) -> Outputs:
        match update:
            case Failed(failure=failure):
                self._utterance = "failed"
                yield _error_event(failure)
            case FinalSegment(segment=segment):
                text = segment.text if self._texts else segment.text.lstrip()
                if not self._texts:
                    self._language = segment.language
                    yield self._event("transcript-start")
                self._texts.append(text)
                yield encode_event("transcript-chunk", {"text": text})

    def ended(self, problem: RequestError) -> Outputs:
        if problem.code == INVALID_FRAME:
            yield _error_event(problem)
        elif problem.code != IDLE and self._utterance == "open":
            yield from self._stop()
        yield HangUp(NORMAL, str(problem))

    def _prepare(self, data: Mapping[str, Any]) -> None:
        """Note the model and the options of the utterances that follow."""
        self._options = None
        name = checked_value("name", data.get("name"), str | None)
        self._model = self._service.models.resolve(name or self._service.models.ids[0])
        names, terms = (
            checked_value(field, data.get(field) or (), tuple[str, ...])
            for field in ("transcript_names", "transcript_terms")
        )
        language = from_language_tag(checked_value("language", data.get("language"), str | None))
        self._options = TranscribeOptions(language=language, hotwords=fitting_hotwords((*names, *terms)))

    def _start(self, data: Mapping[str, Any]) -> Outputs:
        """Begin an utterance; one that has not been stopped is lost."""
        self._utterance = "failed"  # unless it is opened
        self._texts, self._language = [], None
        yield DropStream()
        _audio_format(data)
        if self._options:
            self._utterance = "open"
            yield OpenStream(self._model, self._options, STREAM_OPTIONS)

    def _take(self, event: WyomingEvent) -> Outputs:
        if self._utterance == "none":
            yield from self._start(event.data)
        if self._utterance == "open":
            yield Audio(event.payload, _audio_format(event.data))

    def _stop(self) -> Outputs:
        """Answer the utterance; end the connection if there is no answer."""
        yield CloseStream()
        if self._utterance == "failed":
            yield HangUp(NORMAL, "the audio was not transcribed")
            return
        self._utterance = "none"
        if not self._texts:
            yield self._event("transcript-start")
        yield self._event("transcript", text="".join(self._texts))
        yield encode_event("transcript-stop", {})
        self._texts, self._language = [], None

    def _event(self, type: str, **data: Any) -> bytes:
        """Return an event with the language, if it is known."""
        return encode_event(type, data | ({"language": self._language} if self._language else {}))


class WyomingLine:
    """Events over a stream.

    Parameters
    ----------
    reader : StreamReader
        With a limit of `MAX_LINE_BYTES`.
    writer : StreamWriter
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._has_ended = False

    async def receive(self) -> WyomingEvent | None:
        if self._has_ended:
            await asyncio.Event().wait()  # the session ends by what was received
        try:
            event = await read_event(self._reader)
        except OSError:
            return None
        self._has_ended = event is None
        return event or WyomingEvent(END_OF_INPUT, {})

    async def send(self, message: bytes) -> None:
        self._writer.write(message)
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                await self._writer.drain()
        except TimeoutError:
            raise ConnectionAbortedError("the client does not read") from None

    async def close(self, code: int, reason: str) -> None:
        with suppress(OSError):
            self._writer.write_eof()


async def read_event(reader: asyncio.StreamReader) -> WyomingEvent | None:
    """Read the next event; None at the end.

    Parameters
    ----------
    reader : StreamReader
        With a limit of `MAX_LINE_BYTES`.

    Raises
    ------
    RequestError
        If it is malformed or too large, before memory is taken for it.
    """
    try:
        header = _as_object(await reader.readuntil(b"\n"), "the line of an event")
        kind = header.get("type")
        if not isinstance(kind, str):
            raise _invalid_frame("type: missing; allowed is the name of an event")
        data_bytes = await reader.readexactly(_length(header, "data_length", MAX_DATA_BYTES))
        payload = await reader.readexactly(_length(header, "payload_length", MAX_PAYLOAD_BYTES))
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise _invalid_frame(f"the line of an event is longer than {MAX_LINE_BYTES} bytes") from None
    inline = header.get("data") or {}
    if not isinstance(inline, dict):
        raise _invalid_frame("data: allowed is an object")
    separate = _as_object(data_bytes, "the data of an event") if data_bytes else {}
    return WyomingEvent(kind, inline | separate, payload)


def encode_event(kind: str, data: Mapping[str, Any]) -> bytes:
    """Return the frame of an event without a payload."""
    data_bytes = json.dumps(data).encode() if data else b""
    length = {"data_length": len(data_bytes)} if data_bytes else {}
    return json.dumps({"type": kind} | length).encode() + b"\n" + data_bytes


def _length(header: dict[str, Any], name: str, limit: int) -> int:
    length = header.get(name) or 0
    if not isinstance(length, int) or not 0 <= length <= limit:
        raise _invalid_frame(f"{name}={str(length)[:40]}: allowed is 0 to {limit}")
    return length


def _as_object(text: bytes, name: str) -> dict[str, Any]:
    return object_in(text, _invalid_frame(f"{name} is no JSON object"))


def info(service: Service) -> dict[str, Any]:
    """Return the data of the event ``info``.

    A client is to say where the audio stops: within it, pauses end utterances, but never the request. So
    ``requires_external_vad`` is true.
    """
    program = {
        "name": "harken",
        "attribution": {"name": "harken", "url": "https://pypi.org/project/harken"},
        "installed": True,
        "description": "Whisper speech recognition",
        "version": __version__,
        "models": [_model(service, id) for id in service.models.ids],
        "supports_transcript_streaming": True,
        "requires_external_vad": True,
        "prefers_auto_gain_enabled": False,
        "prefers_noise_reduction_enabled": False,
    }
    return {"asr": [program]}


def _model(service: Service, id: str) -> dict[str, Any]:
    return {
        "name": id,
        "attribution": dict(ATTRIBUTION),
        "installed": True,
        "description": f"Whisper {id}",
        "version": None,
        "languages": _languages(service, id),
    }


def _languages(service: Service, id: str) -> list[str]:
    """Return the languages of a model; of one that is not in memory by its name, as clients wait a second only."""
    for model in service.models.loaded:
        if model.id == id:
            return model.languages
    return ["en"] if id.endswith(ENGLISH_ONLY_SUFFIX) else [*LANGUAGES]


def _audio_format(data: Mapping[str, Any]) -> AudioFormat:
    """Return the format in the data of an event."""
    rate, width, channels = (checked_value(name, data.get(name), int) for name in ("rate", "width", "channels"))
    if width not in FORMATS:
        raise OptionError("width", width, f"{', '.join(map(str, FORMATS))} bytes")
    return AudioFormat(format=FORMATS[width], rate=rate, channels=channels)


def _error_event(error: BaseException) -> bytes:
    problem = request_error(error)
    return encode_event("error", {"text": str(problem), "code": problem.code or problem.type})


def _invalid_frame(message: str) -> RequestError:
    return RequestError(message, code=INVALID_FRAME)


# --- the doors: TCP, a Unix socket, or standard input and output ---

OnConnect = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serve_wyoming(service: Service, uri: str, on_end: Callable[[], object]) -> AsyncIterator[str]:
    """Serve clients of the Wyoming protocol while the block runs; yield the address, with the port that was free.

    Parameters
    ----------
    service : Service
    uri : str
        ``tcp://HOST:PORT``, ``unix:///PATH`` or ``stdio://``. There are no keys in this protocol, so any client that
        can connect is served.
    on_end : callable
        Called when the client at standard input and output has gone; others come and go.

    Raises
    ------
    OptionError
        If the address has another form, is in use, or not of this machine.
    """
    parts = urlsplit(uri)
    connections: set[asyncio.Task[Any]] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        assert task
        connections.add(task)
        try:
            await Session(service, WyomingTranslator(service)).run(WyomingLine(reader, writer))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    while await reader.read(COPY_BYTES):
                        pass
        except asyncio.CancelledError:  # the server ends
            return
        finally:
            writer.close()
            connections.discard(task)

    match parts.scheme:
        case "tcp":
            listening = _listen_tcp(uri, connect)
        case "unix":
            listening = _listen_unix(uri, connect)
        case "stdio":
            listening = _connect_stdio(connect, on_end)
        case _:
            raise OptionError("wyoming", uri, ALLOWED_URIS)
    async with listening as address:
        try:
            yield address
        finally:
            await cancelled(*connections)


@asynccontextmanager
async def _listen_tcp(uri: str, connect: OnConnect) -> AsyncIterator[str]:
    host, port = host_and_port(uri, OptionError("wyoming", uri, ALLOWED_URIS))
    try:
        server = await asyncio.start_server(connect, host, port, limit=MAX_LINE_BYTES)
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(
            "wyoming", uri, f"an address of this machine, with a port that is free: {reason}"
        ) from None
    try:
        name = f"[{host}]" if ":" in host else host
        yield f"tcp://{name}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def _listen_unix(uri: str, connect: OnConnect) -> AsyncIterator[str]:
    parts = urlsplit(uri)
    path = Path(parts.path)
    if not hasattr(asyncio, "start_unix_server"):
        raise OptionError("wyoming", uri, "tcp://HOST:PORT or stdio://: this system has no Unix sockets")
    if parts.netloc or not parts.path:
        raise OptionError("wyoming", uri, ALLOWED_URIS)
    try:
        _check_unused(path)
        server = await asyncio.start_unix_server(connect, path, limit=MAX_LINE_BYTES)
    except OSError as error:
        reason = error.strerror or error
        raise OptionError("wyoming", uri, f"a path where a socket can be made: {reason}") from None
    try:
        yield uri
    finally:
        server.close()
        path.unlink(missing_ok=True)


def _check_unused(path: Path) -> None:
    """Raise `OSError` if a server listens there, which asyncio would push aside like a dead one."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as client, suppress(ConnectionRefusedError):
            client.connect(os.fspath(path))
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@asynccontextmanager
async def _connect_stdio(connect: OnConnect, on_end: Callable[[], object]) -> AsyncIterator[str]:
    """Connect standard input and output by threads, as no event loop can wait for them on all systems."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
    Thread(target=_copy_input, args=(sys.stdin.buffer, theirs), name="harken stdin", daemon=True).start()
    copy_output = partial(_copy_output, theirs, sys.stdout.buffer)
    writing = asyncio.create_task(in_daemon_thread(copy_output, "harken stdout"))

    async def serve() -> None:
        await connect(reader, writer)
        with suppress(ConnectionError):
            await writer.wait_closed()
        await writing
        on_end()

    serving = asyncio.create_task(serve())
    try:
        yield "stdio://"
    finally:
        await cancelled(serving, writing)
        writer.close()
        theirs.close()


def _copy_input(source: BinaryIO, target: socket.socket) -> None:
    with suppress(OSError, ValueError):  # the server has ended
        while data := os.read(source.fileno(), COPY_BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _copy_output(source: socket.socket, target: BinaryIO) -> None:
    with suppress(OSError, ValueError):  # nobody reads any more
        while data := source.recv(COPY_BYTES):
            while data:  # without a buffer, whose lock would keep the process from ending while nobody reads
                data = data[os.write(target.fileno(), data) :]
