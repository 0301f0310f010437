"""What `harken listen` can listen to: recordings, raw samples on standard input, and how fast they come."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from time import perf_counter, sleep
from types import FrameType, TracebackType
from typing import Any, BinaryIO, Protocol, Self

import numpy as np

from harken.audio import stream_audio
from harken.audio.container import NOT_FINITE
from harken.audio.resample import Resampler
from harken.cli.exits import Stop
from harken.cli.inputs import STDIN, recording_duration_s
from harken.cli.root import SIGNALS
from harken.contract import Floats
from harken.errors import AudioError
from harken.types import SAMPLE_RATE

BLOCK_S = 0.05
"""Length of the blocks in which sound is read: the least that an update can be late by."""

PCM_FORMATS: dict[str, np.dtype[Any]] = {"s16le": np.dtype("<i2"), "f32le": np.dtype("<f4")}


class LiveSource(Protocol):
    """Sound that arrives.

    Attributes
    ----------
    name : str
        How messages call it.
    live : bool
        Whether sound that has been read has been heard by people; the rest of a file has not.
    lost_s : float
        Seconds that were lost so far; silence stands in for them.
    """

    name: str
    live: bool
    lost_s: float

    def blocks(self) -> Generator[Floats]:
        """Blocks of shape (samples,), 16 kHz mono, as they come; waits for them."""
        ...


class ContainerSource:
    """`Source` of anything that FFmpeg's libraries read.

    Parameters
    ----------
    source : str
        A path, or ``-`` for standard input.

    Raises
    ------
    AudioError
        If a file is no recording; standard input shows that only when it is read.
    """

    lost_s = 0.0

    def __init__(self, source: str) -> None:
        recording_duration_s(source)
        self.live = source == STDIN
        self.name = "<stdin>" if self.live else source

    def blocks(self) -> Generator[Floats]:
        """Decode it."""
        yield from stream_audio(
            _unbuffered_stdin() if self.live else self.name, block_samples=round(BLOCK_S * SAMPLE_RATE)
        )


@dataclass
class PcmSource:
    """`Source` of raw samples on standard input.

    Parameters
    ----------
    format : str
        A key of `PCM_FORMATS`.
    rate_hz : int
    channels : int
        They are mixed to one.
    """

    format: str = "s16le"
    rate_hz: int = SAMPLE_RATE
    channels: int = 1
    name = "<stdin>"
    live = True
    lost_s = 0.0

    def blocks(self) -> Generator[Floats]:
        """Read it.

        Raises
        ------
        AudioError
            If there is none, a sample is not finite, or the last one is not whole; behind all that could be read.
        """
        dtype = PCM_FORMATS[self.format]
        sample_bytes = dtype.itemsize * self.channels
        block_bytes = max(1, round(BLOCK_S * self.rate_hz)) * sample_bytes
        file, resampler, incomplete, samples_read = _unbuffered_stdin(), Resampler(self.rate_hz), b"", 0
        while data := file.read(block_bytes):
            data = incomplete + data
            whole_bytes = len(data) // sample_bytes * sample_bytes
            incomplete = data[whole_bytes:]
            samples = self._mono(np.frombuffer(data[:whole_bytes], dtype))
            if not np.isfinite(samples).all():
                raise AudioError(f"{self.name}: at {samples_read / self.rate_hz:.2f} s: {NOT_FINITE}")
            samples_read += len(samples)
            yield resampler.feed(samples)
        yield resampler.flush()
        if incomplete:
            raise AudioError(
                f"{self.name}: ends with {len(incomplete)} of the {sample_bytes} bytes of a sample; given as "
                f"{self.format}, channels: {self.channels}"
            )
        if not samples_read:
            raise AudioError(f"{self.name}: is empty (0 bytes)")

    def _mono(self, samples: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = samples.astype(np.float32) / np.float32(32768 if self.format == "s16le" else 1)
            mixed: Floats = scaled.reshape(-1, self.channels).mean(axis=1)
        return mixed


class RealTimeSource:
    """`Source` that lets another one out in real time.

    Parameters
    ----------
    source : Source
    clock, sleep : callable
        Of real time, in seconds.
    """

    live = True

    def __init__(
        self,
        source: LiveSource,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        self.name = source.name
        self.lost_s = source.lost_s
        self._source, self._clock, self._sleep = source, clock, sleep

    def blocks(self) -> Generator[Floats]:
        """Each block once it would have been spoken to its end."""
        began_s, samples = self._clock(), 0
        for block in self._source.blocks():
            samples += len(block)
            self._sleep(max(0.0, began_s + samples / SAMPLE_RATE - self._clock()))
            yield block


def _unbuffered_stdin() -> BinaryIO:
    """Standard input without a buffer: it gives what has come, instead of waiting for as much as was asked for.

    Nor does a thread that still waits in it hold a lock that the interpreter needs in order to end.
    """
    if sys.stdin is None:
        raise AudioError("<stdin>: there is no standard input")
    file: BinaryIO = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    return file


_QUEUE_S = 30.0  # whoever sends faster waits; longer than the slowest final pass over an utterance
_POLL_S = 0.1  # Windows tells of Ctrl-C only between two waits


class AudioReader:
    """The blocks of a source, until it ends or a signal ends it.

    The first signal ends the sound and nothing else: the caller can finish what it has heard. The next one raises
    `Stop`, wherever the caller is.

    Parameters
    ----------
    source : Source

    Attributes
    ----------
    stop : Stop or None
        What ended it early.
    """

    def __init__(self, source: LiveSource) -> None:
        self.stop: Stop | None = None
        self._source = source
        self._queue: Queue[Floats | BaseException | None] = Queue(round(_QUEUE_S / BLOCK_S))
        self._stopped = Event()
        self._thread = Thread(target=self._read_source, name="harken intake", daemon=True)

    def __enter__(self) -> Self:
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous_handlers = {number: signal.signal(number, self._on_signal) for number in handled}
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._thread.join(3 * _POLL_S)  # one that waits for a pipe is left behind

    @property
    def lost_s(self) -> float:
        """Seconds that the source has lost so far."""
        return self._source.lost_s

    def __iter__(self) -> Iterator[Floats]:
        """Blocks in order; what had been heard before a signal is among them.

        Raises
        ------
        AudioError
            What the source raised, behind its last block.
        """
        while True:
            if self.stop:
                self._stopped.set()
                if not self._source.live:
                    return
            try:
                block = self._queue.get(timeout=_POLL_S)
            except Empty:
                if self.stop:
                    return
                continue
            if block is None:
                return
            if isinstance(block, BaseException):
                raise block
            yield block

    def _read_source(self) -> None:
        """Work of the thread."""
        end: BaseException | None = None
        try:
            with closing(self._source.blocks()) as blocks:
                for block in blocks:
                    if len(block) and not self._put(block):
                        break
        except BaseException as error:  # goes to the caller, whatever it is
            end = error
        self._put(end)

    def _put(self, block: Floats | BaseException | None) -> bool:
        """Put it into the queue; False if nobody wants it any more."""
        while not self._stopped.is_set():
            try:
                self._queue.put(block, timeout=_POLL_S)
            except Full:
                continue
            return True
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        stop = Stop(128 + number, SIGNALS[signal.Signals(number)])
        if self.stop:
            raise stop
        self.stop = stop
