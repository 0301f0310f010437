"""The part of the module sounddevice that a microphone needs; its clock advances with the frames that are read."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from audio_files import tone


@cache
def tone_samples(rate_hz: int = 16_000) -> np.ndarray:
    """Return what every device hears."""
    return tone(2, rate_hz)


class PortAudioError(Exception):
    """The error class of sounddevice."""


def device(index: int, name: str, rate_hz: float = 48_000, inputs: int = 1) -> dict[str, Any]:
    return {"index": index, "name": name, "default_samplerate": rate_hz, "max_input_channels": inputs}


class PortAudio:
    """The module, with devices.

    Attributes
    ----------
    formats : set of (int, int)
        Channels and rates that a device supports.
    second : int
        Factor of the second channel.
    lost : dict of int to int
        Number of frames lost before a read, by the index of the read.
    breaks : int or None
        Index of the read that fails.
    """

    PortAudioError = PortAudioError

    def __init__(self, *devices: dict[str, Any]) -> None:
        self.devices = list(devices)
        self.default = SimpleNamespace(device=(0, 0))
        self.formats = {(1, 16_000)}
        self.second = 1
        self.lost: dict[int, int] = {}
        self.breaks: int | None = None
        self.opened: list[dict[str, Any]] = []
        self.closed = 0

    def query_devices(self, key: int | str | None = None, kind: str | None = None) -> Any:
        if kind is None:
            return self.devices
        inputs = [info for info in self.devices if info["max_input_channels"]]
        if key is None or isinstance(key, int):
            found = [info for info in inputs if info["index"] == (key or 0)]
            if not found:
                raise PortAudioError(f"Error querying device {-1 if key is None else key}")
        else:
            found = [info for info in inputs if key in info["name"]]
            if len(found) != 1:
                raise ValueError(f"{'Multiple' if found else 'No'} input device matching {key!r}")
        return found[0]

    def check_input_settings(self, device: int, channels: int, samplerate: int, dtype: str) -> None:
        if (channels, samplerate) not in self.formats:
            raise PortAudioError("Error opening: Invalid sample rate [PaErrorCode -9997]")

    def InputStream(self, **settings: Any) -> _Stream:  # noqa: N802
        self.opened.append(settings)
        return _Stream(self, settings["samplerate"], settings["channels"])


class _Stream:
    """An input stream of a tone; every read empties the buffer of the device."""

    read_available = 0

    def __init__(self, portaudio: PortAudio, rate_hz: int, channels: int) -> None:
        self._portaudio, self._rate_hz, self._channels = portaudio, rate_hz, channels
        self._frame = self._reads = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._portaudio.closed += 1

    @property
    def time(self) -> float:
        return 1234.5 + self._frame / self._rate_hz

    def read(self, frames: int) -> tuple[np.ndarray, bool]:
        if self._reads == self._portaudio.breaks:
            raise PortAudioError("Unanticipated host error [PaErrorCode -9999]: gone\nand more")
        lost = self._portaudio.lost.get(self._reads, 0)
        self._reads += 1
        begin = self._frame + lost
        self._frame = begin + frames
        samples = np.rint(tone_samples(self._rate_hz)[begin : self._frame] * 32768).astype(np.int16)
        return np.stack([samples, self._portaudio.second * samples][: self._channels], axis=1), lost > 0
