"""The audio of clients to samples: raw samples, or the bytes of a container such as a browser's recorder sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, Protocol

from harken.audio import stream_audio
from harken.contract import Floats
from harken.serve.pcm import PcmDecoder
from harken.serve.streams.audio_pipe import AudioPipe
from harken.types import SAMPLE_RATE

BLOCK_SAMPLES = SAMPLE_RATE // 10

Feed = Callable[[Floats], Coroutine[Any, Any, None]]


class AudioInput(Protocol):
    """A maker of samples from the bytes that come."""

    async def take(self, data: bytes) -> None:
        """Take bytes, once there is room for them; an `AudioError` says that they are no audio."""

    async def decoded(self) -> None:
        """Wait until all that can be decoded so far has been fed."""

    async def finish(self) -> None:
        """Feed what is left; an `AudioError` says that something is missing."""

    def abandon(self) -> None:
        """Give back what it holds: nobody waits for the samples any more."""


class RawInput:
    """Raw samples.

    Parameters
    ----------
    decoder : PcmDecoder
    feed : callable
        Takes samples at 16 kHz; it may wait.
    """

    def __init__(self, decoder: PcmDecoder, feed: Feed) -> None:
        self._decoder, self._feed = decoder, feed

    async def take(self, data: bytes) -> None:
        second = self._decoder.bytes_per_s
        for start in range(0, len(data), second):  # the engine serves others between blocks
            samples = self._decoder.feed(data[start : start + second])
            if len(samples):
                await self._feed(samples)

    async def decoded(self) -> None:
        return

    async def finish(self) -> None:
        await self._feed(self._decoder.flush())

    def abandon(self) -> None:
        return


class ContainerInput:
    """The audio of a container, decoded in a thread of its own while its bytes come.

    Parameters
    ----------
    feed : callable
        Takes samples at 16 kHz; it may wait.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._pipe = AudioPipe()
        self._loop = asyncio.get_running_loop()
        self._decoded: asyncio.Future[None] = self._loop.create_future()
        Thread(target=self._decode, name="harken container", daemon=True).start()

    async def take(self, data: bytes) -> None:
        await self._pipe.write(data)
        if self._decoded.done():
            self._decoded.result()

    async def decoded(self) -> None:
        await self._pipe.starved()

    async def finish(self) -> None:
        self._pipe.close()
        await self._decoded

    def abandon(self) -> None:
        if not self._decoded.cancel() and not self._decoded.cancelled():
            self._decoded.exception()  # nobody else asks for it
        self._pipe.close()

    def _decode(self) -> None:
        failure: BaseException | None = None
        try:
            for block in stream_audio(self._pipe, block_samples=BLOCK_SAMPLES):  # type: ignore[arg-type]
                if self._decoded.cancelled():
                    return
                asyncio.run_coroutine_threadsafe(self._feed(block), self._loop).result()
        except BaseException as error:
            failure = error
        self._pipe.close()
        try:
            self._loop.call_soon_threadsafe(self._end, failure)
        except RuntimeError:  # the loop has been closed
            return

    def _end(self, failure: BaseException | None) -> None:
        if self._decoded.done():
            return
        if failure:
            self._decoded.set_exception(failure)
        else:
            self._decoded.set_result(None)
