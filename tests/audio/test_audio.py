"""Recordings of all kinds of files and sources, and the resampler of live streams."""

import io
import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import pytest

from audio_files import AUDIO_FORMATS, TONE_HZ, AudioFormat, Pipe, tone, wav_bytes
from harken.audio import audio_duration, load_audio, stream_audio, stream_channels
from harken.audio.io import Resampler
from harken.errors import AudioError
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE

LOSSY = ("mp3", "ogg", "m4a", "mp4", "mkv")
INDEX_BEHIND = ("m4a", "mp4 video")


def level_at(samples, at_s):
    """Return the amplitude of the tone in the 0.2 s around `at_s`."""
    around = samples[round((at_s - 0.1) * SAMPLE_RATE) : round((at_s + 0.1) * SAMPLE_RATE)]
    turns = np.exp(-2j * np.pi * TONE_HZ * np.arange(len(around)) / SAMPLE_RATE)
    return 2 * abs(np.mean(around * turns))


@pytest.mark.parametrize("name", AUDIO_FORMATS)
def test_every_container_and_codec_is_decoded_in_blocks_of_any_size_and_in_a_pipe(name, tmp_path):
    path = AUDIO_FORMATS[name].write(tmp_path / "tone")
    samples = load_audio(path)
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    padding_s = 0.1 if name.startswith(LOSSY) else 1e-3
    assert len(samples) / SAMPLE_RATE == pytest.approx(2.0, abs=padding_s)
    assert audio_duration(path) == pytest.approx(2.0, abs=0.1)
    # FFmpeg mixes equal channels of 5.1 (front, centre, sides) to the level of one, and leaves the LFE out.
    for at_s in (0.5, 1.0, 1.5):
        assert level_at(samples, at_s) == pytest.approx(0.25 * at_s, rel=0.05)

    blocks = [*stream_audio(path, block_samples=800)]
    assert np.array_equal(np.concatenate(blocks), samples)
    assert all(800 <= len(block) < 2000 for block in blocks[:-1])

    if name in INDEX_BEHIND:
        return
    piped = load_audio(Pipe(path.read_bytes()))
    if name == "mp3":  # FFmpeg seeks to find the end: in a pipe the encoder's padding remains
        assert 0 < len(piped) - len(samples) < 1200
        piped, samples = piped[: len(samples) - 100], samples[:-100]
    assert np.array_equal(piped, samples)


@pytest.mark.parametrize("name", ["wav s16", "flac"])
def test_16_khz_mono_16_bit_samples_are_exact(name, tmp_path):
    pcm = np.random.default_rng(1).integers(-32768, 32768, 50_000).astype(np.int16)
    path = AUDIO_FORMATS[name].write(tmp_path / "noise", samples=pcm / 32768)

    assert np.array_equal(load_audio(path), pcm.astype(np.float32) / np.float32(32768))


@pytest.mark.parametrize("n_channels", [2, 3, 6, 9, 17])
def test_every_channel_is_heard_in_the_mix(tmp_path, n_channels):
    for channel in {0, 3 % n_channels, n_channels - 1}:  # the fourth of six would be the bass of surround sound
        pcm = np.zeros((32_000, n_channels), np.int16)
        pcm[:, channel] = tone(2.0) * 32767
        samples = load_audio(io.BytesIO(wav_bytes(pcm)))
        assert level_at(samples, 1.5) == pytest.approx(0.375 / n_channels, rel=0.01)
    path = tmp_path / "many.wav"
    path.write_bytes(wav_bytes(np.zeros((100, 17), np.int16)))
    for many in (path, io.BytesIO(path.read_bytes())):
        with pytest.raises(AudioError, match="has 17 channels; allowed apart are 1 to 16"):
            stream_channels(many)


def test_array_without_dimensions_is_refused_in_one_message_apart_and_together():
    for open_blocks in (stream_audio, lambda samples: stream_channels(samples)[0]):
        with pytest.raises(AudioError, match=r"<array>: shape \(\) of float32"):
            next(open_blocks(np.array(0.5, np.float32)))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32])
def test_channels_that_cancel_each_other_are_heard(dtype):
    loud = tone(4.0) * (0.9 * 256 ** dtype().itemsize / 2)
    inverse = np.concatenate([loud[:32_000], -0.9 * loud[32_000:]])  # from the second second on
    pcm = np.stack([loud, inverse], axis=1) + (128 if dtype == np.uint8 else 0)
    for block_samples in (1_600, 480_000):
        blocks = stream_audio(io.BytesIO(wav_bytes(pcm.astype(dtype))), block_samples=block_samples)
        samples = np.concatenate([*blocks])
        for at_s in (1.0, 3.0, 3.5):
            assert level_at(samples, at_s) == pytest.approx(0.9 * 0.125 * at_s, rel=0.03)


def test_standard_input_is_decoded_and_threads_decode_independently():
    count = "from harken.audio import stream_audio; print(sum(map(len, stream_audio('-'))))"
    given = EXAMPLE.read_bytes()
    done = subprocess.run([sys.executable, "-c", count], input=given, capture_output=True, check=True)
    assert int(done.stdout) == 11 * SAMPLE_RATE
    assert done.stderr == b""
    with ThreadPoolExecutor(4) as pool:
        lengths = [len(samples) for samples in pool.map(load_audio, [EXAMPLE] * 4)]
    assert lengths == [11 * SAMPLE_RATE] * 4


def test_file_object_is_read_from_its_position_and_left_open(tmp_path):
    path = AUDIO_FORMATS["mp4 video"].write(tmp_path / "talk")  # its index is at the end
    file = io.BytesIO(b"not audio" + path.read_bytes())
    file.seek(9)
    assert np.array_equal(load_audio(file), load_audio(path))
    assert not file.closed


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.float64])
def test_arrays_are_scaled_and_split_into_blocks(dtype):
    pcm = (tone(2.0) * 32768).astype(np.int16)
    given = pcm if dtype == np.int16 else (pcm / 32768).astype(dtype)
    for array in (given, np.ma.masked_array(given)):
        loaded = load_audio(array)
        assert type(loaded) is np.ndarray
        assert np.array_equal(loaded, pcm.astype(np.float32) / 32768)
    assert [len(block) for block in stream_audio(given, block_samples=12_000)] == [12_000, 12_000, 8_000]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_beyond_full_scale_are_kept_but_for_wild_samples_and_another_scale_is_refused(dtype):
    samples = tone(2.0).astype(dtype)
    loudest = samples / np.abs(samples).max() * 8
    assert np.array_equal(load_audio(loudest), loudest.astype(np.float32))
    for value in (1e20, -1e20, 8.5, *([1e300] if dtype == np.float64 else [])):
        wild = loudest.copy()
        wild[[0, 5_000, 31_999]] = value
        expected = loudest.astype(np.float32)
        expected[[0, 5_000, 31_999]] = np.sign(value)
        assert np.array_equal(load_audio(wild), expected)
    large = np.concatenate([np.zeros(SAMPLE_RATE, dtype), tone(1.0).astype(dtype) * 32768])
    message = r"^<array>: at 1\.0\d s: samples as large as 163\d\d\.?\d*; allowed are floats"
    with pytest.raises(AudioError, match=message):
        load_audio(large)


def test_duration_of_arrays_pipes_and_file_objects():
    assert audio_duration(np.zeros(8_000, np.float32)) == 0.5
    assert audio_duration("-") is None
    file = io.BytesIO(EXAMPLE.read_bytes())
    assert audio_duration(file) is None
    assert file.tell() == 0


def test_change_of_rate_and_channels_in_the_middle_is_followed(tmp_path):
    first = AUDIO_FORMATS["mp3"].write(tmp_path / "first").read_bytes()
    second = AudioFormat(suffix=".mp3", codec="libmp3lame", format="fltp", rate=22_050)
    both = first + second.write(tmp_path / "second").read_bytes()

    samples = load_audio(io.BytesIO(both))
    assert len(samples) / SAMPLE_RATE == pytest.approx(4.0, abs=0.2)
    assert level_at(samples, 1.5) == pytest.approx(0.375, rel=0.05)
    assert level_at(samples, 3.5) == pytest.approx(0.375, rel=0.1)


@pytest.mark.parametrize("name", ["mp4 video", "mkv video"])
def test_late_sound_and_holes_are_silence_as_in_a_player(name, tmp_path):
    whole = AUDIO_FORMATS[name].write(tmp_path / "whole")
    path = tmp_path / f"late{whole.suffix}"
    with av.open(whole) as source, av.open(path, "w") as target:
        streams = {stream.index: target.add_stream_from_template(stream) for stream in source.streams}
        for packet in source.demux():
            if packet.dts is not None and packet.stream.type == "audio":
                late_s = 3 if packet.dts * packet.time_base < 1 else 5
                packet.pts += round(late_s / packet.time_base)
                packet.dts += round(late_s / packet.time_base)
            packet.stream = streams[packet.stream.index]
            if packet.dts is not None:
                target.mux(packet)
    samples, sound = load_audio(path), load_audio(whole)
    assert len(samples) / SAMPLE_RATE == pytest.approx(7, abs=0.1)
    assert not samples[: int(2.9 * SAMPLE_RATE)].any()
    assert not samples[int(4.1 * SAMPLE_RATE) : int(5.9 * SAMPLE_RATE)].any()
    for at_s, late_s in ((0.5, 3), (1.5, 5)):
        assert level_at(samples, at_s + late_s) == pytest.approx(level_at(sound, at_s), rel=0.1)


def test_damaged_packets_in_the_middle_are_skipped(tmp_path):
    data = bytearray(AUDIO_FORMATS["flac"].write(tmp_path / "tone", seconds=6.0).read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)

    samples = load_audio(io.BytesIO(data))
    assert len(samples) > 5.3 * SAMPLE_RATE
    assert level_at(samples, 0.5) == pytest.approx(0.5 / 12, rel=0.05)


class LongWav:
    """A wav in a pipe whose samples are generated while it is read."""

    def __init__(self, seconds):
        header = bytearray(wav_bytes(np.zeros(0, np.int16)))
        header[4:8], header[40:44] = (struct.pack("<I", n + 32_000 * seconds) for n in (36, 0))
        self.header, self.n_left = bytes(header), 32_000 * seconds

    def read(self, size):
        if self.header:
            header, self.header = self.header, b""
            return header
        count = min(size, self.n_left)
        self.n_left -= count
        return bytes(count)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to measure by")
def test_memory_is_constant_over_half_an_hour():
    sizes, samples = [], 0
    for block in stream_audio(LongWav(1800)):
        sizes.append(resident_bytes())
        samples += len(block)
    assert samples == 1800 * SAMPLE_RATE
    assert max(sizes[6:]) - sizes[6] < 8e6, "three minutes and half an hour must need the same"


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_closing_the_stream_closes_the_file(monkeypatch):
    opened, builtin_open = [], open

    def recording_open(*args, **kwargs):
        opened.append(builtin_open(*args, **kwargs))
        return opened[-1]

    monkeypatch.setattr("builtins.open", recording_open)
    blocks = stream_audio(EXAMPLE, block_samples=1_000)
    next(blocks)
    [file] = opened
    assert not file.closed
    blocks.close()
    assert file.closed


def test_interrupt_is_raised_and_the_file_not_read_again(tmp_path):
    """FFmpeg reads again after a failure, and a pipe that sends nothing more would block it again."""

    class Interrupted(Pipe):
        reads_after = 0
        interrupted = False

        def read(self, size=-1):
            self.reads_after += self.interrupted
            if data := super().read(size):
                return data
            self.interrupted = True
            raise KeyboardInterrupt

    class InterruptedSeek(io.BytesIO):
        name = "talk.ogg"

        def seek(self, offset, whence=0):
            raise KeyboardInterrupt

    for n_bytes in (0, 20, 8_000):
        pipe = Interrupted(EXAMPLE.read_bytes()[:n_bytes])
        with pytest.raises(KeyboardInterrupt):
            load_audio(pipe)
        assert pipe.reads_after == 0
    ogg = AUDIO_FORMATS["ogg opus"].write(tmp_path / "talk").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        load_audio(InterruptedSeek(ogg))


# --- resampling of live streams ----------------------------------------------------------------------------


def resampled(samples, rate_hz, block_samples, channels=1):
    resampler = Resampler(rate_hz, channels)
    starts = range(0, len(samples), block_samples)
    blocks = [resampler.feed(samples[start : start + block_samples]) for start in starts]
    return np.concatenate([*blocks, resampler.flush()])


def test_16_khz_samples_are_returned_bit_for_bit_clipped_to_full_scale_and_not_cancelled():
    every = (np.arange(-32768, 32768) / 32768).astype(np.float32)
    assert np.array_equal(resampled(every, 16_000, 1000), every)
    assert resampled(np.array([2, -2, 0.5], np.float32), 16_000, 3).tolist() == [32767 / 32768, -1, 0.5]
    inverse = np.outer(tone(2.0), [1, -1]).ravel().astype(np.float32)
    assert level_at(resampled(inverse, 16_000, 1600, channels=2), 1.5) == pytest.approx(0.375, rel=0.03)


@pytest.mark.parametrize("rate_hz", [8_000, 22_050, 44_100, 48_000, 96_000])
def test_blocks_of_any_size_equal_a_decoded_file(tmp_path, rate_hz):
    path = AudioFormat(suffix=".wav", codec="pcm_s16le", rate=rate_hz).write(tmp_path / "tone")
    pcm = (np.frombuffer(path.read_bytes()[-4 * rate_hz :], "<i2") / 32768).astype(np.float32)
    assert np.abs(pcm - tone(2, rate_hz)).max() < 1e-3
    expected = load_audio(path)
    for block_samples in (len(pcm), 371):
        assert np.array_equal(resampled(pcm, rate_hz, block_samples), expected)


def test_resampler_delays_less_than_a_hundredth_of_a_second():
    resampler = Resampler(48_000)
    block = tone(0.1, 48_000).astype(np.float32)
    assert 1600 - 160 < len(resampler.feed(block)) < 1600
    assert len(resampler.feed(block)) == 1600
    assert len(resampler.feed(block[:0])) == 0


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "aac"), ("wv", "wavpack")])
def test_eight_channels_of_a_codec_that_keeps_them_apart_are_read(tmp_path, suffix, codec):
    """PyAV takes what lies in memory behind eight planes for a ninth, and ends the process."""
    tones_hz = np.array([200, 350, 500, 60, 800, 950, 1100, 1250])  # the fourth is for low sounds
    samples = np.sin(2 * np.pi * np.arange(32_000)[:, None] * tones_hz / 16_000).astype(np.float32) / 4
    path = tmp_path / f"surround.{suffix}"
    with av.open(path, "w") as file:
        stream = file.add_stream(codec, rate=16_000, layout="7.1", format="fltp")
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="flt", layout="7.1")
        frame.sample_rate = 16_000
        resampler = av.AudioResampler(format="fltp", layout="7.1", rate=16_000, frame_size=1024)
        for part in (*resampler.resample(frame), *resampler.resample(None), None):
            file.mux(stream.encode(part))
    channels = [np.concatenate([*blocks]) for blocks in stream_channels(path)]
    loudest = [int(np.abs(np.fft.rfft(channel[8_000:24_000])).argmax()) for channel in channels]
    assert loudest == tones_hz.tolist()
