"""The pump between a WebSocket and a state machine: who is too fast or too slow waits, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest
from harken.serve.live.realtime_config import SessionConfig
from harken.serve.live.realtime import RealtimeSession
from harken.serve.live.connection import MAX_UNSENT, serve_socket
from realtime_script import MANUAL, pcm
from starlette.websockets import WebSocket
from talking import TalkingRecognizer, words_said

from harken.serve.options import ServeOptions
from harken.serve.service import Service
from harken.serve.work.live_job import MAX_EVENTS, MAX_PENDING_S
from harken.streaming import StreamOptions
from harken.transcribe import TranscribeOptions

WAIT_S = 30.0


class Client:
    """The other end of a WebSocket: what it sends waits in `to_server`, what it got is in `messages`.

    Attributes
    ----------
    reads : asyncio.Event
        Not set while the client does not read.
    closed : tuple or None
        Code and reason with which the server closed.
    """

    def __init__(self) -> None:
        self.to_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.to_server.put_nowait({"type": "websocket.connect"})
        self.messages: list[dict[str, Any]] = []
        self.reads, self.got = asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.closed: tuple[int, str] | None = None
        self.socket = WebSocket({"type": "websocket"}, self.to_server.get, self._take)

    async def _take(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "websocket.send":
            self.messages.append(json.loads(message["text"]))
        elif message["type"] == "websocket.close":
            self.closed = message["code"], message["reason"]
        self.got.set()

    def send(self, type: str, **fields: Any) -> None:
        self.send_text(json.dumps({"type": type} | fields))

    def send_text(self, text: str) -> None:
        self.to_server.put_nowait({"type": "websocket.receive", "text": text})

    def append(self, seconds: float) -> None:
        self.send("input_audio_buffer.append", audio=pcm(seconds))

    def vanish(self) -> None:
        self.to_server.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def until(self, type: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many messages of a type have come, and return them."""
        while len(found := [message for message in self.messages if message["type"].endswith(type)]) < count:
            self.got.clear()
            await asyncio.wait_for(self.got.wait(), WAIT_S)
        return found

    def text(self) -> str:
        """Return all deltas, with a space between items."""
        texts: dict[str, str] = {}
        for message in self.messages:
            if message["type"].endswith(".delta"):
                texts[message["item_id"]] = texts.get(message["item_id"], "") + message["delta"]
        return " ".join(texts.values())


@asynccontextmanager
async def connected(
    recognizer: TalkingRecognizer | None = None,
    *,
    session: Any = None,
    send_limit_s: float = WAIT_S,
    **options: Any,
) -> AsyncIterator[tuple[Client, Service, asyncio.Task[None]]]:
    """Connect a client to a session; the pump has ended behind the block, and nothing is in use."""
    served = recognizer or TalkingRecognizer()
    service = Service(lambda id: served, ["tiny.en"], ServeOptions(preload=False, **options), {})
    client = Client()
    await client.socket.accept()
    machine = session or RealtimeSession(SessionConfig(), service.models.resolve)
    pump = asyncio.create_task(serve_socket(client.socket, service, machine, send_limit_s=send_limit_s))
    try:
        yield client, service, pump
        client.vanish()
        await asyncio.wait_for(pump, WAIT_S)
        await until(lambda: service.admission.n_streams == 0)
    finally:
        await service.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def running(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@running
async def test_what_is_said_comes_back() -> None:
    async with connected() as (client, _, _):
        client.append(1.05)
        completed = await client.until(".completed", 2)
        assert " ".join(event["transcript"] for event in completed) == client.text() == words_said(10)


@running
async def test_a_sender_that_is_too_fast_waits() -> None:
    go_on = Event()
    async with connected(TalkingRecognizer(lambda samples: go_on.wait(WAIT_S))) as (client, _, _):
        for _ in range(60):
            client.append(1)
        await until(lambda: client.to_server.qsize() < 60)
        for _ in range(200):
            await asyncio.sleep(0)
        assert client.to_server.qsize() > 60 - MAX_PENDING_S - 5
        go_on.set()
        completed = await client.until(".completed", 119)
        assert " ".join(event["transcript"] for event in completed)[:200] == words_said(600)[:200]


@running
async def test_a_slow_reader_costs_no_memory_and_loses_nothing() -> None:
    fed: list[int] = []
    async with connected(TalkingRecognizer(fed.append)) as (client, _, _):
        client.reads.clear()
        for _ in range(120):
            client.append(1)
        await until(lambda: len(fed) > 0)
        n_fed = -1
        while n_fed != len(fed):  # until its engine waits
            n_fed = len(fed)
            await asyncio.sleep(0.05)
        assert len(fed) < MAX_EVENTS + MAX_UNSENT
        assert client.to_server.qsize() > 120 - MAX_EVENTS - MAX_UNSENT
        client.reads.set()
        await client.until(".completed", 239)
        assert client.text().split()[:1195] == words_said(1195).split()


@running
async def test_a_reader_that_takes_nothing_is_given_up() -> None:
    async with connected(send_limit_s=0.05) as (client, service, pump):
        client.reads.clear()
        client.append(3)
        await asyncio.wait_for(pump, WAIT_S)
        await until(lambda: service.admission.n_streams == 0)


@running
async def test_a_client_that_vanishes_frees_its_stream() -> None:
    async with connected() as (client, service, pump):
        client.append(0.3)
        await client.until(".delta")
        assert service.admission.n_streams == 1
        client.vanish()
        await asyncio.wait_for(pump, WAIT_S)
        await until(lambda: service.admission.n_streams == 0)
        assert client.closed is None


@running
async def test_the_end_of_the_server_brings_the_last_words_before_it_hangs_up() -> None:
    async with connected() as (client, service, pump):
        client.append(0.35)
        await client.until(".delta")
        await asyncio.wait_for(service.drain(), WAIT_S)
        assert pump.done()
        assert client.closed == (1012, "the server is about to end")
        (completed,) = await client.until(".completed")
        assert completed["transcript"] == words_said(3)
        assert client.messages[-1]["error"]["code"] == "draining"


@running
async def test_the_end_of_the_server_commits_what_the_client_has_not() -> None:
    async with connected() as (client, service, _):
        client.send("session.update", session=MANUAL)
        client.append(0.35)
        await client.until(".delta")
        await asyncio.wait_for(service.drain(), WAIT_S)
        assert [event["transcript"] for event in await client.until(".completed")] == [words_said(3)]


@running
async def test_a_session_that_has_lasted_as_long_as_it_may_ends_with_its_finals() -> None:
    async with connected(session_limit_s=0.5) as (client, _, pump):
        client.append(0.35)
        await asyncio.wait_for(pump, WAIT_S)
        assert client.closed == (1000, "the session has lasted 0.5 s")
        assert [event["transcript"] for event in await client.until(".completed")] == [words_said(3)]
        assert client.messages[-1]["error"]["code"] == "session_expired"


@running
async def test_a_connection_without_messages_is_closed() -> None:
    async with connected(idle_s=0.05) as (client, _, pump):
        await asyncio.wait_for(pump, WAIT_S)
        assert client.closed == (1000, "no message has come for 0.05 s")


@running
async def test_a_message_that_is_too_long_ends_the_session() -> None:
    async with connected() as (client, _, pump):
        client.send_text(" " * (16 << 20))
        await asyncio.wait_for(pump, WAIT_S)
        assert client.closed is not None
        assert client.closed[0] == 1009


@running
async def test_a_server_without_room_says_so() -> None:
    async with connected(max_streams=1) as (client, service, pump):
        async with service.stream("tiny.en", TranscribeOptions(), StreamOptions()):
            client.append(0.1)
            await asyncio.wait_for(pump, WAIT_S)
        assert client.messages[-1]["error"]["code"] == "server_busy"
        assert client.closed is not None
        assert client.closed[0] == 1013


@running
async def test_other_options_take_another_stream_and_lose_no_word() -> None:
    async with connected() as (client, service, _):
        client.append(0.35)
        transcription = {"prompt": "Names."}
        client.send("session.update", session={"audio": {"input": {"transcription": transcription}}})
        client.append(0.25)
        client.send("input_audio_buffer.commit")
        completed = await client.until(".completed", 2)
        assert [event["transcript"] for event in completed] == [words_said(3), words_said(2)]
        assert service.admission.n_streams == 1


class _Broken(RealtimeSession):
    def received(self, message: str | bytes) -> Any:
        raise ArithmeticError("a mistake")


def test_a_mistake_of_the_server_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def connect() -> None:
        async with connected(session=_Broken(SessionConfig(), lambda name: name)) as (client, _, pump):
            client.append(0.1)
            await asyncio.wait_for(pump, WAIT_S)
            assert client.closed == (1011, "the server did not foresee this")

    asyncio.run(connect())
    assert "ArithmeticError" in caplog.text
