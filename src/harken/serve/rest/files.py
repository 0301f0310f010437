"""Files to text: received, admitted, transcribed and answered, in the dialects of several APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import BinaryIO

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from harken.api import Recognizer
from harken.audio import stream_audio
from harken.errors import OptionError
from harken.results import Segment, Transcript
from harken.serve.errors import RequestError, json_error, plain_error, request_error
from harken.serve.rest.forms import (
    MEGABYTE,
    RECORDING,
    USUAL_BYTES_PER_S,
    Field,
    Form,
    field_names,
    probe_duration_s,
    received_form,
)
from harken.serve.rest.transcription_form import (
    FIELDS,
    SPEECH_NAMES,
    TranscriptionRequest,
    parse_transcription_form,
    read_voices,
    with_voices,
)
from harken.serve.rest.transcripts import (
    END,
    HEADERS,
    HEARTBEAT,
    HEARTBEAT_S,
    Event,
    TranscriptionEvents,
    encoded,
    transcription_response,
    with_pauses,
)
from harken.serve.service import Begin, Service
from harken.serve.waiting import first_of
from harken.serve.work.engine import Failed
from harken.serve.work.jobs import FileJob, FileUpdate
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE, WINDOW_S, WINDOW_SAMPLES

MIN_AUDIO_S = 0.1
"""Shorter recordings are refused, as OpenAI's service does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A route that takes recordings: how its clients ask, and how they want to be answered."""

    path: str
    summary: str  # one line for the description of the API
    fields: Mapping[str, Field]  # what the clients send beside the recording
    parse: Callable[[Form], TranscriptionRequest]  # reads the fields, or raises `RequestError` or `OptionError`
    respond: Callable[[Transcript, TranscriptionRequest], Response]  # returns the response with a transcript
    answers: tuple[str, ...]  # of the responses
    recording: str | None = RECORDING  # name of the file that is the recording; None if that is the whole body
    in_query: bool = False  # true if the clients send the fields in the address
    # Fields by options that they set beside that in the table.
    more_names: dict[str, str] = field(default_factory=dict)
    refuse: Callable[[RequestError], Response] = plain_error  # returns the response with an error

    def problem(self, error: BaseException) -> RequestError:
        """Return what its clients are told about an error; it names their fields."""
        if isinstance(error, OptionError) and error.field == "task" and "task" not in self.fields:
            message = f"model: allowed is one that can {error.value}; this model is English-only"
            return RequestError(message, code="invalid_value", param="model")
        return request_error(error, field_names(self.fields) | self.more_names)


OPENAI = tuple(
    Dialect(
        path=path,
        summary=summary,
        fields=FIELDS[task],
        parse=partial(parse_transcription_form, task=task),
        respond=transcription_response,
        answers=("application/json", "text/plain", "application/x-subrip", "text/vtt", "text/event-stream"),
        more_names=SPEECH_NAMES,
        refuse=json_error,
    )
    for path, task, summary in (
        ("/v1/audio/transcriptions", "transcribe", "Transcribe a recording: OpenAI's API."),
        ("/v1/audio/translations", "translate", "Translate a recording into English: OpenAI's API."),
    )
)


class Files:
    """Transcribes the files that the clients of a dialect send."""

    def __init__(self, service: Service, dialect: Dialect) -> None:
        self.dialect = dialect
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answered = await self._answer(scope, receive, send)
        except ClientDisconnect:
            answered = False
        except Exception as error:
            raise self.dialect.problem(error) from error
        if not answered:
            self._service.metrics.cancelled.labels("file").inc()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Receive a file, have it transcribed, and send its text; return False if the client has gone away."""
        start_s = monotonic()
        options, models = self._service.options, self._service.models
        max_bytes = round(options.max_upload_mb * MEGABYTE)
        body = self._service.until_drained(receive)
        with self._service.admission.upload():
            async with received_form(scope, body, max_bytes, self.dialect.recording) as form:
                asked = self.dialect.parse(form)
                asked = replace(asked, model=models.resolve(asked.model or models.ids[0]))
                if asked.raw:
                    form.upload.declare_raw(asked.raw)
                duration_s = await asyncio.to_thread(probe_duration_s, form.upload)
                begin = await self._begin(asked)
                upload = form.take_upload()
        usual_s = min(upload.n_bytes / USUAL_BYTES_PER_S, options.max_audio_s)
        known_s = usual_s if duration_s is None else duration_s
        if asked.language_only:
            known_s = min(known_s, WINDOW_S)
        async with self._service.file(asked.model, upload.source, asked.options, known_s, begin) as job:
            updates = self._updates(job, start_s)
            if asked.stream:
                work = self._stream(job, updates, TranscriptionEvents(asked, duration_s), send)
            else:
                work = self._respond(job, updates, asked, scope, receive, send)
            return await first_of(work, _disconnect(receive)) == 0

    async def _begin(self, asked: TranscriptionRequest) -> Begin:
        """Return what begins the work that is asked for."""
        if asked.language_only:
            return _LanguageDetection
        if not asked.diarized:
            return lambda recognizer, audio, options: recognizer.transcribe(audio, options)
        voices = await asyncio.to_thread(read_voices, asked.known_speakers)
        diarizer = (await self._service.diarizer("response_format")).with_options(asked.speakers)
        return lambda recognizer, audio, options: recognizer.transcribe(
            audio, options, diarizer=with_voices(diarizer, voices)
        )

    async def _updates(self, job: FileJob, start_s: float) -> AsyncIterator[FileUpdate]:
        """Yield the updates of a job, and count them; raise what has ended it, also that the recording is too short."""
        metrics = self._service.metrics
        is_first, failure = True, None
        async for update in job.updates:
            if isinstance(update, Failed):
                failure = update.failure
            elif not _too_short(job):  # else nothing of it is sent: the end may be found later
                if update.segments and is_first:
                    metrics.first_segment_seconds.observe(monotonic() - start_s)
                    is_first = False
                metrics.segments.labels("file").inc(len(update.segments))
                yield update
        if job.work:
            metrics.audio_seconds.labels("file").inc(job.work.read_s)
        if problem := failure or _too_short(job):
            raise problem

    async def _respond(
        self,
        job: FileJob,
        updates: AsyncIterator[FileUpdate],
        asked: TranscriptionRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send the transcript once it is whole."""
        async for _ in updates:
            pass
        response = await asyncio.to_thread(self.dialect.respond, _transcript(job), asked)
        await response(scope, receive, send)

    async def _stream(
        self, job: FileJob, updates: AsyncIterator[FileUpdate], events: TranscriptionEvents, send: Send
    ) -> None:
        """Send the text as it is transcribed; what fails with the first window fails with a status of its own."""
        async with aclosing(with_pauses(updates, HEARTBEAT_S)) as paced:
            first = await anext(paced)
            body = self._events(job, first, paced, events)
            await StreamingResponse(body, headers=HEADERS).stream_response(send)

    async def _events(
        self,
        job: FileJob,
        first: FileUpdate | None,
        following: AsyncIterator[FileUpdate | None],
        events: TranscriptionEvents,
    ) -> AsyncIterator[bytes]:
        """Yield the events of updates, and a comment for each pause; what is large is made in threads."""

        async def made(make: Callable[[], Iterable[Event]]) -> bytes:
            return await asyncio.to_thread(lambda: b"".join(map(encoded, make())))

        async def of_update(update: FileUpdate | None) -> bytes:
            return await made(partial(events.update, update)) if update else HEARTBEAT

        try:
            yield await of_update(first)
            async for update in following:
                yield await of_update(update)
            yield await made(partial(events.done, _transcript(job)))
            yield END
        except Exception as error:
            yield encoded(self.dialect.problem(error).body())


class _LanguageDetection:
    """The detection of the language of the first window of a recording; no more of it is read.

    Only the candidates of the options count. Where nobody speaks, the language is that of what can be heard.
    """

    def __init__(self, recognizer: Recognizer, audio: BinaryIO, options: TranscribeOptions) -> None:
        self._recognizer, self._audio = recognizer, audio
        self._options = replace(options, language=None, language_windows=1)
        self._probabilities: dict[str, float] = {}
        self.finished, self.read_s = False, 0.0

    @property
    def done_s(self) -> float:
        """Seconds of the recording that are done."""
        return self.read_s if self.finished else 0.0

    def step(self) -> list[Segment]:
        """Detect the language."""
        samples = next(stream_audio(self._audio))[:WINDOW_SAMPLES]
        self.read_s = len(samples) / SAMPLE_RATE
        detect = partial(self._recognizer.detect_language, samples)
        self._probabilities = detect(self._options) or detect(replace(self._options, vad=False))
        self.finished = True
        return []

    def so_far(self) -> Transcript:
        """Return a transcript without text, in the most probable language."""
        language, probability = next(iter(self._probabilities.items()), ("en", 0.0))
        return Transcript(
            segments=(),
            language=language,
            language_probability=probability,
            duration_s=self.read_s,
            model=self._recognizer.model,
        )

    def stop(self) -> None:
        """Do nothing: there is one step alone."""


def _too_short(job: FileJob) -> RequestError | None:
    """Return what is wrong with a recording if it ends where it has been read to, None if it is long enough."""
    if not job.work or job.work.read_s >= MIN_AUDIO_S:
        return None
    message = f"the recording is {job.work.read_s:g} s long; allowed are {MIN_AUDIO_S:g} s and more"
    return RequestError(message, code="audio_too_short", param="file")


def _transcript(job: FileJob) -> Transcript:
    assert job.work
    return job.work.so_far()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
