"""The microphone, over a fake of PortAudio: choice of device and rate, and lost audio."""

from __future__ import annotations

import sys
from itertools import islice

import numpy as np
import pytest

from fakes.portaudio import PortAudio, device, tone_samples
from harken.cli.sources import Microphone, microphone_table
from harken.errors import AudioError, BackendUnavailable


@pytest.fixture
def portaudio(monkeypatch):
    speakers = device(1, "Speakers", inputs=0)
    portaudio = PortAudio(device(0, "Built-in Microphone"), speakers, device(2, "USB Audio", 44_100, inputs=2))
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
    (opened,) = portaudio.opened
    assert (opened["device"], opened["channels"], opened["samplerate"]) == (0, 1, 16_000)
    assert (microphone.lost_s, portaudio.closed) == (0.0, 1)


@pytest.mark.parametrize(("form", "second"), [((1, 44_100), 1), ((2, 44_100), 1), ((2, 44_100), -1)])
def test_device_without_16_khz_is_resampled(portaudio, form, second):
    portaudio.formats, portaudio.second = {form}, second
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
    with pytest.raises(AudioError, match=r"^microphone Built-in Microphone: Unanticipated host error$"):
        next(blocks)
    assert portaudio.closed == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("7", "'7': Error querying device 7; 'harken listen --list-microphones' lists them"),
        ("Speakers", "'Speakers': No input device matching 'Speakers'; 'harken listen"),
        ("i", "'i': Multiple input device matching 'i'; "),
    ],
)
def test_unknown_device_is_an_error(portaudio, given, reason):
    with pytest.raises(AudioError, match=f"^microphone {reason}"):
        Microphone(given)


def test_unsupported_format_is_an_error(portaudio):
    portaudio.formats = set()
    reason = "Built-in Microphone: cannot be opened: Error opening: Invalid sample rate"
    with pytest.raises(AudioError, match=f"^microphone {reason}$"):
        Microphone()


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


def test_missing_sounddevice_names_the_extra_and_missing_portaudio_the_package(monkeypatch):
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "sounddevice":
                raise OSError("PortAudio library not found")

    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(BackendUnavailable, match=r"sounddevice is not installed, .*: pip install '\.\[mic\]'"):
        Microphone()
    monkeypatch.delitem(sys.modules, "sounddevice")
    monkeypatch.setattr(sys, "meta_path", [Finder])
    reason = r"not installed \(PortAudio library not found\): apt install lib"
    with pytest.raises(BackendUnavailable, match=reason):
        Microphone()
