"""The audio of clients to samples: raw, or in a container such as a browser's recorder sends; cut anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from threading import Condition
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.audio import stream_audio
from harken.audio.io import Resampler, checked_floats
from harken.contract import Floats
from harken.option_types import check, option
from harken.serve.waiting import Changes, in_daemon_thread
from harken.types import SAMPLE_RATE

RATES_HZ = range(8_000, 48_001)
CONTAINER = "container"
BLOCK_SAMPLES = SAMPLE_RATE // 10
MAX_PIPE_BYTES = 1 << 18
"""Bytes of a container that may wait for the thread that decodes them."""

Feed = Callable[[Floats], Coroutine[Any, Any, None]]
"""Takes samples at 16 kHz; it may wait."""


def _mu_law_levels() -> NDArray[np.int16]:
    """Return the level of each byte of G.711 mu-law."""
    code = ~np.arange(256, dtype=np.uint8)
    magnitude = ((((code & 0x0F).astype(np.int32) << 3) + 0x84) << ((code & 0x70) >> 4)) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _a_law_levels() -> NDArray[np.int16]:
    """Return the level of each byte of G.711 A-law."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    mantissa, exponent = ((code & 0x0F).astype(np.int32) << 4) + 8, ((code & 0x70) >> 4).astype(np.int32)
    magnitude = np.where(exponent, (mantissa + 0x100) << np.maximum(exponent - 1, 0), mantissa)
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


_MU_LAW_LEVELS, _A_LAW_LEVELS = _mu_law_levels(), _a_law_levels()


# The type of a sample in a message, and what makes samples of the resampler's types of it.
_ENCODINGS: dict[str, tuple[np.dtype[Any], Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "u8": (np.dtype("u1"), lambda codes: (codes.astype(np.int16) - 128) << 8),
    "s16le": (np.dtype("<i2"), lambda samples: samples.astype(np.int16)),
    "s32le": (np.dtype("<i4"), lambda samples: samples.astype(np.int32)),
    "f32le": (np.dtype("<f4"), lambda samples: samples.astype(np.float32)),
    "mulaw": (np.dtype("u1"), lambda codes: _MU_LAW_LEVELS[codes]),
    "alaw": (np.dtype("u1"), lambda codes: _A_LAW_LEVELS[codes]),
}
FORMATS = (*_ENCODINGS, CONTAINER)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioFormat:
    """The format of the audio of a client.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    # Of raw samples, or ``"container"`` for the bytes of any file or recorder; these have a rate of their own.
    format: str = option("s16le", choices=FORMATS)
    rate: int = option(SAMPLE_RATE, low=RATES_HZ[0], high=RATES_HZ[-1], noun="a rate in Hz")
    channels: int = option(1, low=1, high=2)  # interleaved; they are mixed

    def __post_init__(self) -> None:
        check(self)

    @property
    def bytes_per_s(self) -> int:
        """Bytes of a second of raw samples."""
        return _ENCODINGS[self.format][0].itemsize * self.channels * self.rate


class PcmDecoder:
    """A decoder of one stream of raw audio to float32 at 16 kHz.

    The samples do not depend on how the bytes were cut into messages; a cut inside a sample is allowed.

    Parameters
    ----------
    audio : AudioFormat
        Of raw samples.
    """

    def __init__(self, audio: AudioFormat) -> None:
        self._type, self._to_levels = _ENCODINGS[audio.format]
        self._frame_bytes = self._type.itemsize * audio.channels
        levels = self._to_levels(np.zeros(0, self._type))
        self._resampler = Resampler(audio.rate, audio.channels, levels.dtype)
        self._rest = b""
        self._n_read, self._samples_per_s = 0, audio.rate * audio.channels

    def feed(self, data: bytes | memoryview) -> Floats:
        """Take bytes and return the samples that are ready.

        Raises
        ------
        AudioError
            If floats are not finite or in another scale.
        """
        whole = b"".join((self._rest, data))
        n_bytes = len(whole) // self._frame_bytes * self._frame_bytes
        self._rest = whole[n_bytes:]
        levels = self._to_levels(np.frombuffer(whole[:n_bytes], self._type))
        if levels.dtype == np.float32:
            valid = checked_floats(levels, self._n_read, AudioPipe.name, self._samples_per_s)
            levels = np.concatenate([*valid])
        self._n_read += len(levels)
        return self._resampler.feed(levels)

    def flush(self) -> Floats:
        """Return the samples that waited for later ones; a sample that is cut there comes with the next."""
        return self._resampler.flush()


class _RawInput:
    """Raw samples."""

    def __init__(self, audio: AudioFormat, feed: Feed) -> None:
        self._decoder, self._bytes_per_s, self._feed = PcmDecoder(audio), audio.bytes_per_s, feed

    async def take(self, data: bytes) -> None:
        second = self._bytes_per_s
        for start in range(0, len(data), second):  # the engine serves others between blocks
            await self._feed(self._decoder.feed(data[start : start + second]))

    async def decoded(self) -> None:
        await self._feed(self._decoder.flush())

    async def finish(self, *, whole: bool) -> None:
        await self.decoded()

    def abandon(self) -> None:
        return


class _ContainerInput:
    """The audio of a container, decoded in a thread of its own while its bytes come."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self._pipe, self._loop = feed, AudioPipe(), asyncio.get_running_loop()
        self._decoding = asyncio.create_task(in_daemon_thread(self._decode, "harken container"))

    async def take(self, data: bytes) -> None:
        """Take bytes, once there is room for them; an `AudioError` says that they are no audio."""
        await self._pipe.write(data)
        if self._decoding.done():
            self._decoding.result()

    async def decoded(self) -> None:
        """Wait until all that can be decoded so far has been fed."""
        await self._pipe.starved()

    async def finish(self, *, whole: bool) -> None:
        """Feed what is left; if it is to be whole, an `AudioError` says that something is missing."""
        if whole:
            self._pipe.close()
            await self._decoding
        self.abandon()

    def abandon(self) -> None:
        """Give back what it holds: nobody waits for the samples any more."""
        if not self._decoding.cancel() and not self._decoding.cancelled():
            self._decoding.exception()  # nobody else asks for it
        self._pipe.close()

    def _decode(self) -> None:
        try:
            for block in stream_audio(self._pipe, block_samples=BLOCK_SAMPLES):  # type: ignore[arg-type]
                if self._decoding.cancelling():
                    return
                asyncio.run_coroutine_threadsafe(self._feed(block), self._loop).result()
        finally:
            self._pipe.close()


AudioInput = _RawInput | _ContainerInput
"""A maker of samples from the bytes that come."""


def open_input(audio: AudioFormat, feed: Feed) -> AudioInput:
    """Return what decodes audio of a format, and feeds it to a stream."""
    return _ContainerInput(feed) if audio.format == CONTAINER else _RawInput(audio, feed)


class AudioPipe:
    """A file that holds little: each side waits for the other.

    Notes
    -----
    It belongs to the event loop that runs while it is made.
    """

    name = "the audio"

    def __init__(self) -> None:
        self._data = bytearray()
        self._changed = Condition()
        self._starved = self._closed = False
        self._changes = Changes()

    def read(self, size: int) -> bytes:
        """Take up to `size` bytes, in the thread; none at the end."""
        with self._changed:
            while not self._data and not self._closed:
                self._starved = True
                self._changes.tell()
                self._changed.wait()
            self._starved = False
            data = bytes(self._data[:size])
            del self._data[:size]
        self._changes.tell()
        return data

    async def write(self, data: bytes) -> None:
        """Add bytes, once there is room; those behind the end of the audio are dropped."""
        await self._changes.until(lambda: len(self._data) < MAX_PIPE_BYTES or self._closed)
        with self._changed:
            if not self._closed:
                self._data += data
            self._starved = False
            self._changed.notify()

    async def starved(self) -> None:
        """Wait until the thread has read all, and asks for more."""
        await self._changes.until(lambda: self._starved or self._closed)

    def close(self) -> None:
        """End the file behind what has been written."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._changes.tell()
