"""Clients of the server's live protocols: each speaks in real time, and tells what it sees and when."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from recordings import SAMPLE_RATE

BLOCK_BYTES = 2 * SAMPLE_RATE // 10
"""A tenth of a second of audio, in each message."""
LATE_S = 60
"""Time for the last words after the last audio."""

Fields = dict[str, Any]
Send = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True)
class LiveMessage:
    """A message of the server, and when it came, in seconds since the stream began."""

    fields: Fields
    came_s: float


@dataclass(frozen=True)
class Reply:
    """What came back of a stream, and why it did not end in order, with its last words; empty if it did."""

    messages: list[LiveMessage]
    problem: str


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A protocol, as far as speaking and reading takes it; messages are objects, or bytes of a whole frame."""

    path: str = ""
    """Behind the address of the server."""
    first: tuple[Any, ...] = ()
    last: tuple[Any, ...] = ()
    """Messages before and behind the audio."""
    frame: Callable[[bytes], Any] = bytes
    """Makes the message of a block of s16le at 16 kHz."""
    ends: Callable[[Fields], bool]
    """Tells whether a message, behind the audio, is the last one."""
    closes: bool = True
    """True if the server then closes the connection."""
    shown: Callable[[Fields], Iterable[Any]]
    """Returns the events that a message stands for, as far as they change what is shown."""


async def speak(url: str, dialect: Dialect, pcm: bytes) -> Reply:
    """Send a stream as it would be spoken, and return what came back."""
    from websockets.exceptions import WebSocketException

    messages: list[LiveMessage] = []
    ended = False
    try:
        async with (
            asyncio.timeout(len(pcm) / 2 / SAMPLE_RATE + LATE_S),
            connected(url + dialect.path) as (send, received),
        ):
            for message in dialect.first:
                await send(message)
            start_s = perf_counter()

            async def send_audio() -> None:
                for first in range(0, len(pcm), BLOCK_BYTES):
                    block = pcm[first : first + BLOCK_BYTES]
                    spoken_s = (first + len(block)) / 2 / SAMPLE_RATE
                    await asyncio.sleep(max(0.0, start_s + spoken_s - perf_counter()))
                    await send(dialect.frame(block))
                for message in dialect.last:
                    await send(message)

            sending = asyncio.create_task(send_audio())
            try:
                async for fields in received:
                    messages.append(LiveMessage(fields, perf_counter() - start_s))
                    ended = sending.done() and dialect.ends(fields)
                    if ended and not dialect.closes:
                        break
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except (OSError, WebSocketException) as error:
        return Reply(messages, repr(error))
    return Reply(messages, "" if ended else "it was closed early")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[Send, AsyncIterator[Fields]]]:
    """Connect by the protocol of the address; yield what sends a message, and the messages that come."""
    from websockets.asyncio.client import connect

    if url.startswith("tcp:"):
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)

        async def write(message: bytes) -> None:
            writer.write(message)
            await writer.drain()

        try:
            yield write, wyoming_events(reader)
        finally:
            writer.close()
    else:
        async with connect(url, compression=None, max_size=None, ping_interval=None) as socket:

            async def send(message: Any) -> None:
                await socket.send(json.dumps(message) if isinstance(message, dict) else message)

            yield send, (json.loads(message) async for message in socket)


async def wyoming_events(reader: asyncio.StreamReader) -> AsyncIterator[Fields]:
    """Yield events of the Wyoming protocol."""
    while head := await reader.readline():
        fields = json.loads(head)
        data = await reader.readexactly(fields.get("data_length", 0))
        yield {"type": fields["type"]} | json.loads(data or b"{}")


def own(hello: Fields) -> Dialect:
    """Return the server's own protocol, with a stream of these options."""
    audio = {"format": "s16le", "rate": SAMPLE_RATE, "channels": 1}

    def shown(fields: Fields) -> Iterable[Any]:
        match fields.get("event"):
            case "interim":
                yield interim(fields["committed"], fields["tentative"])
            case "final_segment":
                yield final(fields["segment"]["text"])
            case "speech_ended":
                yield speech_ended(fields["reason"])

    return Dialect(
        path="/v1/stream",
        first=({"type": "hello", "audio": audio} | hello,),
        last=({"type": "end"},),
        ends=lambda fields: fields.get("type") == "done",
        shown=shown,
    )


def realtime(delay: str) -> Dialect:
    """Return OpenAI's Realtime API, where the server detects turns."""
    audio = {"format": {"type": "audio/pcm", "rate": SAMPLE_RATE}, "transcription": {"delay": delay}}
    session = {"type": "transcription", "include": ["harken.interim"], "audio": {"input": audio}}

    def shown(fields: Fields) -> Iterable[Any]:
        kind = fields["type"].rpartition(".")[2]
        if kind == "interim":
            yield interim(fields["committed"], fields["tentative"])
        elif kind == "completed":
            yield final(fields["transcript"])
            yield speech_ended("silence")

    return Dialect(
        path="/v1/realtime?intent=transcription",
        first=({"type": "session.update", "session": session},),
        # An update is answered behind the words of the commit, which may be refused as empty.
        last=({"type": "input_audio_buffer.commit"}, {"type": "session.update", "session": {}}),
        frame=lambda block: {"type": "input_audio_buffer.append", "audio": b64encode(block).decode()},
        ends=lambda fields: fields["type"] == "session.updated",
        closes=False,
        shown=shown,
    )


def deepgram() -> Dialect:
    """Return Deepgram's live API."""

    def shown(fields: Fields) -> Iterable[Any]:
        if fields["type"] == "Results":
            text = fields["channel"]["alternatives"][0]["transcript"]
            if fields["is_final"]:
                yield final(text)
                yield speech_ended("silence")
            else:
                yield interim("", text)

    return Dialect(
        path=f"/v1/listen?encoding=linear16&sample_rate={SAMPLE_RATE}&interim_results=true",
        last=({"type": "CloseStream"},),
        ends=lambda fields: fields["type"] == "Metadata",
        shown=shown,
    )


def vosk() -> Dialect:
    """Return Vosk's protocol."""

    def shown(fields: Fields) -> Iterable[Any]:
        if text := fields.get("text"):
            yield final(text)
            yield speech_ended("silence")
        elif partial := fields.get("partial"):
            yield interim("", partial)

    return Dialect(
        first=({"config": {"sample_rate": SAMPLE_RATE}},),
        last=('{"eof" : 1}',),
        ends=lambda fields: "text" in fields,
        shown=shown,
    )


def wyoming() -> Dialect:
    """Return the Wyoming protocol, which has no tentative words."""
    audio = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}

    def frame(block: bytes) -> bytes:
        head = {"type": "audio-chunk", "data": audio, "payload_length": len(block)}
        return json.dumps(head).encode() + b"\n" + block

    def shown(fields: Fields) -> Iterable[Any]:
        if fields["type"] == "transcript-chunk":
            yield final(fields["text"])
            yield speech_ended("silence")

    return Dialect(
        last=(b'{"type": "audio-stop"}\n',),
        frame=frame,
        ends=lambda fields: fields["type"] == "transcript",
        closes=False,
        shown=shown,
    )


_NOWHERE: Fields = {"audio_s": 0.0, "emitted_samples": 0, "compute_s": 0.0}


def interim(committed: str, tentative: str) -> Any:
    """Return the event of an utterance in progress."""
    from harken.streaming import Interim

    return Interim(**_NOWHERE, committed=committed, tentative=tentative)


def final(text: str) -> Any:
    """Return the event of a text that is final."""
    from harken.results import Segment
    from harken.streaming import FinalSegment

    scores = dict.fromkeys(("temperature", "avg_logprob", "compression_ratio", "no_speech_prob"), 0.0)
    segment = Segment(index=0, start_s=0.0, end_s=0.0, text=text, tokens=(), seek_s=0.0, **scores)
    return FinalSegment(**_NOWHERE, segment=segment)


def speech_ended(reason: str) -> Any:
    """Return the event of the end of an utterance."""
    from harken.streaming import SpeechEnded

    return SpeechEnded(**_NOWHERE, reason=reason)
