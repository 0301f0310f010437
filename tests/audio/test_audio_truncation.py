"""Recordings that were cut short are reported after their samples, and no whole recording is taken for one."""

import io
import re
import struct
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
import pytest

from audio_files import AUDIO_FORMATS, WITH_SIZES, AudioFormat, Pipe, tone
from harken.audio import stream_audio
from harken.errors import AudioError
from harken.types import SAMPLE_RATE

SECONDS = 8.0
TAG = b"TAG" + bytes(125)
S16 = AudioFormat(suffix=".wav", codec="pcm_s16le")
WITH_LENGTH = {
    "wav s16": S16,
    "wav s24 stereo": AUDIO_FORMATS["wav s24 stereo"],
    "wav mu-law 8 kHz": AUDIO_FORMATS["wav mu-law 8 kHz"],
    "wav adpcm": AudioFormat(suffix=".wav", codec="adpcm_ima_wav", format="s16p"),
    **WITH_SIZES,
    "mp3": AUDIO_FORMATS["mp3"],
    "mp3 8 kHz": AudioFormat(suffix=".mp3", codec="libmp3lame", format="fltp", rate=8_000),
    "ogg opus": AUDIO_FORMATS["ogg opus"],
    "ogg flac": AudioFormat(suffix=".ogg", codec="flac"),
    "webm": AudioFormat(suffix=".webm", codec="libopus", format="flt", rate=48_000),
    "mkv video": AUDIO_FORMATS["mkv video"],
    "flac": AUDIO_FORMATS["flac"],
    "tta": AudioFormat(suffix=".tta", codec="tta"),
    "wavpack": AudioFormat(suffix=".wv", codec="wavpack", format="s16p"),
    "m4a, index in front": AudioFormat(
        suffix=".m4a", codec="aac", format="fltp", rate=44_100, layout="stereo", faststart=True
    ),
}
PIPED = ("wav s16", "mp3", "ogg opus")
WITHOUT_LENGTH = {
    "mp3 without counts": AudioFormat(
        suffix=".mp3", codec="libmp3lame", format="fltp", muxer_options=(("write_xing", "0"),)
    ),
    "webm, live": AudioFormat(
        suffix=".webm", codec="libopus", format="flt", rate=48_000, muxer_options=(("live", "1"),)
    ),
    "mpeg-ts": AudioFormat(suffix=".ts", codec="mp2"),
}


@cache
def recording(format):
    with TemporaryDirectory() as folder:
        return format.write(Path(folder) / "talk", seconds=SECONDS).read_bytes()


def decoded(data, *, pipe=False):
    """Return the samples of a recording, and the message of the error that ended them."""
    blocks = [np.zeros(0, np.float32)]
    try:
        blocks.extend(stream_audio((Pipe if pipe else io.BytesIO)(data)))
    except AudioError as error:
        return np.concatenate(blocks), str(error)
    return np.concatenate(blocks), None


def assert_whole(data, seconds, name=""):
    """Assert that a recording of some seconds, or of two such, is not taken for a cut one."""
    for pipe in (False, True):
        samples, error = decoded(data, pipe=pipe)
        assert error is None, name
        assert seconds - 0.1 <= len(samples) / SAMPLE_RATE <= 2 * seconds + 0.2, name


@pytest.mark.parametrize("name", WITH_LENGTH)
def test_cut_recording_gives_its_samples_and_then_an_error(name):
    data = recording(WITH_LENGTH[name])
    for pipe in (False, True) if name in PIPED else (False,):
        whole, error = decoded(data, pipe=pipe)
        assert error is None
        for share in (0.1, 0.5, 0.8):
            samples, error = decoded(data[: round(share * len(data))], pipe=pipe)
            assert error, share
            assert "\n" not in error
            if share >= 0.5:
                assert "cut short" in error
                assert len(samples) > (share - 0.35) * len(whole)
                assert np.array_equal(samples[:-2_000], whole[: max(0, len(samples) - 2_000)])


def chunk(name, body, *, size=None):
    given = len(body) if size is None else size
    return name + struct.pack("<I", given) + body + bytes(len(body) % 2)


def wav(*sizes, before=b"", after=b"", extra=b""):
    """Return two seconds, whose header may have another size of the data, or of it and of the file."""
    data_size, riff_size, *_ = (*sizes, None, None)
    pcm = (tone(2.0) * 32767).astype("<i2").tobytes() + extra
    format = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16))
    body = b"WAVE" + format + before + chunk(b"data", pcm, size=data_size) + after
    return chunk(b"RIFF", body, size=riff_size)


WHOLE_WAVS = {
    "list behind": wav(after=chunk(b"LIST", b"INFO" + bytes(2_000))),
    "odd list in front": wav(before=chunk(b"LIST", b"INFO" + bytes(2_001))),
    "long junk in front": wav(before=chunk(b"JUNK", bytes(200_000))),
    "chunk without a name in front": wav(before=chunk(b"\xff" * 4, bytes(8))),
    "odd data": wav(extra=b"\0"),
    "id3 behind": wav() + b"TAG" + bytes(125),
    "no sizes": wav(0, 0),
    "no data size": wav(0),
    "ffmpeg to a pipe": wav(0xFFFFFFFF, 0xFFFFFFFF),
    "sox to a pipe": wav(0x7FFFF000, 0x7FFFF024),
    "arecord to a pipe": wav(0x80000000, 0x80000024),
    "32 bits less the header": wav(0xFFFFFFFF - 36, 0xFFFFFFFF),
    "2 GB": wav(2000 * 10**6, 2000 * 10**6 + 36),
    "1 GB": wav(10**9, 10**9 + 36),
    "1.5 GB": wav(1500 * 10**6, 0),
    "a power of two": wav(1 << 30, (1 << 30) + 36),
    "30 bits": wav(0x3FFFFFFF, 0x3FFFFFFF),
    "30 bits more the header": wav(0x3FFFFFFF + 36, 0x3FFFFFFF + 44),
    "data size counts the header": wav(64_044, 64_044),
    "data size contradicts that of the file": wav(640_000, 64_036),
    "file size contradicts that of the data": wav(64_000, 640_000),
}


BIG_ENDIAN = struct.pack(
    ">4sI8sIHHIIHH", b"RIFX", 64_036, b"WAVEfmt ", 16, 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16
)
WHOLE_WAVS["big-endian"] = BIG_ENDIAN + b"data" + struct.pack(">I", 64_000) + wav()[44:]


def id3(n_bytes):
    return b"ID3\x04\0\0" + bytes(n_bytes >> shift & 0x7F for shift in (21, 14, 7, 0)) + bytes(n_bytes)


def without_id3(data):
    assert data[:3] == b"ID3"
    return data[10 + sum(byte << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True)) :]


def with_counts(data, *, frames=1, n_bytes=1):
    """Multiply the counts in the Xing or Info frame."""
    tag = max(data.find(b"Xing"), data.find(b"Info"))
    given_frames, given_bytes = struct.unpack_from(">II", data, tag + 8)
    counts = struct.pack(">II", int(given_frames * frames), int(given_bytes * n_bytes))
    return data[: tag + 8] + counts + data[tag + 16 :]


def with_vbri(mp3):
    """Put the counts into a VBRI frame."""
    tag = max(mp3.find(b"Xing"), mp3.find(b"Info"))
    n_frames, n_bytes = struct.unpack_from(">II", mp3, tag + 8)
    vbri = bytearray(mp3)
    vbri[tag : tag + 16] = bytes(16)
    vbri[36:54] = b"VBRI" + struct.pack(">HHHII", 1, 0, 0, n_bytes, n_frames)
    return bytes(vbri)


def whole_recordings():
    mp3, plain = recording(AUDIO_FORMATS["mp3"]), recording(WITHOUT_LENGTH["mp3 without counts"])
    bare, ogg = without_id3(mp3), recording(AUDIO_FORMATS["ogg opus"])
    return {
        "mp3 without a tag": bare,
        "mp3, picture in front": id3(300_000) + bare,
        "mp3, two tags in front": id3(100) + id3(5_000) + bare,
        "mp3, tag behind": bare + TAG,
        "mp3, two joined": bare + bare,
        "mp3, plain one behind": bare + without_id3(plain),
        "mp3, only the bytes are too many": with_counts(bare, n_bytes=2),
        "mp3, only the frames are too many": with_counts(bare, frames=2),
        "mp3, no counts": with_counts(bare, frames=0, n_bytes=0),
        "ogg, two joined": ogg + ogg,
        "ogg, tag behind": ogg + TAG,
        "ogg without its last page": ogg[: ogg.rindex(b"OggS")],
        **{f"{name}, tag behind": recording(WITH_LENGTH[name]) + TAG for name in ("flac", "tta", "wavpack")},
        **{f"wav, {name}": data for name, data in WHOLE_WAVS.items()},
        **{name: recording(format) for name, format in WITHOUT_LENGTH.items()},
    }


def test_whole_recording_is_not_taken_for_a_cut_one():
    for name, data in whole_recordings().items():
        assert_whole(data, 2.0 if name.startswith("wav,") else SECONDS, name)


@pytest.mark.parametrize("name", WITHOUT_LENGTH)
def test_cut_of_a_recording_without_a_length_cannot_be_seen(name):
    data = recording(WITHOUT_LENGTH[name])
    samples, error = decoded(data[: len(data) * 6 // 10])
    assert error is None
    assert 3 * SAMPLE_RATE < len(samples) < 6.5 * SAMPLE_RATE


def test_message_says_how_much_is_there():
    bare = without_id3(recording(AUDIO_FORMATS["mp3"]))
    pictured, vbri = id3(20_000) + bare, with_vbri(bare)
    assert decoded(vbri)[1] is None
    flac = recording(WITH_LENGTH["flac"])
    for data, reason in (
        (recording(S16)[:128_039], r"\(128039 of 256078 bytes\)"),
        (wav(before=chunk(b"LIST", b"INFO" + bytes(2_001)))[:50_000], r"\(50000 of 66058 bytes\)"),
        (flac[: len(flac) // 2], "or damaged"),
        (pictured[: len(pictured) // 2], r"\(\d+ of \d+ bytes\)"),
        (vbri[: len(vbri) // 2], r"\(\d+ of \d+ bytes\)"),
        *(
            (wav(size, size + 36), rf"\(64044 of {size + 44} bytes\)")
            for size in (999 * 10**6, 1_100_000_044, (1 << 30) + 70_000, 1_900_000_002)
        ),
    ):
        _, error = decoded(data)
        assert error is not None, reason
        found = re.fullmatch(
            rf"<BytesIO>: only (\d+\.\d\d) s (of the 8\.00 s in its header )?could be decoded; "
            rf"the file is cut short {reason}",
            error,
        )
        assert found, error


@pytest.mark.parametrize("suffix", [".mkv", ".avi", ".mp4"])
def test_video_longer_than_its_sound_is_not_taken_for_a_cut_one(suffix, tmp_path):
    path = tmp_path / f"talk{suffix}"
    codec = "aac" if suffix != ".avi" else "libmp3lame"
    format = AudioFormat(suffix=suffix, codec=codec, format="fltp", rate=44_100)
    with av.open(path, "w", options={"movflags": "faststart"} if suffix == ".mp4" else {}) as container:
        video, audio = format._add_video(container), format._add_audio(container)
        format._write_video(container, video, 10.0)
        format._write_audio(container, audio, tone(4.0, 44_100))
    assert_whole(path.read_bytes(), 4.0)


class Written:
    """A file whose writer cannot go back to its header."""

    data = b""

    def write(self, data):
        self.data += bytes(data)
        return len(data)


@pytest.mark.parametrize(
    ("container", "codec", "sample_format"),
    [
        *(("wav", "pcm_s16le", "s16"), ("au", "pcm_s16be", "s16"), ("caf", "pcm_s16le", "s16")),
        *(("webm", "libopus", "flt"), ("matroska", "aac", "fltp"), ("ogg", "libopus", "flt")),
        *(("mp3", "libmp3lame", "fltp"), ("flac", "flac", "s16")),
    ],
)
def test_recording_written_to_a_pipe_is_not_taken_for_a_cut_one(container, codec, sample_format):
    format = AudioFormat(suffix="", codec=codec, format=sample_format, rate=48_000)
    file = Written()
    with av.open(file, "w", format=container) as opened:
        format._write_audio(opened, format._add_audio(opened), tone(5.0, 48_000))
    assert_whole(file.data, 5.0)
