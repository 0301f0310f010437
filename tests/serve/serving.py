"""A server for tests: the application of a service, on a free port, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any

import httpx
import openai
import pytest
from leaping import LeapLoop, leap
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response
from websockets.sync.client import connect

from harken.api import Recognizer
from harken.errors import CheckpointNotFound
from harken.serve.app import make_app
from harken.serve.options import ServeOptions
from harken.serve.server import listening
from harken.serve.service import Service
from harken.speakers.diarizer import Diarizer

MAX_WAIT_S = 60.0
"""Longest wait for anything; only a failure takes as long."""


@dataclass(frozen=True)
class Serving:
    """A server that runs, whose service is to be used in its own event loop: see `run`."""

    port: int
    service: Service
    loop: asyncio.AbstractEventLoop
    http: httpx.Client
    clients: ExitStack  # closes those of OpenAI at the end

    @property
    def url(self) -> str:
        """Address without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        """The same for WebSockets."""
        return f"ws://127.0.0.1:{self.port}"

    def client(self, key: str = "none") -> openai.OpenAI:
        """Return OpenAI's client."""
        client = openai.OpenAI(
            api_key=key, base_url=f"{self.url}/v1", websocket_base_url=f"{self.socket_url}/v1"
        )
        self.clients.callback(client.close)
        return client

    def refusal(self, path: str, **given: Any) -> Response:
        """Return the response to a WebSocket that is refused."""
        with pytest.raises(InvalidStatus) as refused:
            connect(f"{self.socket_url}{path}", **given).close()
        return refused.value.response

    def run(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine function in the event loop of the service."""

        async def call() -> Any:
            return await function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(MAX_WAIT_S)

    def leap_until(self, condition: Callable[[], object]) -> None:
        """Let the server's time pass until something is true; the limit of the test is the limit."""
        while not condition():
            self.run(partial(leap, 10.0))

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric as Prometheus reads it; 0 if it has not been counted yet."""
        shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        sample = f"{name}{{{shown}}} " if shown else f"{name} "
        lines = self.service.metrics.text().decode().splitlines()
        return next((float(line.removeprefix(sample)) for line in lines if line.startswith(sample)), 0.0)


def no_speakers() -> Diarizer:
    raise CheckpointNotFound("speakers: no such model")


@contextmanager
def serving(
    load: Callable[[str], Recognizer],
    ids: Sequence[str] = ("tiny.en",),
    options: ServeOptions | None = None,
    aliases: Mapping[str, str] | None = None,
    load_diarizer: Callable[[], Diarizer] = no_speakers,
) -> Iterator[Serving]:
    """Serve models on a free port while the block runs; `load` is called in a thread, once a model is asked for."""
    listener = socket.create_server(("127.0.0.1", 0))  # takes connections from now on
    started: Future[tuple[Service, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        given, stopping = options or ServeOptions(preload=False), asyncio.Event()
        service = Service(load, ids, given, aliases or {}, load_diarizer)
        async with listening(make_app(service), given, lambda address: None, listener):
            started.set_result((service, asyncio.get_running_loop(), stopping))
            await stopping.wait()
            await service.close()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=LeapLoop) as runner:
                runner.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = Thread(target=run, name="server under test", daemon=True)
    thread.start()
    service, loop, stopping = started.result(MAX_WAIT_S)
    try:
        port = listener.getsockname()[1]
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=MAX_WAIT_S, verify=False) as http,
            ExitStack() as clients,
        ):
            yield Serving(port, service, loop, http, clients)
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(MAX_WAIT_S)
        listener.close()
    assert not thread.is_alive(), "the server has not ended"
