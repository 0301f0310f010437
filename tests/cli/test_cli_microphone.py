"""The microphone, over a fake of PortAudio: choice of device and rate, and lost audio."""

from __future__ import annotations

import sys
from functools import cache
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audio_files import tone
from harken.cli.sources import Microphone, microphone_table
from harken.errors import AudioError, BackendUnavailable


@cache
def tone_samples(rate_hz: int = 16_000) -> np.ndarray:
    return tone(2, rate_hz)


class PortAudioError(Exception):
    """The error class of sounddevice."""


def device(index: int, name: str, rate_hz: float = 48_000, inputs: int = 1) -> dict[str, Any]:
    return {"index": index, "name": name, "default_samplerate": rate_hz, "max_input_channels": inputs}


class PortAudio:
    """The part of the module sounddevice that a microphone needs; its clock advances with the frames that are read.

    Attributes
    ----------
    formats : set of (int, int)
        Channels and rates that a device supports.
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

    def InputStream(self, **settings: Any) -> Stream:  # noqa: N802
        self.opened.append(settings)
        return Stream(self, settings["samplerate"], settings["channels"])


class Stream:
    """An input stream of a tone; every read empties the buffer of the device."""

    read_available = 0

    def __init__(self, portaudio: PortAudio, rate_hz: int, channels: int) -> None:
        self._portaudio, self._rate_hz, self._channels = portaudio, rate_hz, channels
        self._frame = self._reads = 0

    def __enter__(self) -> Stream:
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
        return np.repeat(samples[:, None], self._channels, axis=1), lost > 0


@pytest.fixture
def portaudio(monkeypatch):
    portaudio = PortAudio(
        device(0, "Built-in Microphone"),
        device(1, "Speakers", inputs=0),
        device(2, "USB Audio", 44_100, inputs=2),
    )
    monkeypatch.setitem(sys.modules, "sounddevice", portaudio)
    return portaudio


def record(microphone: Microphone, blocks: int) -> np.ndarray:
    return np.concatenate([*islice(microphone.blocks(), blocks)])


@pytest.mark.parametrize(
    ("given", "name"), [(None, "Built-in Microphone"), ("2", "USB Audio"), ("USB", "USB Audio")]
)
def test_device_is_found_by_number_or_name(portaudio, given, name):
    assert Microphone(given).name == name


def test_samples_are_unchanged_at_16_khz(portaudio):
    microphone = Microphone()
    samples = record(microphone, 20)
    assert len(samples) == 16_000
    assert np.abs(samples - tone_samples()[:16_000]).max() <= 1 / 32768
    assert portaudio.opened[0] | {"latency": 0} == {
        "device": 0, "channels": 1, "samplerate": 16_000, "dtype": "int16", "latency": 0,
    }  # fmt: skip
    assert (microphone.lost_s, portaudio.closed) == (0.0, 1)


@pytest.mark.parametrize("form", [(1, 44_100), (2, 44_100)])
def test_device_without_16_khz_is_resampled(portaudio, form):
    portaudio.formats = {form}
    samples = record(Microphone("2"), 21)[:16_000]
    assert (portaudio.opened[0]["channels"], portaudio.opened[0]["samplerate"]) == form
    assert np.abs(samples - tone_samples()[:16_000]).max() < 1e-4


def test_lost_audio_is_replaced_by_silence(portaudio):
    portaudio.lost = {5: 1_000, 9: 600}
    microphone = Microphone()
    samples = record(microphone, 22)
    assert microphone.lost_s == pytest.approx(0.1)
    expected = tone_samples()[: 20 * 800 + 1_600].copy()
    expected[4_000:5_000] = expected[4_000 + 1_000 + 4 * 800 :][:600] = 0
    assert np.abs(samples - expected).max() <= 1 / 32768


def test_disconnected_device_is_an_error(portaudio):
    portaudio.breaks = 3
    blocks = Microphone().blocks()
    assert sum(map(len, islice(blocks, 3))) == 2_400
    with pytest.raises(AudioError) as gone:
        next(blocks)
    assert str(gone.value) == "microphone Built-in Microphone: Unanticipated host error"
    assert portaudio.closed == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            "7",
            "microphone '7': Error querying device 7; 'harken listen --list-microphones' lists them",
        ),
        ("Speakers", "microphone 'Speakers': No input device matching 'Speakers'; 'harken listen"),
        ("i", "microphone 'i': Multiple input device matching 'i'; "),
    ],
)
def test_unknown_device_is_an_error(portaudio, given, reason):
    with pytest.raises(AudioError) as missing:
        Microphone(given)
    assert str(missing.value).startswith(reason)


def test_unsupported_format_is_an_error(portaudio):
    portaudio.formats = set()
    with pytest.raises(AudioError) as refused:
        Microphone()
    assert str(refused.value) == (
        "microphone Built-in Microphone: cannot be opened: Error opening: Invalid sample rate"
    )


def test_machine_without_microphone_is_an_error(portaudio):
    portaudio.devices = []
    for ask in (Microphone, microphone_table):
        with pytest.raises(AudioError, match="there is no microphone on this machine; allowed is a file"):
            ask()


def test_table_lists_input_devices(portaudio):
    assert microphone_table().splitlines() == [
        "   NUMBER  NAME                 RATE      CHANNELS",
        "*  0       Built-in Microphone  48000 Hz  1",
        "   2       USB Audio            44100 Hz  2",
    ]


def test_missing_sounddevice_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(BackendUnavailable, match=r"sounddevice is not installed, .*: pip install '\.\[mic\]'"):
        Microphone()


def test_missing_portaudio_is_reported(monkeypatch):
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "sounddevice":
                raise OSError("PortAudio library not found")

    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder])
    with pytest.raises(
        BackendUnavailable, match=r"not installed \(PortAudio library not found\): apt install lib"
    ):
        Microphone()
