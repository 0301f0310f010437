"""The microphone, through PortAudio: the extra ``harken[mic]``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from harken.audio.resample import Resampler
from harken.cli.layout import aligned
from harken.cli.sources import BLOCK_S
from harken.contract import Floats
from harken.errors import AudioError, BackendUnavailable
from harken.types import SAMPLE_RATE

_BUFFER_S = 0.2  # PortAudio keeps that much while this process is busy; a block is there as soon as it is full


class Microphone:
    """`harken.cli.sources.Source` of an input device.

    Sound that this machine was too busy to take in time is gone. How much it was is known from the clock of the device:
    so much silence is put in its place, and times stay true.

    Parameters
    ----------
    device : str, optional
        Its number, or a part of its name that no other has; by default that of the system.

    Raises
    ------
    BackendUnavailable
        If sounddevice or PortAudio is not installed.
    AudioError
        If there is no such device, or it cannot be opened.
    """

    live = True

    def __init__(self, device: str | None = None) -> None:
        self._portaudio = _portaudio()
        try:
            found = self._portaudio.query_devices(_key(device), "input")
        except (ValueError, self._portaudio.PortAudioError) as error:
            raise AudioError(_missing(device, error)) from error
        self.name = str(found["name"])
        self.lost_s = 0.0
        self._device = int(found["index"])
        self._channels, self._rate_hz = self._form(found)

    def blocks(self) -> Generator[Floats]:
        """Listen.

        Raises
        ------
        AudioError
            If the device is busy, or goes away.
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
                        yield resampler.push(self._silence(read_to_s - before_s - frames / self._rate_hz))
                    yield resampler.push(samples.mean(axis=1, dtype=np.float32) / np.float32(32768))
        except self._portaudio.PortAudioError as error:
            raise AudioError(f"microphone {self.name}: {_reason(error)}") from error

    def _silence(self, lost_s: float) -> Floats:
        """What stands in for sound that was lost."""
        lost = max(0, round(lost_s * self._rate_hz))
        self.lost_s += lost / self._rate_hz
        return np.zeros(lost, np.float32)

    def _form(self, found: dict[str, Any]) -> tuple[int, int]:
        """Channels and rate that it can be opened with; what needs the least work first."""
        own_hz = round(found["default_samplerate"])
        for form in ((1, SAMPLE_RATE), (1, own_hz), (int(found["max_input_channels"]), own_hz)):
            try:
                self._portaudio.check_input_settings(
                    device=self._device, channels=form[0], samplerate=form[1], dtype="int16"
                )
            except self._portaudio.PortAudioError as error:
                refused = error
            else:
                return form
        raise AudioError(f"microphone {self.name}: cannot be opened: {_reason(refused)}") from refused


def table() -> str:
    """The input devices: number, name, rate and channels; the default one has a mark.

    Raises
    ------
    BackendUnavailable
        If sounddevice or PortAudio is not installed.
    AudioError
        If there is none.
    """
    portaudio = _portaudio()
    devices = [device for device in portaudio.query_devices() if device["max_input_channels"] > 0]
    if not devices:
        raise AudioError(_missing(None, None))
    default = portaudio.default.device[0]
    return aligned(
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
        import sounddevice
    except ImportError as error:
        raise BackendUnavailable(
            f"{error.name} is not installed, which the microphone needs: pip install 'harken[mic]'"
        ) from error
    except OSError as error:  # wheels for Linux come without the library itself
        raise BackendUnavailable(
            f"the microphone needs PortAudio, which is not installed ({error}): apt install libportaudio2, "
            "or what this system calls it"
        ) from error
    return sounddevice


def _key(device: str | None) -> int | str | None:
    return int(device) if device and device.isdecimal() else device


def _missing(device: str | None, error: Exception | None) -> str:
    if device is None:
        return "there is no microphone on this machine; allowed is a file, or - for standard input, too"
    return f"microphone {device!r}: {_reason(error)}; 'harken listen --list-microphones' shows which there are"


def _reason(error: Exception | None) -> str:
    """One line of what PortAudio says, without its numbers."""
    return str(error).splitlines()[0].partition(" [PaErrorCode")[0]
