"""The microphone as an audio source, through PortAudio (the extra ``harken[mic]``)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from harken.audio.resample import Resampler
from harken.cli.screen import format_table
from harken.cli.sources import BLOCK_S
from harken.contract import Floats
from harken.errors import AudioError, BackendUnavailable, install_hint
from harken.types import SAMPLE_RATE

_BUFFER_S = 0.2  # buffer of PortAudio while this process is busy; it does not delay the blocks


class Microphone:
    """The `harken.cli.sources.LiveSource` of an input device.

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

    live = True

    def __init__(self, device: str | None = None) -> None:
        self._portaudio = _portaudio()
        try:
            device_info = self._portaudio.query_devices(_device_key(device), "input")
        except (ValueError, self._portaudio.PortAudioError) as error:
            raise AudioError(_no_device_message(device, error)) from error
        self.name = str(device_info["name"])
        self.lost_s = 0.0
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
                    yield resampler.feed(samples.mean(axis=1, dtype=np.float32) / np.float32(32768))
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
    """Return a table of the input devices: number, name, rate and channels; a star marks the default.

    Raises
    ------
    BackendUnavailable
        If sounddevice or PortAudio is not installed.
    AudioError
        If there is no input device.
    """
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
        import sounddevice
    except ImportError as error:
        raise BackendUnavailable(
            f"{error.name} is not installed, which the microphone needs: {install_hint('mic')}"
        ) from error
    except OSError as error:  # wheels for Linux do not include the library
        raise BackendUnavailable(
            f"the microphone needs PortAudio, which is not installed ({error}): apt install libportaudio2, "
            "or what this system calls it"
        ) from error
    return sounddevice


def _device_key(device: str | None) -> int | str | None:
    return int(device) if device and device.isdecimal() else device


def _no_device_message(device: str | None, error: Exception | None) -> str:
    if device is None:
        return "there is no microphone on this machine; allowed is a file, or - for standard input, too"
    return f"microphone {device!r}: {_error_line(error)}; 'harken listen --list-microphones' lists them"


def _error_line(error: Exception | None) -> str:
    """Return the first line of an error of PortAudio, without its code."""
    return str(error).splitlines()[0].partition(" [PaErrorCode")[0]
