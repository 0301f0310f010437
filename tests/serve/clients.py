"""Clients of all protocols in memory, all alike: what they send waits in a queue."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import threading
from base64 import b64encode
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import numpy as np
from leaping import leap, leaping
from served_audio import FORM_TYPE, file_form, wav
from talking import Gate, TalkingRecognizer, TurnsDiarizer

from fakes.live_sessions import WORD_SAMPLES
from harken.errors import CheckpointNotFound
from harken.serve.app import make_app
from harken.serve.live.connection import Session
from harken.serve.live.vosk import make_vosk_app
from harken.serve.live.wyoming import WyomingLine, WyomingTranslator, encode_event
from harken.serve.options import ServeOptions
from harken.serve.service import Service

WORD_S = 0.1
Scene = Callable[..., Coroutine[Any, Any, None]]


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is true; the limit of the test is the limit."""
    while not condition():
        await asyncio.sleep(0.001)


class Client:
    """The other end of a connection: ``serve`` runs the server's side of it.

    Each has ``text``, all that has become final; ``errors``, the codes of those that came; and ``speakers``, who said
    each of the results that became final, if its protocol tells; usually of its ``results`` and ``error_code``.
    """

    resumable = asks_for_speakers = False
    rate_hz = 16_000
    end: Any
    """What says that all has been said."""

    def __init__(self, stage: Stage) -> None:
        self.unread: asyncio.Queue[Any] = asyncio.Queue()  # by the server; None is the end
        self.messages: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.close_code: int | None = None  # set once the connection was closed, or a request answered
        self.serving = asyncio.create_task(self.serve(stage))

    async def open(self) -> None:
        """Do what comes before audio."""

    def results(self) -> list[tuple[str, Any]]:
        """Return text and speaker of what has become final."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        return " ".join(text.strip() for text, _ in self.results())

    @property
    def speakers(self) -> list[str]:
        return [speaker for _, speaker in self.results()]

    @property
    def errors(self) -> list[str | None]:
        return [code for message in self.messages if (code := self.error_code(message))]

    def say(self, n_words: int) -> None:
        """Send the audio of some words, a second at most in a message."""
        for start in range(0, n_words, 10):
            self.send_audio(min(10, n_words - start) * WORD_S)

    def send_audio(self, seconds: float) -> None:
        self.send(bytes(2 * round(seconds * self.rate_hz)))

    def send(self, message: Any) -> None:
        self.unread.put_nowait(message)

    def finish(self) -> None:
        self.send(self.end)

    def vanish(self) -> None:
        self.unread.put_nowait(None)


class _Socket(Client):
    """A WebSocket of the application."""

    path, query = "", b""
    query_for_speakers = b""
    close_reason = ""
    _has_connected = False

    async def serve(self, stage: Stage) -> None:
        scope = {
            "type": "websocket",
            "path": self.path,
            "headers": [(b"host", b"localhost")],
            "query_string": self.query + self.query_for_speakers * self.asks_for_speakers,
            "subprotocols": [],
        }
        app = make_vosk_app(stage.service) if self.path == "/" else stage.app
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._has_connected:
            self._has_connected = True
            return {"type": "websocket.connect"}
        return await self.unread.get() or {"type": "websocket.disconnect", "code": 1006}

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.send":
            await self.reads.wait()
            self.messages.append(json.loads(message["text"]))
        elif message["type"] == "websocket.close":
            self.close_code, self.close_reason = message["code"], message["reason"] or ""
        elif message["type"] == "websocket.http.response.start":
            self.close_code = message["status"]
        elif message["type"] == "websocket.http.response.body":
            self.messages.append(json.loads(message["body"]))

    def send(self, message: dict[str, Any] | str | bytes) -> None:
        key = "bytes" if isinstance(message, bytes) else "text"
        text = json.dumps(message) if isinstance(message, dict) else message
        super().send({"type": "websocket.receive", key: text})


class OwnClient(_Socket):
    path, end = "/v1/stream", {"type": "end"}
    resumable = True

    def __init__(self, stage: Stage, **first: Any) -> None:
        speakers = {"speakers": True} if self.asks_for_speakers else {}
        self._stage, self._first = stage, {"type": "hello"} | speakers | first
        super().__init__(stage)

    async def open(self) -> None:
        self.send(self._first)
        await until(lambda: self.messages or self.serving.done())

    async def closed(self) -> int | None:
        """Wait for the end of the connection; return its code."""
        await until(self.serving.done)
        return self.close_code

    async def resumed(self, seq: int) -> OwnClient:
        """Connect to the same stream again, with the messages up to a number."""
        ready = self.messages[0]
        wanted = {"session": ready["session"], "token": ready["resume_token"], "seq": seq}
        again: OwnClient = await self._stage.connect(OwnClient, type="resume", **wanted)
        return again

    async def came(self, **expected: Any) -> dict[str, Any]:
        """Wait for a message with some fields; return the first."""

        def found() -> dict[str, Any] | None:
            return next((each for each in self.messages if expected.items() <= each.items()), None)

        await until(found)
        return found() or {}

    def results(self) -> list[tuple[str, Any]]:
        segments = [message["segment"] for message in self.messages if "segment" in message]
        return [(segment["text"], segment.get("speaker")) for segment in segments]

    def error_code(self, message: Any) -> str | None:
        return message["code"] if message.get("type") == "error" else None


class RealtimeClient(_Socket):
    path, end = "/v1/realtime", {"type": "input_audio_buffer.commit"}
    query_for_speakers = b"intent=transcription&model=gpt-4o-transcribe-diarize"

    async def open(self) -> None:
        await until(lambda: self.messages)

    def send_audio(self, seconds: float) -> None:
        data = b64encode(bytes(2 * round(seconds * 24_000))).decode()
        self.send({"type": "input_audio_buffer.append", "audio": data})

    @property
    def text(self) -> str:
        deltas: dict[str, str] = {}
        for message in self.messages:
            if message["type"].endswith(".delta"):
                deltas[message["item_id"]] = deltas.get(message["item_id"], "") + message["delta"]
        completed = [message for message in self.messages if message["type"].endswith(".completed")]
        assert all(message["transcript"] == deltas[message["item_id"]] for message in completed)
        return " ".join(message["transcript"] for message in completed)

    @property
    def speakers(self) -> list[str]:
        return [message["speaker"] for message in self.messages if message["type"].endswith(".segment")]

    def error_code(self, message: Any) -> str | None:
        return message["error"]["code"] if message["type"] == "error" else None


class VoskClient(_Socket):
    path, end, rate_hz = "/", '{"eof" : 1}', 8_000

    async def open(self) -> None:
        if self.asks_for_speakers:
            self.send({"config": {"speakers": True}})

    def results(self) -> list[tuple[str, Any]]:
        told = [message for message in self.messages if message.get("text")]
        for each in told:
            assert all(word.get("speaker") == each.get("speaker") for word in each.get("result", ()))
        return [(each["text"], each.get("speaker")) for each in told]

    @property
    def errors(self) -> list[str | None]:
        return [self.close_reason.partition(":")[0]] if self.close_reason else []


class DeepgramClient(_Socket):
    path, query = "/v1/listen", b"encoding=linear16&sample_rate=16000&interim_results=true&model=nova-3"
    query_for_speakers, end = b"&diarize=true", {"type": "CloseStream"}

    def results(self) -> list[tuple[str, Any]]:
        told = [each["channel"]["alternatives"][0] for each in self.messages if each.get("is_final")]
        numbers = [{word.get("speaker", 0) for word in each["words"]} for each in told]
        said = [
            (each["transcript"], own) for each, own in zip(told, numbers, strict=True) if each["transcript"]
        ]
        return [(text, "AB"[number]) for text, (number,) in said]

    def error_code(self, message: Any) -> str | None:
        return message["variant"] if message["type"] == "Error" else None


class WyomingClient(Client):
    """A client of the Wyoming protocol; it is its own reader and writer of the server's side."""

    FORMAT: ClassVar = {"rate": 16_000, "width": 2, "channels": 1}
    end = encode_event("audio-stop", {})
    _rest = b""

    async def serve(self, stage: Stage) -> None:
        reader: Any = self
        await Session(stage.service, WyomingTranslator(stage.service)).run(WyomingLine(reader, reader))

    async def readuntil(self, separator: bytes) -> bytes:
        return await self._read(lambda data: data.find(separator) + 1)

    async def readexactly(self, n_bytes: int) -> bytes:
        return await self._read(lambda data: n_bytes if len(data) >= n_bytes else 0) if n_bytes else b""

    async def _read(self, length: Callable[[bytes], int]) -> bytes:
        while not (n_bytes := length(self._rest)):
            if (data := await self.unread.get()) is None:
                raise asyncio.IncompleteReadError(self._rest, None)
            self._rest += data
        data, self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        return data

    def write(self, frame: bytes) -> None:
        head, _, data = frame.partition(b"\n")
        self.messages.append(json.loads(head) | {"data": json.loads(data or b"{}")})

    async def drain(self) -> None:
        await self.reads.wait()

    def write_eof(self) -> None:
        self.close_code = 0

    def send_audio(self, seconds: float) -> None:
        data = bytes(2 * round(seconds * 16_000))
        head = {"type": "audio-chunk", "data": self.FORMAT, "payload_length": len(data)}
        self.send(json.dumps(head).encode() + b"\n" + data)

    def _told(self, type: str, field: str) -> list[str | None]:
        return [message["data"][field] for message in self.messages if message["type"] == type]

    @property
    def text(self) -> str:
        text = "".join(self._told("transcript-chunk", "text"))
        assert self._told("transcript", "text") in ([], [text])
        return text

    @property
    def errors(self) -> list[str | None]:
        return self._told("error", "code")


class FileClient(Client):
    """A client of the REST API, which sends all that it says as a file."""

    method, path, query = "POST", "/v1/audio/transcriptions", b""
    fields: ClassVar = {"model": "tiny.en"}
    _headers: dict[bytes, bytes]

    async def serve(self, stage: Stage) -> None:
        headers = [(b"host", b"localhost"), (b"content-type", FORM_TYPE.encode())]
        address = {"path": self.path, "query_string": self.query}
        scope = {"type": "http", "method": self.method, "headers": headers} | address
        await stage.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        body = await self.unread.get()
        return {"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.close_code, self._headers = message["status"], dict(message["headers"])
        else:
            data = message["body"].decode().rpartition("data: ")[2].strip()
            self.messages += [json.loads(data)] if data.startswith("{") else []

    def say(self, n_words: int) -> None:
        self.send(file_form(wav(np.zeros(n_words * WORD_SAMPLES, np.float32)), **self.fields))

    def finish(self) -> None:
        return

    @property
    def text(self) -> str:
        return "".join(message["text"] for message in self.messages if "text" in message)

    @property
    def errors(self) -> list[str | None]:
        if self.close_code in (429, 503):
            assert int(self._headers[b"retry-after"]) >= 1
        elif self.close_code not in (None, 200):
            assert self._headers[b"x-should-retry"] == b"false"
        return self.error_codes()

    def error_codes(self) -> list[str | None]:
        return [message["error"]["code"] for message in self.messages if "error" in message]


class CaptionViewer(FileClient):
    """Who watches the captions of the name ``talk``; its messages are captions."""

    method, path = "GET", "/v1/captions/talk"

    async def open(self) -> None:
        await until(lambda: self.close_code)


class DeepgramFileClient(FileClient):
    """A client of Deepgram's API, which sends a recording as the body."""

    path, query = "/v1/listen", b"model=2-phonecall&smart_format=true"

    def say(self, n_words: int) -> None:
        self.send(wav(np.zeros(n_words * WORD_SAMPLES, np.float32)))

    @property
    def text(self) -> str:
        results = [message["results"]["channels"][0] for message in self.messages if "results" in message]
        return "".join(channel["alternatives"][0]["transcript"] for channel in results)

    def error_codes(self) -> list[str | None]:
        return [message["err_code"] for message in self.messages if "err_code" in message]


class StreamedFileClient(FileClient):
    """A client to which the text of a file is streamed; it counts the comments, by which pauses are shown."""

    fields: ClassVar = {"model": "tiny.en", "stream": "true"}
    n_pauses = 0

    async def _send(self, message: Any) -> None:
        await super()._send(message)
        self.n_pauses += message.get("body") == b": \n\n"

    @property
    def text(self) -> str:
        deltas = "".join(message.get("delta", "") for message in self.messages)
        assert super().text in ("", deltas)
        return deltas


def asking(protocol: type[Client], **fields: Any) -> type[Client]:
    """Return a protocol whose clients ask for something."""
    return type(protocol.__name__, (protocol,), fields)


class Stage:
    """A service whose model, behind a `Gate`, hears a word in each tenth of a second, and those who talk with it."""

    def __init__(self, gate_from: float, options: dict[str, Any]) -> None:
        self.gate = Gate(gate_from)
        self.model: Any = TalkingRecognizer(self.gate.hear)
        given = ServeOptions(**{"preload": False} | options)
        self.tells_speakers = True  # False if the models for that are missing
        self.service = Service(lambda id: self.model, ["tiny.en", "tiny"], given, {}, self._load_diarizer)
        self.app = make_app(self.service)
        self._clients: list[Client] = []

    def _load_diarizer(self) -> Any:
        if not self.tells_speakers:
            raise CheckpointNotFound("/secret/speakers: no such model")
        return TurnsDiarizer()

    @property
    def n_held(self) -> int:
        """Number of streams and files that hold a slot."""
        return self.service.admission.n_streams + self.service.admission.n_files

    async def connect(self, protocol: type[Client], *, says: int = 0, ends: bool = False, **first: Any) -> Any:
        """Return a client that has said some words, maybe all; its own protocol's first message may have fields."""
        client = protocol(self, **first)
        self._clients.append(client)
        await client.open()
        if says:
            client.say(says)
        if ends:
            client.finish()
        return client

    async def clear(self) -> None:
        """See that nothing is left when all have gone."""
        for client in self._clients:
            client.reads.set()
            client.vanish()
        await asyncio.gather(*(client.serving for client in self._clients))
        while self.n_held or len(asyncio.all_tasks()) > 1:
            await leap(self.service.options.resume_s + 1)


def played(*, gate_from: float = math.inf, **options: Any) -> Callable[[Scene], Callable[..., None]]:
    """Make a test of a scene, which gets a `Stage` before its fixtures; in the end nothing must be left."""

    def make_test(scene: Scene) -> Callable[..., None]:
        async def play(*values: Any, **fixtures: Any) -> None:
            others, stage = {*threading.enumerate()}, Stage(gate_from, options)
            try:
                await scene(stage, *values, **fixtures)
                await stage.clear()
            finally:
                await stage.service.close()
            await until(lambda: not any(map(_is_engine, {*threading.enumerate()} - others)))

        signature = inspect.signature(scene)
        _, *parameters = signature.parameters.values()
        play.__signature__ = signature.replace(parameters=parameters)
        play.__name__ = scene.__name__
        return leaping(play)

    return make_test


def _is_engine(thread: threading.Thread) -> bool:
    return thread.name.startswith("harken tiny")
