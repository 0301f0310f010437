"""The service: files and streams on one engine give the text of each alone, and its end waits for them."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest
from leaping import LeapLoop, leap
from served_audio import wav
from talking import TalkingRecognizer, words_said

import harken
from harken.api import Recognizer
from harken.audio import load_audio
from harken.contract import Floats
from harken.results import Segment
from harken.serve.options import ServeOptions
from harken.serve.service import Service
from harken.serve.work.live_job import Failed, LiveUpdate
from harken.streaming import FinalSegment, Interim, StreamOptions
from harken.transcribe import TranscribeOptions
from real_models import EXAMPLE

STREAMED = StreamOptions(finals="streamed")
BLOCK = 1600


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    recognizer = harken.load("tiny.en", threads=1)
    recognizer.stream = partial(recognizer.stream, clock=None)  # type: ignore[method-assign]
    return recognizer


def serve(recognizer: Any, work: Callable[[Service], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Give a service to a coroutine function; then no thread of it may be left."""

    async def run() -> None:
        service = Service(lambda id: recognizer, ["tiny.en"], ServeOptions(**options), {})
        try:
            await work(service)
        finally:
            await service.close()

    with asyncio.Runner(loop_factory=LeapLoop) as runner:
        runner.run(run())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("harken tiny")]


async def file_segments(service: Service, samples: Floats | None = None) -> list[Segment]:
    audio = io.BytesIO(EXAMPLE.read_bytes() if samples is None else wav(samples))
    async with service.file("whisper-1", audio, TranscribeOptions(), 11.0) as job:
        updates = [update async for update in job.updates]
    assert updates[-1].finished
    assert not [update.failure for update in updates if update.failure]
    return [segment for update in updates for segment in update.segments]


async def stream_updates(service: Service, samples: Floats) -> list[LiveUpdate]:
    async with service.stream("tiny.en", TranscribeOptions(), STREAMED) as job:

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
def test_interleaved_work_gives_the_text_of_each_alone(recognizer: Recognizer) -> None:
    utterances = np.concatenate([load_audio(EXAMPLE), np.zeros(32_000, np.float32)] * 2)
    alone = [*recognizer.transcribe(io.BytesIO(wav(utterances)))]
    session = recognizer.stream(stream_options=STREAMED)
    live_alone = final_texts([*session.feed(utterances), *session.close()])
    assert len(alone) > 3
    assert len(live_alone) == 2

    async def work(service: Service) -> None:
        files = [file_segments(service, utterances) for _ in range(2)]
        *interleaved, updates = await asyncio.gather(*files, stream_updates(service, utterances))
        assert interleaved == [alone, alone]
        assert final_texts(updates) == live_alone

    serve(recognizer, work)


def test_interims_merge_for_a_slow_reader_and_no_word_is_lost() -> None:
    async def work(service: Service) -> None:
        async with service.stream("tiny.en", TranscribeOptions(), STREAMED) as job:
            await job.feed(np.zeros(40 * BLOCK, np.float32))
            job.close()
            while not job.done:
                await asyncio.sleep(0.01)
            updates = [update async for update in job.updates]
        interims = [update for update in updates if isinstance(update, Interim)]
        assert len(interims) == len(final_texts(updates)) == 8
        assert "".join(word.text for interim in interims for word in interim.words).strip() == words_said(40)

    serve(TalkingRecognizer(), work)


@pytest.mark.real
def test_draining_waits_for_work_in_progress(recognizer: Recognizer) -> None:
    async def work(service: Service) -> None:
        segments = asyncio.create_task(file_segments(service))
        while not service.admission.n_files:
            await asyncio.sleep(0.01)
        await service.drain()
        assert not service.admission.n_files
        assert await segments

    serve(recognizer, work)


def test_work_that_outlasts_the_draining_is_abandoned() -> None:
    async def work(service: Service) -> None:
        async with service.stream("tiny.en", TranscribeOptions(), STREAMED) as job:
            await job.feed(np.zeros(BLOCK, np.float32))
            draining = asyncio.create_task(service.drain())
            await leap(29)
            assert not draining.done()
            await leap(2)
            await draining
            await service.close()
            assert isinstance([update async for update in job.updates][-1], Failed)
        assert job.done

    serve(TalkingRecognizer(), work, drain_s=30)


@pytest.mark.real
def test_idle_models_are_unloaded_and_loaded_again(recognizer: Recognizer) -> None:
    async def work(service: Service) -> None:
        await file_segments(service)
        assert [model.id for model in service.models.loaded] == ["tiny.en"]
        while service.admission.n_files:
            await asyncio.sleep(0.01)
        await service.models.unload_idle(0.0)
        assert not service.models.loaded
        assert service.ready
        assert await file_segments(service)

    serve(recognizer, work)
