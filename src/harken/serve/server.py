"""The server as a process: it listens, says where, and ends when it is told to."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from harken.api import Recognizer
from harken.errors import OptionError
from harken.serve.app import make_app
from harken.serve.live.vosk import make_vosk_app
from harken.serve.live.wyoming import serve_wyoming
from harken.serve.options import ServeOptions, host_and_port
from harken.serve.service import Service
from harken.serve.waiting import first_of
from harken.speakers.diarizer import Diarizer

log = logging.getLogger("harken.serve")

STDIO = "stdio://"
MAX_FRAME_BYTES = 16 << 20
"""Largest message of a WebSocket: an append of 15 MiB in base64, as OpenAI's clients may send."""
CLOSE_S = 5
"""Seconds that connections have to close once all work has ended."""
BACKLOG = 2048
OF_CLIENTS = ("without completing handshake", "Invalid UTF-8 sequence")
"""In uvicorn's errors about WebSockets that were refused, and closed for a text that is none."""
ANSWERED_TWICE = "LocalProtocolError"
"""Of h11: the application answers a body that is not framed as HTTP wants it, which uvicorn has refused already."""
FIRST_REQUEST_S = 30.0
"""Seconds from a connection to the end of the headers of its first request."""


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers: `run` has work to end first."""

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()


class HttpProtocol(H11Protocol):
    """uvicorn's protocol, which closes connections that ask for nothing: each takes one of the files of the process.

    The other one, by httptools, loses the bodies of Java's clients, which offer HTTP/2 with each request.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(FIRST_REQUEST_S, self._close_if_silent, transport)

    def _close_if_silent(self, transport: asyncio.Transport) -> None:
        if transport.is_closing():
            return  # a closed one of TLS knows no protocol
        if self.cycle is None and transport.get_protocol() is self:  # else it is a WebSocket
            transport.close()


async def run(
    load: Callable[[str], Recognizer],
    ids: Sequence[str],
    aliases: Mapping[str, str],
    options: ServeOptions,
    announce: Callable[[str], None],
    on_signals: Callable[[Callable[[int], object]], AbstractContextManager[None]],
    load_diarizer: Callable[[], Diarizer],
) -> bool:
    """Serve until a signal comes; then take no more work, send the finals of streams, and finish the files.

    Parameters
    ----------
    load : callable
        Loads the model of an id.
    ids : sequence of str
        Models that are offered; the first is the default.
    aliases : mapping
        Further names of models.
    options : ServeOptions
    announce : callable
        Called with the address, once requests are answered.
    on_signals : callable
        Returns a block in which a function is called, in the main thread, with every signal that ends the process.
    load_diarizer : callable
        Loads what tells speakers apart.

    Returns
    -------
    bool
        False if a second signal ended it before all work was done.

    Raises
    ------
    OptionError
        If the address is in use or not of this machine, or the certificate cannot be read.
    """
    _configure_log(options.log_format)
    async with AsyncExitStack() as stack:
        service = Service(load, ids, options, aliases, load_diarizer)
        stack.push_async_callback(service.close)
        stopping, at_once = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            loop.call_soon_threadsafe((at_once if stopping.is_set() else stopping).set)

        stack.enter_context(on_signals(stop))
        if options.wyoming != STDIO:
            await stack.enter_async_context(listening(make_app(service), options, announce))
        if options.vosk:
            vosk = listening(
                make_vosk_app(service), options, announce, _listen_for_vosk(options.vosk), scheme="ws"
            )
            await stack.enter_async_context(vosk)
        if options.wyoming:
            announce(await stack.enter_async_context(serve_wyoming(service, options.wyoming, stopping.set)))
        unloading = asyncio.create_task(service.unload_idle_models())
        stack.callback(unloading.cancel)
        if options.preload:
            await first_of(service.preload(), stopping.wait())
        await stopping.wait()
        log.info("draining")
        finished = await first_of(service.drain(), at_once.wait()) == 0
        await service.close()  # before the connections, so that all are told
        return finished


@asynccontextmanager
async def listening(
    app: ASGIApp,
    options: ServeOptions,
    announce: Callable[[str], None],
    listener: socket.socket | None = None,
    *,
    scheme: str = "http",
) -> AsyncIterator[None]:
    """Have an application answer HTTP requests and WebSockets in the block, by default where the options say.

    The other arguments are as for `run`.
    """
    listener = listener or _listen(options.host, options.port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        http=HttpProtocol,
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # a pong waits behind the audio of a fast sender; connections have their own idle limit
        timeout_graceful_shutdown=CLOSE_S,
        ssl_certfile=options.certfile,
        ssl_keyfile=options.keyfile,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise OptionError(
            "certfile", options.certfile, f"a certificate and its key; this is none: {error}"
        ) from error
    server = _Uvicorn(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        announce(f"{scheme}{'s' if options.certfile else ''}://{host}:{port}")
        yield
    finally:
        server.should_exit = True
        await serving


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror or error)
        if isinstance(error, socket.gaierror):
            raise OptionError("host", host, f"an address of this machine: {reason}") from error
        raise OptionError("port", port, f"a port of {host} that is free: {reason}") from error


def _listen_for_vosk(address: str) -> socket.socket:
    """Listen at ``HOST:PORT``."""
    otherwise = OptionError("vosk", address, "HOST:PORT, such as 127.0.0.1:2700")
    host, port = host_and_port(f"ws://{address}", otherwise)
    try:
        return _listen(host, port)
    except OptionError as error:
        raise OptionError("vosk", address, error.allowed) from None


def _configure_log(log_format: str) -> None:
    """Write the log of the server to standard error: lines of text, or of JSON for machines; never what was said."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter() if log_format == "json" else _TextFormatter("%(asctime)s %(message)s")
    )
    for name in ("harken", "uvicorn.error", "asyncio"):  # the first also says what loading had to do without
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.getLogger("harken.serve").setLevel(logging.INFO)
    for name in ("uvicorn.error", "asyncio"):  # their warnings are of clients that have gone
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes what damaged forms hold


def _is_news(record: logging.LogRecord) -> bool:
    """Tell if a line of uvicorn says more than the one about the request, whose client was told what is wrong."""
    error = record.exc_info[0] if record.exc_info else None
    of_client = error is not None and error.__name__ == ANSWERED_TWICE
    return not (of_client or any(known in record.getMessage() for known in OF_CLIENTS))


class _TextFormatter(logging.Formatter):
    """A line with the time, the event and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items() if value != "")
        return f"{super().format(record)} {fields}".rstrip()


class _JsonFormatter(logging.Formatter):
    """A line with a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line | _fields(record))


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields
