"""The service: files and streams on one engine give the text of each alone; cancelled work frees it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leaping import LeapLoop, leap

import harken
from harken.api import Recognizer
from harken.audio import load_audio
from harken.contract import Floats
from harken.errors import AudioError, OptionError
from harken.results import Segment
from harken.serve.errors import RequestError
from harken.serve.options import ServeOptions
from harken.serve.service import Service
from harken.serve.work import file_job
from harken.serve.work.file_job import FileUpdate
from harken.serve.work.live_job import Failed, Flushed, LiveJob, LiveUpdate
from harken.streaming import FinalSegment, Interim, StreamOptions
from harken.transcribe import TranscribeOptions

JFK = Path(__file__).parents[2] / "examples" / "jfk.flac"
STREAMED = StreamOptions(finals="streamed")
BLOCK = 1600


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    recognizer = harken.load("tiny.en", threads=1)
    recognizer.stream = partial(recognizer.stream, clock=None)  # type: ignore[method-assign]
    return recognizer


@pytest.fixture(scope="module")
def samples() -> Floats:
    """Two utterances of 11 s."""
    speech = load_audio(JFK)
    return np.concatenate([speech, np.zeros(32_000, np.float32)] * 2)


def serve(recognizer: Recognizer, work: Callable[[Service], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """Return what a coroutine function returns that is given a service."""

    async def run() -> Any:
        service = Service(lambda id: recognizer, ["tiny.en"], ServeOptions(**options), {"small": "tiny.en"})
        try:
            return await work(service)
        finally:
            await service.close()

    with asyncio.Runner(loop_factory=LeapLoop) as runner:
        return runner.run(run())


def recording(samples: Floats | None = None) -> io.BytesIO:
    """Return the file of some samples, or that of the example."""
    if samples is None:
        return io.BytesIO(JFK.read_bytes())
    pcm = (np.clip(samples, -1, 1 - 2**-15) * 32768).astype("<i2").tobytes()
    sizes = [int.to_bytes(n, 4, "little") for n in (36 + len(pcm), 16, len(pcm))]
    header = b"RIFF" + sizes[0] + b"WAVEfmt " + sizes[1]
    header += b"\1\0\1\0" + int.to_bytes(16000, 4, "little") + int.to_bytes(32000, 4, "little") + b"\2\0\x10\0"
    return io.BytesIO(header + b"data" + sizes[2] + pcm)


async def file_segments(service: Service, audio: io.BytesIO) -> list[Segment]:
    async with service.file("whisper-1", audio, TranscribeOptions(), 11.0) as job:
        updates = [update async for update in job.updates]
    assert updates[-1].finished
    assert not [update.failure for update in updates if update.failure]
    return [segment for update in updates for segment in update.segments]


async def stream_updates(service: Service, samples: Floats, options: StreamOptions) -> list[LiveUpdate]:
    async with service.stream("tiny.en", TranscribeOptions(), options) as job:

        async def send() -> None:
            for start in range(0, len(samples), BLOCK):
                await job.feed(samples[start : start + BLOCK])
            job.close()

        sending = asyncio.create_task(send())
        updates = [update async for update in job.updates]
        await sending
    return updates


def final_texts(updates: list[LiveUpdate]) -> list[str]:
    return [update.segment.text for update in updates if isinstance(update, FinalSegment)]


@pytest.mark.real
def test_interleaved_work_gives_the_text_of_each_alone(recognizer: Recognizer, samples: Floats) -> None:
    alone = [*recognizer.transcribe(recording(samples))]
    session = recognizer.stream(stream_options=STREAMED)
    live_alone = final_texts([*session.feed(samples), *session.close()])
    assert len(alone) > 3
    assert len(live_alone) == 2

    async def work(service: Service) -> None:
        files = [file_segments(service, recording(samples)) for _ in range(2)]
        *interleaved, updates = await asyncio.gather(*files, stream_updates(service, samples, STREAMED))
        assert interleaved == [alone, alone]
        assert final_texts(updates) == live_alone

    serve(recognizer, work)


@pytest.mark.real
def test_a_flush_ends_the_utterance_and_the_stream_goes_on(recognizer: Recognizer, samples: Floats) -> None:
    async def work(service: Service) -> list[LiveUpdate]:
        async with service.stream("tiny.en", TranscribeOptions(), STREAMED) as job:
            await job.feed(samples[:64_000])
            job.flush("first")
            await job.feed(samples[64_000:144_000])
            job.close()
            return [update async for update in job.updates]

    updates = serve(recognizer, work)
    (flushed,) = [i for i, update in enumerate(updates) if update == Flushed(token="first")]
    assert final_texts(updates[:flushed])
    assert final_texts(updates[flushed:])


@pytest.mark.real
def test_cancelled_files_free_the_engine_and_their_file(recognizer: Recognizer, samples: Floats) -> None:
    audio = recording(np.tile(samples, 8))

    async def work(service: Service) -> None:
        async with service.file("tiny.en", audio, TranscribeOptions(), 200.0) as job:
            async for update in job.updates:
                assert update.segments
                assert not update.finished
                break
        await file_segments(service, recording())
        while service.admission.n_files:
            await asyncio.sleep(0.01)
        assert audio.closed
        assert job.transcription
        assert [*job.transcription.so_far().segments][-1].end_s < 120

    serve(recognizer, work)


@pytest.mark.real
def test_a_file_whose_reader_is_slow_waits(
    recognizer: Recognizer, samples: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_job, "MAX_UPDATES", 1)

    async def work(service: Service) -> None:
        async with service.file("tiny.en", recording(np.tile(samples, 3)), TranscribeOptions(), 78.0) as job:
            while not job.updates.full:
                await asyncio.sleep(0.01)
            await file_segments(service, recording())  # the engine is free for others meanwhile
            assert job.transcription
            held_s = job.transcription.done_s
            assert held_s < 78
            assert sum([1 async for _ in job.updates]) > 1
            assert job.transcription.done_s > held_s

    serve(recognizer, work)


@pytest.mark.real
def test_interims_merge_for_a_slow_reader_and_no_final_is_lost(recognizer: Recognizer, samples: Floats) -> None:
    async def work(service: Service) -> tuple[list[LiveUpdate], list[LiveUpdate]]:
        async with service.stream("tiny.en", TranscribeOptions(), STREAMED) as job:
            for start in range(0, len(samples), BLOCK):
                await job.feed(samples[start : start + BLOCK])
            job.close()
            while not job.done:
                await asyncio.sleep(0.01)
            slow = [update async for update in job.updates]
        return slow, await stream_updates(service, samples, STREAMED)

    slow, prompt = serve(recognizer, work)
    assert final_texts(slow) == final_texts(prompt)
    assert sum(isinstance(update, Interim) for update in slow) <= sum(isinstance(u, Interim) for u in prompt)
    words = [word for update in slow if isinstance(update, Interim) for word in update.words]
    assert words == [word for update in prompt if isinstance(update, Interim) for word in update.words]


def refusal(
    recognizer: Recognizer, work: Callable[[Service], Coroutine[Any, Any, Any]], **options: Any
) -> RequestError:
    with pytest.raises(RequestError) as caught:
        serve(recognizer, work, **options)
    return caught.value


@pytest.mark.real
def test_refusals_say_what_is_allowed_and_close_the_file(recognizer: Recognizer) -> None:
    audios = []

    async def transcribe(service: Service, model: str = "tiny.en", duration_s: float = 11.0) -> None:
        audios.append(recording())
        async with service.file(model, audios[-1], TranscribeOptions(), duration_s):
            pass

    unknown = refusal(recognizer, lambda service: transcribe(service, "large"))
    assert (unknown.status, unknown.code) == (404, "model_not_found")
    assert "tiny.en" in str(unknown)
    long = refusal(recognizer, lambda service: transcribe(service, duration_s=99.0), max_audio_s=60.0)
    assert (long.status, long.code) == (413, "audio_too_long")

    async def after_draining(service: Service) -> None:
        await service.drain()
        await transcribe(service)

    draining = refusal(recognizer, after_draining)
    assert (draining.status, draining.retry_after_s) == (503, 5)

    async def two(service: Service) -> None:
        async with service.file("tiny.en", recording(), TranscribeOptions(), 50.0):
            await transcribe(service, duration_s=60.0)

    full = refusal(recognizer, two, max_queue_s=100.0)
    assert full.status == 429
    assert "100 s" in str(full)
    assert all(audio.closed for audio in audios)


@pytest.mark.real
def test_a_recording_that_is_longer_than_its_header_says_is_cut_off(
    recognizer: Recognizer, samples: Floats
) -> None:
    async def work(service: Service) -> list[FileUpdate]:
        async with service.file("tiny.en", recording(np.tile(samples, 2)), TranscribeOptions(), 1.0) as job:
            return [update async for update in job.updates]

    updates = serve(recognizer, work, max_audio_s=40.0)
    assert isinstance(updates[-1].failure, RequestError)
    assert updates[-1].failure.status == 413


@pytest.mark.real
def test_errors_of_a_job_are_its_own(recognizer: Recognizer) -> None:
    async def work(service: Service) -> None:
        async with service.file("tiny.en", io.BytesIO(b"text"), TranscribeOptions(), 0.0) as job:
            (update,) = [update async for update in job.updates]
        assert isinstance(update.failure, AudioError)
        with pytest.raises(OptionError, match="language"):
            async with service.file("tiny.en", recording(), TranscribeOptions(language="nl"), 0.0):
                pass
        async with service.stream("tiny.en", TranscribeOptions(), StreamOptions(delay="1")) as live:
            (last,) = [update async for update in live.updates]
        assert isinstance(last, Failed)
        assert isinstance(last.failure, OptionError)
        assert await file_segments(service, recording())

    serve(recognizer, work)


@pytest.mark.real
def test_draining_waits_for_work_in_progress(recognizer: Recognizer) -> None:
    async def work(service: Service) -> None:
        segments = asyncio.create_task(file_segments(service, recording()))
        while not service.admission.n_files:
            await asyncio.sleep(0.01)
        await service.drain()
        assert not service.admission.n_files
        assert await segments

    serve(recognizer, work)


@pytest.mark.real
def test_work_that_outlasts_the_draining_is_abandoned(recognizer: Recognizer, samples: Floats) -> None:
    async def work(service: Service) -> tuple[LiveJob, list[LiveUpdate]]:
        async with service.stream("tiny.en", TranscribeOptions(), STREAMED) as job:
            await job.feed(samples[:16_000])
            draining = asyncio.create_task(service.drain())
            await leap(29)
            assert not draining.done()
            await leap(2)
            await draining
            await service.close()
            return job, [update async for update in job.updates]

    job, updates = serve(recognizer, work, drain_s=30)
    assert job.done
    assert isinstance(updates[-1], Failed)


@pytest.mark.real
def test_idle_models_are_unloaded_and_loaded_again(recognizer: Recognizer) -> None:
    async def work(service: Service) -> None:
        await file_segments(service, recording())
        assert [model.id for model in service.models.loaded] == ["tiny.en"]
        while service.admission.n_files:
            await asyncio.sleep(0.01)
        await service.models.unload_idle(0.0)
        assert not service.models.loaded
        assert service.ready
        assert await file_segments(service, recording())

    serve(recognizer, work)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    import threading

    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("harken tiny")]
