"""The thread that reads a source: its buffer, its end, and signals; the microphone, over a fake of PortAudio."""

import signal
import sys
import threading
from itertools import islice

import numpy as np
import pytest

from fakes.portaudio import PortAudio, device, tone_samples
from harken.cli.exits import Stop
from harken.cli.sources import AudioReader, Microphone, microphone_table
from harken.errors import AudioError, BackendUnavailable

BLOCK = np.ones(800, np.float32)


class EndlessSource:
    """A source that never ends; `reached` is set once it has made a number of blocks."""

    name, lost_s = "endless", 0.0

    def __init__(self, *, live, until=0):
        self.live, self.made, self.closed = live, 0, False
        self.reached = threading.Event()
        self._until = until

    def blocks(self):
        try:
            while True:
                if self.made == self._until:
                    self.reached.set()
                self.made += 1
                yield BLOCK * self.made
        finally:
            self.closed = True


def wait_for_threads():
    for thread in threading.enumerate():
        if thread.name == "harken audio reader":
            thread.join(5)
            assert not thread.is_alive()


@pytest.mark.parametrize(("live", "blocks"), [(False, 600), (True, 12_000)])
def test_reader_buffers_30_s_of_a_file_and_10_minutes_of_a_live_source(live, blocks):
    source = EndlessSource(live=live, until=blocks + 2)
    with AudioReader(source) as reader:
        assert [block[0] for block in islice(reader, 2)] == [1, 2]
        assert source.reached.wait(30)
        assert source.made <= blocks + 3
    wait_for_threads()
    assert source.closed


def test_live_audio_is_recorded_however_far_behind_the_caller_is_and_a_file_as_far_as_it_is_read():
    for live in (True, False):
        recorded = []
        source = EndlessSource(live=live, until=20)
        with AudioReader(source, lambda block, to=recorded: to.append(float(block[0]))) as reader:
            assert len([*islice(reader, 2)]) == 2
            assert source.reached.wait(5)
        wait_for_threads()
        assert recorded == ([*range(1, len(recorded) + 1)] if live else [1, 2])
        assert len(recorded) >= 20 or not live


def test_empty_blocks_are_skipped():
    class Sparse(EndlessSource):
        def blocks(self):
            yield from (BLOCK[:0], BLOCK, BLOCK[:0], 2 * BLOCK)

    with AudioReader(Sparse(live=True)) as reader:
        assert [block[0] for block in reader] == [1, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals to send")
class TestSignals:
    @pytest.mark.parametrize("live", [True, False])
    def test_signal_keeps_blocks_of_a_live_source_and_drops_the_rest_of_a_file(self, live):
        source, blocks_read, recorded = EndlessSource(live=live, until=10), [], []
        with AudioReader(source, lambda block: recorded.append(float(block[0]))) as reader:
            for block in reader:
                blocks_read.append(float(block[0]))
                if len(blocks_read) == 2:
                    assert source.reached.wait(5)
                    signal.raise_signal(signal.SIGINT)
                    wait_for_threads()  # the caller takes no block meanwhile
                    assert source.closed
        assert reader.stop.code == 130
        assert blocks_read == recorded == ([*range(1, len(blocks_read) + 1)] if live else [1, 2])
        assert 10 <= len(blocks_read) <= source.made or not live

    def test_signal_during_a_long_call_ends_the_audio(self):
        source = EndlessSource(live=True)
        with AudioReader(source) as reader:
            assert reader._on_signal_during_call(signal.SIGINT)  # as the thread that watches does
            wait_for_threads()
            assert source.closed
            signal.raise_signal(signal.SIGINT)  # the main thread handles the same signal after the call
            assert reader.stop.code == 130
            assert not reader._on_signal_during_call(signal.SIGINT)
            with pytest.raises(Stop):
                signal.raise_signal(signal.SIGINT)


@pytest.fixture
def portaudio(monkeypatch):
    speakers = device(1, "Speakers", inputs=0)
    portaudio = PortAudio(device(0, "Built-in Microphone"), speakers, device(2, "USB Audio", 44_100, inputs=2))
    monkeypatch.setitem(sys.modules, "sounddevice", portaudio)
    return portaudio


def record(microphone, blocks):
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
    ("given", "change", "reason"),
    [
        ("7", {}, "microphone '7': Error querying device 7; 'harken listen --list-microphones' lists them"),
        ("Speakers", {}, "microphone 'Speakers': No input device matching 'Speakers'; 'harken listen"),
        ("i", {}, "microphone 'i': Multiple input device matching 'i'; "),
        (
            None,
            {"formats": set()},
            "microphone Built-in Microphone: cannot be opened: Error opening: Invalid sample rate$",
        ),
        (None, {"devices": []}, "there is no microphone on this machine; allowed is a file"),
    ],
)
def test_microphone_that_cannot_be_used_is_an_error(portaudio, given, change, reason):
    vars(portaudio).update(change)
    with pytest.raises(AudioError, match=f"^{reason}"):
        Microphone(given)
    if not portaudio.devices:
        with pytest.raises(AudioError, match=f"^{reason}"):
            microphone_table()


def test_table_lists_input_devices(portaudio):
    assert microphone_table().splitlines() == [
        "   NUMBER  NAME                 RATE      CHANNELS",
        "*  0       Built-in Microphone  48000 Hz  1",
        "   2       USB Audio            44100 Hz  2",
    ]


def test_missing_portaudio_names_the_package(monkeypatch):
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "sounddevice":
                raise OSError("PortAudio library not found")

    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder])
    reason = r"not installed \(PortAudio library not found\): apt install lib"
    with pytest.raises(BackendUnavailable, match=reason):
        Microphone()
