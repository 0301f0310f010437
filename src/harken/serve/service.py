"""The service: what all protocols of the server use, without any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import Any, BinaryIO, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from harken.api import Recognizer
from harken.errors import HarkenError
from harken.serve.errors import RequestError, draining, too_long
from harken.serve.options import ServeOptions
from harken.serve.waiting import Changes, LoadOnce, call_soon, in_daemon_thread
from harken.serve.work.admission import Admission, LiveCost
from harken.serve.work.captions import Captions
from harken.serve.work.engine import Failed, Job
from harken.serve.work.jobs import FileJob, LiveJob, OpenStream, Turn, Work
from harken.serve.work.models import LoadedModel, Models
from harken.speakers.diarizer import Diarizer
from harken.streaming.latency import LatencyPlan
from harken.transcribe import TranscribeOptions
from harken.types import SAMPLE_RATE

log = getLogger("harken.serve")

T = TypeVar("T")
JobT = TypeVar("JobT", FileJob, LiveJob)
UNLOAD_CHECKS = 4
"""Looks at idle models in the time after which they are unloaded."""
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
REJECTIONS = {401: "key", 403: "origin", 413: "too_large", 429: "busy", 503: "draining"}
"""Reasons for refusing requests, by status."""
LAG_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
NO_SPEAKERS_S = 60.0
"""Seconds for which the models that tell speakers apart count as missing, before they are looked for again."""


Begin = Callable[[Recognizer, BinaryIO, TranscribeOptions], Work]
"""Begins the work on a recording."""


async def _load_diarizer(load: Callable[[], Diarizer]) -> Diarizer:
    """Load what tells speakers apart; the log says why it cannot be had, as clients are not told."""
    try:
        return await in_daemon_thread(load, "loading the diarizer")
    except HarkenError as error:
        log.error("speakers cannot be told apart: %s", error)
        raise


class Service:
    """Files and live streams, transcribed by the engines of the models.

    It belongs to the event loop that runs while it is made.

    Parameters
    ----------
    load : callable
        Loads the model of an id.
    ids : sequence of str
        Models that are offered; the first is the default.
    options : ServeOptions
    aliases : mapping
        Further names of models.
    load_diarizer : callable
        Loads what tells speakers apart.

    Attributes
    ----------
    captions : Captions
        What live sessions say, for viewers.
    draining : asyncio.Event
        Set once the server is about to end: no further work is taken, and live streams are to be closed.
    """

    def __init__(
        self,
        load: Callable[[str], Recognizer],
        ids: Sequence[str],
        options: ServeOptions,
        aliases: Mapping[str, str],
        load_diarizer: Callable[[], Diarizer],
    ) -> None:
        self.options = options
        self.captions = Captions()
        self.draining = asyncio.Event()
        self.admission = Admission(
            max_queue_s=options.max_queue_s, max_streams=options.max_streams, max_load=options.max_load
        )
        self.models = Models(load, ids, aliases, self._record_step)
        self._diarizer = LoadOnce(partial(_load_diarizer, load_diarizer), failed_s=NO_SPEAKERS_S)
        self.metrics = Metrics(self.admission, self.models)
        self._loop = asyncio.get_running_loop()
        self._receiving: set[asyncio.Timeout] = set()
        self._n_in_progress, self._changes = 0, Changes()

    @property
    def ready(self) -> bool:
        """True if requests are taken, and what was to be loaded first has been; also while idle models are unloaded."""
        return not self.draining.is_set() and (self.models.has_loaded or not self.options.preload)

    async def preload(self) -> None:
        """Load all models."""
        for id in self.models.ids:
            await self.models.get(id)

    async def unload_idle_models(self) -> None:
        """Unload models as they become idle, until cancelled."""
        while self.options.unload_after_s:
            await asyncio.sleep(self.options.unload_after_s / UNLOAD_CHECKS)
            await self.models.unload_idle(self.options.unload_after_s)

    async def diarizer(self, param: str) -> Diarizer:
        """Return what tells speakers apart, loaded if it is not in memory.

        Parameters
        ----------
        param : str
            What a client has asked for it by.

        Raises
        ------
        RequestError
            If its models are not on this server, and cannot be fetched.
        """
        try:
            return await self._diarizer.get()
        except RequestError:
            raise  # the server ends
        except HarkenError as error:  # the log has it
            raise RequestError(
                "this server has no models to tell speakers apart; allowed are requests without them",
                code="unsupported_value",
                param=param,
            ) from error

    def until_drained(self, receive: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """Return a function that receives the body of a request; it raises `RequestError` once the server is to end.

        What comes later would be refused anyway, and a body may take long, or never be whole.
        """

        async def receive_until_drained() -> T:
            try:
                async with asyncio.timeout(0 if self.draining.is_set() else None) as limit:
                    self._receiving.add(limit)
                    try:
                        return await receive()
                    finally:
                        self._receiving.discard(limit)
            except TimeoutError:
                raise draining() from None

        return receive_until_drained

    @asynccontextmanager
    async def file(
        self,
        model_name: str,
        audio: BinaryIO,
        options: TranscribeOptions,
        duration_s: float,
        begin: Begin,
    ) -> AsyncIterator[FileJob]:
        """Transcribe a file; leaving the block cancels what is left of it.

        Parameters
        ----------
        model_name : str
            Id of a model, or an alias.
        audio : file
            Closed once nothing reads from it any more.
        options : TranscribeOptions
        duration_s : float
            Length of the recording, as far as it is known.
        begin : callable
            Begins the work, in the engine's thread.

        Raises
        ------
        RequestError
            If the model is not offered, there is no room at present, the recording is too long, or the server ends.
        OptionError
            If the model does not know the language or the task.
        """
        max_audio_s = self.options.max_audio_s

        def make_job(model: LoadedModel, room: None, on_end: Callable[[], None]) -> FileJob:
            checked = self._resolved(model, options)
            start = partial(begin, model.recognizer, audio, checked)
            return FileJob(model.engine, start, on_end, max_audio_s)

        held = ExitStack()
        held.callback(audio.close)
        if duration_s > max_audio_s:
            held.close()
            raise too_long(duration_s, max_audio_s)
        async with self._job(model_name, self.admission.file(duration_s), make_job, held) as job:
            yield job

    @asynccontextmanager
    async def stream(self, wanted: OpenStream) -> AsyncIterator[LiveJob]:
        """Open a live stream; leaving the block ends it, and what it has not yet said is lost.

        Raises
        ------
        RequestError, OptionError
            As for `file`.
        """
        diarizer = await self.diarizer("speakers") if wanted.speakers else None

        def make_job(model: LoadedModel, cost: LiveCost, on_end: Callable[[], None]) -> LiveJob:
            checked = self._resolved(model, wanted.options)
            open_session = partial(
                model.recognizer.stream, checked, stream_options=wanted.stream_options, diarizer=diarizer
            )
            turn = None
            if wanted.whole_turns:
                turn = Turn(
                    lambda samples: model.recognizer.transcribe(samples, checked), self.options.max_audio_s
                )
            return LiveJob(model.engine, open_session, on_end, cost, turn)

        async with self._job(wanted.model, self.admission.stream(), make_job, ExitStack()) as job:
            yield job

    async def check(self, wanted: OpenStream) -> None:
        """Check what a stream is to be opened with; the errors are those of `stream`."""
        self._resolved(await self.models.get(wanted.model), wanted.options)
        if wanted.speakers:
            await self.diarizer("speakers")

    def _resolved(self, model: LoadedModel, options: TranscribeOptions) -> TranscribeOptions:
        """Return the options of a request, checked against a model, with those of the server that it leaves open."""
        return model.recognizer.resolve_options(
            replace(options, replace=options.replace or self.options.replace)
        )

    async def plan(self, wanted: OpenStream) -> LatencyPlan:
        """Return the plan of a live stream, which has its room only until then; the errors are those of `stream`."""
        async with self.stream(wanted) as job:
            job.ask("close")
            async for update in job.updates:
                if isinstance(update, Failed):
                    raise update.failure
            assert job.session
            return job.session.plan

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Have `drain` wait for the end of a block, such as a connection whose last results are on their way."""
        self._n_in_progress += 1
        try:
            yield
        finally:
            self._n_in_progress -= 1
            self._changes.tell()

    async def drain(self) -> None:
        """Take no more work, and wait for that in progress, but not longer than the options allow."""
        self._begin_draining()
        none_in_progress = self._changes.until(lambda: not self._n_in_progress)
        with suppress(TimeoutError):
            await asyncio.wait_for(none_in_progress, self.options.drain_s)

    async def close(self) -> None:
        """Abandon what is in progress, and end the engines."""
        self._begin_draining()
        self.captions.close()
        self._diarizer.forget()
        await self.models.close("the server has ended")

    def _begin_draining(self) -> None:
        self.draining.set()
        for limit in self._receiving:
            limit.reschedule(0)

    @asynccontextmanager
    async def _job(
        self,
        model_name: str,
        room: AbstractContextManager[T],
        make_job: Callable[[LoadedModel, T, Callable[[], None]], JobT],
        held: ExitStack,
    ) -> AsyncIterator[JobT]:
        """Give a job to the engine of a model; what it holds is released when it has ended, in the event loop."""
        try:
            if self.draining.is_set():
                raise draining()
            held.enter_context(self.in_progress())
            taken = held.enter_context(room)
            model = await self.models.get(model_name)
            held.enter_context(model.in_use())
            job = make_job(model, taken, partial(call_soon, self._loop, held.close))
            model.engine.add(job)
        except BaseException:
            held.close()
            raise
        try:
            yield job
        finally:
            job.cancel()

    def _record_step(self, job: Job[Any], seconds: float) -> None:
        """Record the cost of a step, in the engine's thread."""
        if isinstance(job, LiveJob):
            audio_s = job.processed_samples / SAMPLE_RATE
            planned_load = job.session.plan.bound.utilisation if job.session else 0.0
            self.admission.record_live(job.cost, job.service_s, audio_s, planned_load=planned_load)
        elif isinstance(job, FileJob) and job.done and job.work:
            self.admission.record_file(job.service_s, job.work.read_s)
        self.metrics.record_step(job, seconds)


class Metrics:
    """The counters and gauges of one server, for Prometheus; no label holds what a client has sent.

    Parameters
    ----------
    admission : Admission
    models : Models
        Asked for what is in progress whenever the metrics are read.
    """

    def __init__(self, admission: Admission, models: Models) -> None:
        self._registry = CollectorRegistry()
        count = partial(Counter, registry=self._registry)
        time = partial(Histogram, registry=self._registry)
        self.requests = count("harken_requests", "Requests answered.", ["route", "status"])
        self.request_seconds = time(
            "harken_request_seconds", "Time to the end of a response.", ["route"], buckets=SECONDS
        )
        self.first_segment_seconds = time(
            "harken_first_segment_seconds", "Time to the first segment.", buckets=SECONDS
        )
        self.audio_seconds = count("harken_audio_seconds", "Audio transcribed.", ["kind"])
        self.compute_seconds = count("harken_compute_seconds", "Time that the engines have worked.", ["kind"])
        self.rejected = count("harken_rejected", "Requests refused.", ["reason"])
        self.cancelled = count("harken_cancelled", "Work that nobody waited for any more.", ["kind"])
        self.segments = count("harken_segments", "Segments delivered.", ["kind"])
        self.stream_lag_seconds = time(
            "harken_stream_lag_seconds",
            "Time from the arrival of a stream's samples to the end of their processing.",
            buckets=LAG_SECONDS,
        )
        for name, text, value in (
            ("harken_queue_jobs", "Files in progress.", lambda: admission.n_files),
            ("harken_queue_audio_seconds", "Length of the files in progress.", lambda: admission.queued_s),
            ("harken_streams_active", "Live streams.", lambda: admission.n_streams),
            ("harken_stream_load", "Share of the engines' time for live streams.", lambda: admission.load),
            ("harken_models_loaded", "Models in memory.", lambda: len(models.loaded)),
        ):
            Gauge(name, text, registry=self._registry).set_function(value)

    def record_response(self, route: str, status: int, seconds: float) -> None:
        """Record a response; the route is the pattern that its path matches, or empty."""
        self.requests.labels(route, status).inc()
        self.request_seconds.labels(route).observe(seconds)
        if status in REJECTIONS:
            self.rejected.labels(REJECTIONS[status]).inc()

    def record_step(self, job: Job[Any], seconds: float) -> None:
        """Record the step of a job."""
        kind = "live" if job.live else "file"
        self.compute_seconds.labels(kind).inc(seconds)
        if isinstance(job, LiveJob):
            self.stream_lag_seconds.observe(job.lag_s)
            self.audio_seconds.labels(kind).inc(job.step_samples / SAMPLE_RATE)
            self.segments.labels(kind).inc(job.step_segments)

    def text(self) -> bytes:
        """Return all of them in the text format of Prometheus."""
        return generate_latest(self._registry)
