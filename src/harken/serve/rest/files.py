"""OpenAI's REST API: files to text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from logging import getLogger
from time import monotonic

from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from harken.results import Transcript
from harken.serve.errors import UNFORESEEN, RequestError
from harken.serve.rest.forms import MEGABYTE, probe_duration_s, received_form
from harken.serve.rest.transcription_form import (
    TranscriptionRequest,
    form_error,
    parse_transcription_form,
    read_voices,
    with_voices,
)
from harken.serve.rest.transcripts import (
    HEARTBEAT_S,
    EventStream,
    TranscriptionEvents,
    event_stream,
    transcription_response,
    with_pauses,
)
from harken.serve.service import Service
from harken.serve.waiting import first_of
from harken.serve.work.file_job import FileJob, FileUpdate
from harken.speakers.diarizer import Diarizer

log = getLogger("harken.serve")

MIN_AUDIO_S = 0.1
"""Shorter recordings are refused, as OpenAI's service does."""


def routes(service: Service) -> list[BaseRoute]:
    """Return the routes of transcriptions and translations."""
    return [
        Route("/v1/audio/transcriptions", _Transcriptions(service, "transcribe"), methods=["POST"]),
        Route("/v1/audio/translations", _Transcriptions(service, "translate"), methods=["POST"]),
    ]


class _Transcriptions:
    """Transcribes the files that clients send.

    Parameters
    ----------
    service : Service
    task : {"transcribe", "translate"}
    """

    def __init__(self, service: Service, task: str) -> None:
        self._service, self._task = service, task

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answered = await self._answer(scope, receive, send)
        except ClientDisconnect:
            answered = False
        except Exception as error:
            problem = form_error(error)
            if problem.code == UNFORESEEN:
                raise
            raise problem from error
        if not answered:
            self._service.metrics.cancelled.labels("file").inc()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Receive a file, have it transcribed, and send its text; return False if the client has gone away."""
        start_s = monotonic()
        options = self._service.options
        max_bytes = round(options.max_upload_mb * MEGABYTE)
        with self._service.admission.upload():
            async with received_form(scope, receive, max_bytes) as form:
                asked = parse_transcription_form(form, self._task)
                asked = replace(asked, model=self._service.models.resolve(asked.model))
                duration_s = await asyncio.to_thread(probe_duration_s, form.upload)
                make_diarizer = await self._diarizer_maker(asked)
                upload = form.take_upload()
        known_s = min(upload.usual_duration_s, options.max_audio_s) if duration_s is None else duration_s
        async with self._service.file(asked.model, upload.source, asked.options, known_s, make_diarizer) as job:
            updates = self._counted(job, start_s)
            if asked.stream:
                work = _stream(job, updates, TranscriptionEvents(asked, duration_s), send)
            else:
                work = _respond(job, updates, asked, scope, receive, send)
            return await first_of(work, _disconnect(receive)) == 0

    async def _diarizer_maker(self, asked: TranscriptionRequest) -> Callable[[], Diarizer] | None:
        """Return a function that makes the diarizer of a request; None if it wants none."""
        if not asked.diarized:
            return None
        voices = await asyncio.to_thread(read_voices, asked.known_speakers)
        return partial(with_voices, await self._service.diarizer(), voices)

    async def _counted(self, job: FileJob, start_s: float) -> AsyncIterator[FileUpdate]:
        """Yield the updates of a job, and count them."""
        metrics = self._service.metrics
        is_first = True
        async for update in job.updates:
            if update.segments and is_first:
                metrics.first_segment_seconds.observe(monotonic() - start_s)
                is_first = False
            metrics.segments.labels("file").inc(len(update.segments))
            if update.finished and job.transcription:
                metrics.audio_seconds.labels("file").inc(job.transcription.read_s)
            yield update


async def _respond(
    job: FileJob,
    updates: AsyncIterator[FileUpdate],
    asked: TranscriptionRequest,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Send the transcript once it is whole."""
    async for update in updates:
        _check(job, update)
    response = await asyncio.to_thread(transcription_response, _transcript(job), asked)
    await response(scope, receive, send)


async def _stream(
    job: FileJob, updates: AsyncIterator[FileUpdate], events: TranscriptionEvents, send: Send
) -> None:
    """Send the text as it is transcribed; what fails with the first window fails with a status of its own."""
    async with aclosing(with_pauses(updates, HEARTBEAT_S)) as paced:
        first = await anext(paced)
        if first:
            _check(job, first)
        async with event_stream(send) as stream:
            try:
                await _send_update(stream, first, events)
                async for update in paced:
                    if update:
                        _check(job, update)
                    await _send_update(stream, update, events)
                await stream.send_all(partial(events.done, _transcript(job)))
            except Exception as error:
                problem = form_error(error)
                if problem.code == UNFORESEEN:
                    log.error("unforeseen error", exc_info=error)
                await stream.send(problem.body())


async def _send_update(stream: EventStream, update: FileUpdate | None, events: TranscriptionEvents) -> None:
    if update:
        await stream.send_all(partial(events.update, update))
    else:
        await stream.send_heartbeat()


def _check(job: FileJob, update: FileUpdate) -> None:
    """Raise what has ended the transcription, if it has failed."""
    if update.failure:
        raise update.failure
    if update.finished and (read_s := _transcript(job).duration_s) < MIN_AUDIO_S:
        raise RequestError(
            f"the recording is {read_s:g} s long; allowed are {MIN_AUDIO_S:g} s and more",
            code="audio_too_short",
            param="file",
        )


def _transcript(job: FileJob) -> Transcript:
    assert job.transcription
    return job.transcription.so_far()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
