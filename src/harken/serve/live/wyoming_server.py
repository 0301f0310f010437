"""The doors for clients of the Wyoming protocol: TCP, a Unix socket, or standard input and output."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from harken.errors import OptionError
from harken.serve.live.connection import Session
from harken.serve.live.wyoming import MAX_LINE_BYTES, WyomingLine, WyomingTranslator
from harken.serve.service import Service
from harken.serve.waiting import call_soon

MAX_CONNECTIONS = 256
ALLOWED_URIS = "tcp://HOST:PORT, unix:///PATH or stdio://"
COPY_BYTES = 1 << 16

OnConnect = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class WyomingServer:
    """A server that listens.

    Attributes
    ----------
    uri : str
        Where it listens; with the port that was free if any was wanted.
    ended : asyncio.Event
        Set when the client at standard input and output has gone; others come and go.
    """

    uri: str
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def serve_wyoming(service: Service, uri: str) -> AsyncIterator[WyomingServer]:
    """Serve clients of the Wyoming protocol while the block runs.

    Parameters
    ----------
    service : Service
    uri : str
        ``tcp://HOST:PORT``, ``unix:///PATH`` or ``stdio://``. There are no keys in this protocol, so any client that
        can connect is served.

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
            listening = _connect_stdio(connect)
        case _:
            raise OptionError("wyoming", uri, ALLOWED_URIS)
    async with listening as server:
        try:
            yield server
        finally:
            open_connections = [*connections]
            for task in open_connections:
                task.cancel()
            await asyncio.gather(*open_connections, return_exceptions=True)


@asynccontextmanager
async def _listen_tcp(uri: str, connect: OnConnect) -> AsyncIterator[WyomingServer]:
    try:
        host, port = urlsplit(uri).hostname, urlsplit(uri).port
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise OptionError("wyoming", uri, ALLOWED_URIS)
    try:
        server = await asyncio.start_server(connect, host, port, limit=MAX_LINE_BYTES)
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(
            "wyoming", uri, f"an address of this machine, with a port that is free: {reason}"
        ) from None
    try:
        name = f"[{host}]" if ":" in host else host
        yield WyomingServer(f"tcp://{name}:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()


@asynccontextmanager
async def _listen_unix(uri: str, connect: OnConnect) -> AsyncIterator[WyomingServer]:
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
        yield WyomingServer(uri)
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
async def _connect_stdio(connect: OnConnect) -> AsyncIterator[WyomingServer]:
    """Connect standard input and output by threads, as no event loop can wait for them on all systems."""
    server = WyomingServer("stdio://")
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES)
    Thread(target=_copy_input, args=(sys.stdin.buffer, theirs), name="harken stdin", daemon=True).start()
    loop, written = asyncio.get_running_loop(), asyncio.Event()

    def copy_output() -> None:
        _copy_output(theirs, sys.stdout.buffer)
        call_soon(loop, written.set)

    Thread(target=copy_output, name="harken stdout", daemon=True).start()

    async def serve() -> None:
        await connect(reader, writer)
        with suppress(ConnectionError):
            await writer.wait_closed()
        await written.wait()
        server.ended.set()

    serving = asyncio.create_task(serve())
    try:
        yield server
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
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
