"""An utterance of a client of the Wyoming protocol: audio in, chunks of the transcript and the transcript out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from harken.contract import Floats
from harken.errors import OptionError
from harken.option_types import checked_value
from harken.serve.errors import RequestError
from harken.serve.pcm import PcmDecoder
from harken.serve.work.live_job import Failed, LiveJob
from harken.streaming import FinalSegment
from harken.types import SAMPLE_RATE

ENCODINGS: Mapping[int, str] = MappingProxyType({1: "s16le", 2: "s16le", 4: "s32le"})
"""Encodings of samples, by their bytes; those of one byte are widened."""

Send = Callable[[str, Mapping[str, Any]], Awaitable[None]]
AudioFormat = tuple[int, int, int]
"""Rate in Hz, bytes of a sample, channels."""


class Utterance:
    """The audio up to an ``audio-stop``, and its transcript.

    Parameters
    ----------
    job : LiveJob
    send : callable
        Sends an event, given its type and data.
    limit_s : float
        Longest audio, in seconds; 0 for no limit.
    """

    def __init__(self, job: LiveJob, send: Send, limit_s: float) -> None:
        self._job, self._send, self._limit_s = job, send, limit_s
        self._format: AudioFormat | None = None
        self._decoder: PcmDecoder | None = None
        self._n_samples = 0
        self._texts: list[str] = []
        self._language: str | None = None
        self._sending = asyncio.create_task(self._send_chunks())

    async def take(self, audio: bytes, format: AudioFormat) -> None:
        """Take samples; wait while many are pending.

        Raises
        ------
        OptionError
            If the format is not allowed.
        RequestError
            If the audio is too long.
        """
        if self._sending.done():
            self._sending.result()
        if self._decoder is None or format != self._format:
            await self._flush()
            rate, width, channels = self._format = format
            self._decoder = PcmDecoder(ENCODINGS[width], rate, channels)
        data = _widened(audio) if format[1] == 1 else audio
        second = self._decoder.bytes_per_s
        for start in range(0, len(data), second):  # the engine serves others between blocks
            await self._feed(self._decoder.feed(data[start : start + second]))

    async def finish(self) -> None:
        """Send what is left of the transcript, and the whole."""
        await self._flush()
        self._job.close()
        await self._sending
        await send_transcript(self._send, "".join(self._texts), self._language, started=bool(self._texts))

    async def abandon(self) -> None:
        """Send no more."""
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)

    async def _flush(self) -> None:
        if self._decoder:
            await self._feed(self._decoder.flush())

    async def _feed(self, samples: Floats) -> None:
        self._n_samples += len(samples)
        if self._limit_s and self._n_samples > self._limit_s * SAMPLE_RATE:
            raise RequestError(f"the audio is longer than {self._limit_s:g} s", code="session_limit")
        if len(samples):
            await self._job.feed(samples)

    async def _send_chunks(self) -> None:
        async for update in self._job.updates:
            match update:
                case Failed(failure=failure):
                    raise failure
                case FinalSegment(segment=segment):
                    text = segment.text if self._texts else segment.text.lstrip()
                    if not self._texts:
                        self._language = segment.language
                        await self._send("transcript-start", _with_language({}, self._language))
                    self._texts.append(text)
                    await self._send("transcript-chunk", {"text": text})


async def send_transcript(send: Send, text: str, language: str | None, *, started: bool) -> None:
    """Send the transcript with what goes before and after it."""
    if not started:
        await send("transcript-start", _with_language({}, language))
    await send("transcript", _with_language({"text": text}, language))
    await send("transcript-stop", {})


def audio_format(data: Mapping[str, Any]) -> AudioFormat:
    """Return the format in the data of an event.

    Raises
    ------
    OptionError
        If part of it is missing, or not allowed.
    """
    rate, width, channels = (checked_value(name, data.get(name), int) for name in ("rate", "width", "channels"))
    if width not in ENCODINGS:
        raise OptionError("width", width, f"{', '.join(map(str, ENCODINGS))} bytes")
    PcmDecoder(ENCODINGS[width], rate, channels)
    return rate, width, channels


def _widened(samples: bytes) -> bytes:
    """Return unsigned samples of one byte as signed ones of two."""
    return ((np.frombuffer(samples, np.uint8).astype("<i2") - 128) << 8).astype("<i2").tobytes()


def _with_language(data: dict[str, Any], language: str | None) -> dict[str, Any]:
    return data | {"language": language} if language else data
