"""The audio sources of `harken listen`, the microphone among them, and the thread that reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter, sleep
from typing import Any, BinaryIO, Protocol, Self

import numpy as np

from harken.audio import stream_audio
from harken.audio.container import cancel_each_other
from harken.audio.io import Resampler, checked_floats
from harken.cli.exits import Stop, signal_stop
from harken.cli.inputs import STDIN, recording_duration_s
from harken.cli.signals import handling_signals
from harken.cli.terminal import format_table
from harken.contract import Floats
from harken.errors import AudioError, BackendUnavailable, importing
from harken.types import SAMPLE_RATE

BLOCK_S = 0.05
"""Duration of the blocks in which audio is read: the shortest possible delay of an update."""

PCM_FORMATS: dict[str, np.dtype[Any]] = {"s16le": np.dtype("<i2"), "f32le": np.dtype("<f4")}


class LiveSource(Protocol):
    """A source of audio blocks.

    Attributes
    ----------
    name : str
        Name in messages.
    live : bool
        True if the audio arrives in real time, so that blocks already read are transcribed after Ctrl-C; those of a
        file are dropped.
    lost_s : float
        Seconds of audio lost so far; silence replaces them.
    """

    name: str
    live: bool = True
    lost_s: float = 0.0

    def blocks(self) -> Generator[Floats]:
        """Yield blocks of shape (samples,), 16 kHz mono, as they arrive."""


class ContainerSource(LiveSource):
    """Recordings in any format that FFmpeg's libraries read.

    Parameters
    ----------
    source : str
        A path, or ``-`` for standard input.

    Raises
    ------
    AudioError
        If a file is not a recording; for standard input, `blocks` raises it.
    """

    def __init__(self, source: str) -> None:
        recording_duration_s(source)
        self.live = source == STDIN
        self.name = "<stdin>" if self.live else source

    def blocks(self) -> Generator[Floats]:
        """Yield the decoded blocks."""
        yield from stream_audio(
            _unbuffered_stdin() if self.live else self.name, block_samples=round(BLOCK_S * SAMPLE_RATE)
        )


@dataclass
class PcmSource(LiveSource):
    """Raw samples on standard input, in one of `PCM_FORMATS`; the channels are mixed to one."""

    format: str
    rate_hz: int
    channels: int
    name = "<stdin>"

    def blocks(self) -> Generator[Floats]:
        """Yield the blocks of standard input.

        Raises
        ------
        AudioError
            If there is no audio, samples are not finite or in another scale, or the last one is incomplete; after all
            valid blocks.
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
            valid = checked_floats(samples, samples_read, self.name, self.rate_hz)
            yield from map(resampler.feed, valid)
            samples_read += len(samples)
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
            return _mixed(scaled.reshape(-1, self.channels))


def _mixed(samples: Floats) -> Floats:
    """Return the mean of the channels of samples of shape (samples, channels), or the first of two that cancel."""
    mixed: Floats = samples[:, 0] if cancel_each_other(samples.T) else samples.mean(axis=1)
    return mixed


class RealTimeSource(LiveSource):
    """The blocks of another source in real time."""

    def __init__(self, source: LiveSource) -> None:
        self.name = source.name
        self._source = source

    def blocks(self) -> Generator[Floats]:
        """Yield each block at the time at which its last sample would be recorded."""
        began_s, samples = perf_counter(), 0
        for block in self._source.blocks():
            samples += len(block)
            sleep(max(0.0, began_s + samples / SAMPLE_RATE - perf_counter()))
            yield block


def _unbuffered_stdin() -> BinaryIO:
    """Return standard input without a buffer: a read returns the bytes that are there instead of waiting for all.

    A thread that still waits in a read then holds no lock that the interpreter needs in order to exit.
    """
    if sys.stdin is None:
        raise AudioError("<stdin>: there is no standard input")
    file: BinaryIO = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    return file


_FILE_AHEAD_S = 30.0  # longer than the slowest final pass over an utterance
_LIVE_BEHIND_S = 600.0  # 38 MB; a device that has to wait loses audio, and so does a sender in real time
_POLL_S = 0.1  # Windows reports Ctrl-C only between two waits


class AudioReader:
    """The blocks of a source, read in a thread, until the source ends or a signal arrives.

    Blocks that the caller has not taken yet are kept, those of a live source for ten minutes; then the source waits.

    The first signal only ends the audio, so that the caller can transcribe it to its end. The second one raises
    `Stop` in the caller.

    Parameters
    ----------
    source : LiveSource
    on_audio : callable, optional
        Called with every block that is or will be yielded: for a live source as soon as it arrives, in the thread,
        however far behind the caller is.

    Attributes
    ----------
    stop : Stop or None
        The stop that the first signal asked for.
    """

    def __init__(self, source: LiveSource, on_audio: Callable[[Floats], None] = lambda block: None) -> None:
        self.stop: Stop | None = None
        self.source, self._on_audio = source, on_audio
        self._queue: SimpleQueue[Floats | BaseException | None] = SimpleQueue()
        self._max_blocks = round((_LIVE_BEHIND_S if source.live else _FILE_AHEAD_S) / BLOCK_S)
        self._closed = self._answered_early = False
        self._signal_handling = ExitStack()
        self._thread = Thread(target=self._read_source, name="harken audio reader", daemon=True)

    def __enter__(self) -> Self:
        self._signal_handling.enter_context(handling_signals(self._on_signal, self._on_signal_during_call))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self._signal_handling.close()
        self._thread.join(3 * _POLL_S)  # a thread that waits for a pipe is left running

    def __iter__(self) -> Iterator[Floats]:
        """Yield the blocks in order; of a live source, also those read before a signal.

        Raises
        ------
        AudioError
            The error of the source, after its last block.
        """
        while True:
            stopped_before = self.stop is not None
            if stopped_before and not self.source.live:
                return
            try:
                block = self._queue.get(timeout=_POLL_S)
            except Empty:
                if stopped_before:
                    return
                continue
            if block is None:
                return
            if isinstance(block, BaseException):
                if self.stop and isinstance(block, AudioError):
                    return  # the signal ended the sender too, in the middle of its audio
                raise block
            if not self.source.live:
                self._on_audio(block)
            yield block

    def _read_source(self) -> None:
        """Read the source to its end, in the thread."""
        end: BaseException | None = None
        try:
            with closing(self.source.blocks()) as blocks:
                for block in blocks:
                    if self._ended:
                        break
                    if len(block):
                        self._deliver(block)
        except BaseException as error:  # any error is raised in the caller
            end = error
        self._queue.put(end)

    def _deliver(self, block: Floats) -> None:
        """Put a block into the queue as soon as there is room."""
        if self.source.live:
            self._on_audio(block)
        while self._queue.qsize() >= self._max_blocks and not self._ended:
            sleep(_POLL_S)
        self._queue.put(block)

    @property
    def _ended(self) -> bool:
        """True if no more audio is wanted."""
        return self._closed or self.stop is not None

    def _on_signal(self, number: int) -> None:
        stop = signal_stop(number)
        if self._answered_early:
            self._answered_early = False
        elif self.stop:
            raise stop
        self.stop = self.stop or stop

    def _on_signal_during_call(self, number: int) -> bool:
        """End the audio while the main thread is in a long call; return False for a second signal, which ends all."""
        if self.stop:
            return False
        self._answered_early = True  # the main thread handles this signal later
        self.stop = signal_stop(number)
        return True


_BUFFER_S = 0.2  # buffer of PortAudio while this process is busy; it does not delay the blocks


class Microphone(LiveSource):
    """An input device.

    Audio is lost if this machine is too busy to read it in time. The clock of the device shows how much: silence of
    that length replaces it, so that times stay right.

    Parameters
    ----------
    device : str, optional
        Number, or unambiguous part of the name; by default the device of the system.

    Raises
    ------
    BackendUnavailable
        If sounddevice or PortAudio is not installed.
    AudioError
        If the device does not exist or cannot be opened.
    """

    def __init__(self, device: str | None = None) -> None:
        self._portaudio = _portaudio()
        try:
            device_info = self._portaudio.query_devices(
                int(device) if device and device.isdecimal() else device, "input"
            )
        except (ValueError, self._portaudio.PortAudioError) as error:
            raise AudioError(_no_device_message(device, error)) from error
        self.name = str(device_info["name"])
        self._device = int(device_info["index"])
        self._channels, self._rate_hz = self._input_format(device_info)

    def blocks(self) -> Generator[Floats]:
        """Yield the blocks that the device records.

        Raises
        ------
        AudioError
            If the device is busy or is disconnected.
        """
        frames = round(BLOCK_S * self._rate_hz)
        resampler = Resampler(self._rate_hz)
        try:
            with self._portaudio.InputStream(
                device=self._device,
                channels=self._channels,
                samplerate=self._rate_hz,
                dtype="int16",
                latency=_BUFFER_S,
            ) as device:
                read_to_s = None
                while True:
                    samples, overflowed = device.read(frames)
                    before_s, read_to_s = read_to_s, device.time - device.read_available / self._rate_hz
                    if overflowed and before_s is not None:
                        yield resampler.feed(self._silence(read_to_s - before_s - frames / self._rate_hz))
                    yield resampler.feed(_mixed(samples.astype(np.float32)) / np.float32(32768))
        except self._portaudio.PortAudioError as error:
            raise AudioError(f"microphone {self.name}: {_error_line(error)}") from error

    def _silence(self, lost_s: float) -> Floats:
        """Return silence in place of lost audio."""
        lost = max(0, round(lost_s * self._rate_hz))
        self.lost_s += lost / self._rate_hz
        return np.zeros(lost, np.float32)

    def _input_format(self, device_info: dict[str, Any]) -> tuple[int, int]:
        """Return channels and rate that the device supports, those that need the least conversion first."""
        native_rate_hz = round(device_info["default_samplerate"])
        for input_format in (
            (1, SAMPLE_RATE),
            (1, native_rate_hz),
            (int(device_info["max_input_channels"]), native_rate_hz),
        ):
            try:
                self._portaudio.check_input_settings(
                    device=self._device, channels=input_format[0], samplerate=input_format[1], dtype="int16"
                )
            except self._portaudio.PortAudioError as error:
                refusal = error
            else:
                return input_format
        raise AudioError(f"microphone {self.name}: cannot be opened: {_error_line(refusal)}") from refusal


def microphone_table() -> str:
    """Return a table of the input devices: number, name, rate and channels; a star marks the default."""
    portaudio = _portaudio()
    devices = [device for device in portaudio.query_devices() if device["max_input_channels"] > 0]
    if not devices:
        raise AudioError(_no_device_message(None, None))
    default = portaudio.default.device[0]
    return format_table(
        [
            ("", "NUMBER", "NAME", "RATE", "CHANNELS"),
            *(
                (
                    "*" if device["index"] == default else "",
                    str(device["index"]),
                    device["name"],
                    f"{device['default_samplerate']:.0f} Hz",
                    str(device["max_input_channels"]),
                )
                for device in devices
            ),
        ]
    )


def _portaudio() -> Any:
    try:
        with importing("mic", "the microphone"):
            import sounddevice
    except OSError as error:  # wheels for Linux do not include the library
        raise BackendUnavailable(
            f"the microphone needs PortAudio, which is not installed ({error}): apt install libportaudio2, "
            "or what this system calls it"
        ) from error
    return sounddevice


def _no_device_message(device: str | None, error: Exception | None) -> str:
    if device is None:
        return "there is no microphone on this machine; allowed is a file, or - for standard input, too"
    return f"microphone {device!r}: {_error_line(error)}; 'harken listen --list-microphones' lists them"


def _error_line(error: Exception | None) -> str:
    """Return the first line of an error of PortAudio, without its code."""
    return str(error).splitlines()[0].partition(" [PaErrorCode")[0]
