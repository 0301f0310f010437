"""The service: files and streams on one engine give the text of each alone, and idle models leave the memory."""

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from clients import FileClient, played, until
from leaping import leap
from served_audio import wav

from fakes.live_sessions import WORD_SAMPLES, words_said
from harken.audio import load_audio
from harken.serve.errors import RequestError
from harken.serve.options import ServeOptions
from harken.serve.service import Service
from harken.serve.work.engine import Failed
from harken.serve.work.jobs import OpenStream
from harken.streaming import FinalSegment, Interim, StreamOptions
from harken.transcribe import TranscribeOptions
from real_models import EXAMPLE

STREAM = OpenStream("tiny.en", TranscribeOptions(), StreamOptions(finals="streamed"))


def begin(recognizer, audio, options):
    return recognizer.transcribe(audio, options)


async def file_segments(service, samples):
    async with service.file("whisper-1", io.BytesIO(wav(samples)), TranscribeOptions(), 11.0, begin) as job:
        updates = [update async for update in job.updates]
    assert job.work.finished
    return [segment for update in updates for segment in update.segments]


async def stream_texts(service, samples):
    async with service.stream(STREAM) as job:

        async def send():
            for start in range(0, len(samples), WORD_SAMPLES):
                await job.feed(samples[start : start + WORD_SAMPLES])
            job.ask("close")

        sending = asyncio.create_task(send())
        texts = [update.segment.text async for update in job.updates if isinstance(update, FinalSegment)]
        await sending
    return texts


@pytest.mark.real
@played()
async def test_interleaved_work_gives_the_text_of_each_alone(stage, unhurried):
    stage.model = unhurried
    speech, silence = load_audio(EXAMPLE), np.zeros(32_000, np.float32)
    utterances = np.concatenate([speech[:58_000], silence, speech[58_000:120_000], silence])
    alone = [*unhurried.transcribe(io.BytesIO(wav(utterances)))]
    session = unhurried.stream(stream_options=STREAM.stream_options)
    events = [*session.feed(utterances), *session.close()]
    live_alone = [event.segment.text for event in events if isinstance(event, FinalSegment)]
    assert len(alone) > 1
    assert len(live_alone) > 1
    files = [file_segments(stage.service, utterances) for _ in range(2)]
    *interleaved, texts = await asyncio.gather(*files, stream_texts(stage.service, utterances))
    assert interleaved == [alone, alone]
    assert texts == live_alone


@played()
async def test_interims_merge_for_a_slow_reader_and_no_word_is_lost(stage):
    async with stage.service.stream(STREAM) as job:
        await job.feed(np.zeros(40 * WORD_SAMPLES, np.float32))
        job.ask("close")
        await until(lambda: job.done)
        updates = [update async for update in job.updates]
    interims = [update for update in updates if isinstance(update, Interim)]
    assert len(interims) == sum(isinstance(update, FinalSegment) for update in updates) == 8
    assert "".join(word.text for interim in interims for word in interim.words).strip() == words_said(40)


@played(drain_s=30)
async def test_work_that_outlasts_the_draining_is_abandoned(stage):
    async with stage.service.stream(STREAM) as job:
        await job.feed(np.zeros(WORD_SAMPLES, np.float32))
        draining = asyncio.create_task(stage.service.drain())
        await leap(29)
        assert not draining.done()
        await leap(2)
        await draining
        await stage.service.close()
        assert isinstance([update async for update in job.updates][-1], Failed)
    assert job.done


@pytest.mark.parametrize("tells_speakers", [False, True])
def test_who_waits_for_a_model_while_the_server_ends_is_told_to_come_again(tells_speakers):
    loading, never = Event(), Event()

    def load(*id):
        loading.set()
        never.wait()

    async def use():
        service = Service(load, ["tiny.en"], ServeOptions(preload=False), {}, load)
        samples = np.zeros(WORD_SAMPLES, np.float32)
        wanted = service.diarizer("speakers") if tells_speakers else file_segments(service, samples)
        request = asyncio.create_task(wanted)
        await asyncio.to_thread(loading.wait)
        await service.close()
        with pytest.raises(RequestError) as told:
            await request
        assert (told.value.status, told.value.code) == (503, "draining")
        assert told.value.retry_after_s

    try:
        asyncio.run(use())
    finally:
        never.set()


@played(preload=True, unload_after_s=75)
async def test_idle_models_are_unloaded_and_loaded_again(stage):
    models = stage.service.models
    assert not stage.service.ready
    unloading = asyncio.create_task(stage.service.unload_idle_models())
    for _ in range(2):
        client = await stage.connect(FileClient, says=6)
        await until(client.serving.done)  # the model is idle from now on
        assert client.text == words_said(6)
        await leap(70)
        assert [model.id for model in models.loaded] == ["tiny.en"]
        while models.loaded:
            await leap(40)
        assert stage.service.ready
    unloading.cancel()


@played(preload=True, unload_after_s=75)
async def test_an_engine_ends_whose_unloading_is_cancelled_while_no_thread_of_the_pool_is_free(stage):
    client = await stage.connect(FileClient, says=6)
    await until(client.serving.done)
    unloading, release = asyncio.create_task(stage.service.unload_idle_models()), Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    holding = asyncio.create_task(asyncio.to_thread(release.wait))
    while stage.service.models.loaded:
        await leap(40)
    unloading.cancel()
    release.set()
    await holding
