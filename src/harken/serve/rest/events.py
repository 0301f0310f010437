"""A transcription in progress as server-sent events: those of OpenAI's API, and harken's own for who asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Send

from harken.formats import as_json, dump_json
from harken.results import Segment, Transcript
from harken.serve.rest.transcription_bodies import (
    languages_json,
    logprobs_json,
    segment_id,
    speaker_segment_json,
    tokens_json,
    transcript_json,
    words_of,
)
from harken.serve.rest.transcription_form import TranscriptionRequest
from harken.serve.work.file_job import FileUpdate

T = TypeVar("T")
Event = Mapping[str, Any]
HEARTBEAT_S = 15.0
"""Seconds of silence after which a proxy might close the connection."""
HEARTBEAT = b": \n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies of the nginx kind pass each event on at once
}


class TranscriptionEvents:
    """The events of one transcription, in order; the deltas together are the text.

    Parameters
    ----------
    asked : TranscriptionRequest
    duration_s : float or None
        Length of the recording, if its header tells.
    """

    def __init__(self, asked: TranscriptionRequest, duration_s: float | None) -> None:
        self._asked, self._duration_s = asked, duration_s
        self._held_back = ""  # spaces, which belong to the text only if more of it follows
        self._begun = False

    def update(self, update: FileUpdate) -> Iterator[Event]:
        """Yield the events of a step."""
        for segment in update.segments:
            yield from self._delta(segment)
            if self._asked.diarized:
                yield speaker_segment_json(segment)
            if self._asked.events:
                yield {"type": "harken.segment", "segment": as_json(segment)}
        if self._asked.events:
            yield {"type": "harken.progress", "done_s": update.done_s, "duration_s": self._duration_s}

    def done(self, transcript: Transcript) -> Iterator[Event]:
        """Yield the events at the end."""
        if self._asked.events:
            yield {"type": "harken.transcript", "transcript": transcript_json(transcript, self._asked.model)}
        yield {
            "type": "transcript.text.done",
            "text": transcript.text,
            "languages": languages_json(transcript),
            **self._logprobs(transcript.segments),
            "usage": tokens_json(transcript),
        }

    def _delta(self, segment: Segment) -> Iterator[Event]:
        text = self._held_back + segment.text
        text = text if self._begun else text.lstrip()
        delta = text.rstrip()
        self._held_back = text[len(delta) :]
        if delta:
            self._begun = True
            of_segment = {"segment_id": segment_id(segment)} if self._asked.diarized else {}
            yield {"type": "transcript.text.delta", "delta": delta, **of_segment, **self._logprobs([segment])}

    def _logprobs(self, segments: Sequence[Segment]) -> dict[str, Any]:
        return {"logprobs": logprobs_json(words_of(segments))} if self._asked.logprobs else {}


class EventStream:
    """A response that is open.

    Parameters
    ----------
    send
        Of the ASGI application.
    """

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, event: Event) -> None:
        """Send an object; waits while the client reads slowly."""
        await self._write(_encoded(event))

    async def send_all(self, make_events: Callable[[], Iterable[Event]]) -> None:
        """Send objects that a function makes, in a thread, as they may be large."""
        for data in await asyncio.to_thread(lambda: [*map(_encoded, make_events())]):
            await self._write(data)

    async def send_heartbeat(self) -> None:
        """Send a comment, which clients skip."""
        await self._write(HEARTBEAT)

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def _encoded(event: Event) -> bytes:
    return f"data: {dump_json(event)}\n\n".encode()


@asynccontextmanager
async def event_stream(send: Send) -> AsyncIterator[EventStream]:
    """Open a response of events, which ends with the block."""
    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    yield EventStream(send)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def with_pauses(results: AsyncIterable[T], pause_s: float) -> AsyncGenerator[T | None, None]:
    """Yield results as they come, and None whenever none has come for some seconds."""
    iterator = aiter(results)
    following: asyncio.Future[T] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(iterator))
            if not (await asyncio.wait({following}, timeout=pause_s))[0]:
                yield None
                continue
            try:
                result = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield result
    finally:
        if following:
            following.cancel()
