"""Tests of audio errors: one line with the file, the problem and, where useful, what is allowed."""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS, VIDEO_ONLY, AudioFormat, tone
from harken.audio import audio_duration, load_audio, stream_audio
from harken.errors import AudioError, AudioNotFound
from harken.types import SAMPLE_RATE

NOT_FINITE = "a sample is nan or infinite; allowed are finite samples"
MP4, MP4_FRONT = AUDIO_FORMATS["mp4 video"], AUDIO_FORMATS["mp4 video, index in front"]


def error_of(source) -> str:
    with pytest.raises(AudioError) as caught:
        load_audio(source)
    message = str(caught.value)
    assert "\n" not in message
    return message


def text(folder: Path) -> Path:
    path = folder / "talk.mp3"
    path.write_text("This is not a recording.\n" * 100)
    return path


def empty(folder: Path) -> Path:
    path = folder / "talk.mp3"
    path.touch()
    return path


def zero_length(folder: Path) -> Path:
    with wave.open(str(folder / "talk.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
    return folder / "talk.wav"


def video_without_audio(folder: Path) -> Path:
    return VIDEO_ONLY.write(folder / "talk")


def mp4_without_index(folder: Path) -> Path:
    path = MP4.write(folder / "talk")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    return path


def playlist(folder: Path) -> Path:
    AUDIO_FORMATS["wav s16"].write(folder / "other")
    path = folder / "talk.mp3"
    path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nother.wav\n#EXT-X-ENDLIST\n")
    return path


def undecodable(folder: Path) -> Path:
    path = MP4_FRONT.write(folder / "talk")
    index, packets = path.read_bytes().split(b"mdat")
    path.write_bytes(index + b"mdat" + b"\xff" * len(packets))
    return path


def too_low_rate(folder: Path) -> Path:
    return patched_wav(folder, offset=24, value=struct.pack("<I", 2))


def too_many_channels(folder: Path) -> Path:
    return patched_wav(folder, offset=22, value=struct.pack("<HIIH", 255, 16_000, 16_000 * 510, 510))


def patched_wav(folder: Path, *, offset: int, value: bytes) -> Path:
    path = AUDIO_FORMATS["wav s16"].write(folder / "talk")
    data = bytearray(path.read_bytes())
    data[offset : offset + len(value)] = value
    path.write_bytes(data)
    return path


BAD_FILES = {
    text: r"is not a recording that FFmpeg can read \(.+\); allowed is an audio or video file with sound",
    empty: r"is empty \(0 bytes\)",
    zero_length: r"holds no audio samples",
    video_without_audio: r"has no sound, only video; allowed is .+",
    mp4_without_index: r"an mp4 without its index \(moov\): the file is cut short or was never finished",
    playlist: r"is not a recording that FFmpeg can read .+",
    too_low_rate: r"at 0.00 s: sample rate 2 Hz; allowed is 1000 to 768000 Hz",
    undecodable: r"nothing in it can be decoded \(.+\)",
    too_many_channels: r"(at \d.\d\d s: cannot be made mono 16 kHz: .+|nothing in it can be decoded \(.+\))",
}


@pytest.mark.parametrize("make", BAD_FILES, ids=lambda make: make.__name__)
def test_unreadable_recording_is_explained(make, tmp_path):
    path = make(tmp_path)
    assert re.fullmatch(re.escape(f"{path}: ") + BAD_FILES[make], error_of(path))


def test_missing_file_raises_audio_not_found(tmp_path):
    with pytest.raises(AudioNotFound, match=r"nowhere\.wav: no such file$"):
        next(stream_audio(tmp_path / "nowhere.wav"))
    with pytest.raises(FileNotFoundError):
        audio_duration(tmp_path / "nowhere.wav")


def test_directory_is_explained(tmp_path):
    assert error_of(tmp_path) == f"{tmp_path}: is a directory; allowed is an audio or video file with sound"


def test_file_without_permission_is_explained(tmp_path, monkeypatch):
    path = AUDIO_FORMATS["wav s16"].write(tmp_path / "talk")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)  # root may read everything
    assert error_of(path) == f"{path}: cannot be read: Permission denied"


def test_odd_file_names_stay_on_one_line():
    assert error_of("two\nlines.mp3") == r"'two\nlines.mp3': no such file"
    assert error_of("nul\0.mp3") == r"'nul\x00.mp3': cannot be read: embedded null byte"


@pytest.mark.parametrize(
    "source", [None, 3, b"talk.mp3", io.StringIO("talk")], ids=lambda source: type(source).__name__
)
def test_value_that_is_no_audio_source_is_rejected(source):
    kind = type(source).__name__
    assert re.fullmatch(f"<{kind}>: allowed is a path, .+ binary mode, or an array", error_of(source))


class WithoutPosition(io.BytesIO):
    """A file that says that it is seekable, and then does not tell its position."""

    def tell(self):
        raise OSError(29, "Illegal seek")


def closed_file():
    file = io.BytesIO(b"RIFF")
    file.close()
    return file


@pytest.mark.parametrize(
    ("make", "reason"),
    [(closed_file, "I/O operation on closed file"), (WithoutPosition, "Illegal seek")],
    ids=["closed", "without a position"],
)
def test_file_object_that_cannot_be_used_is_explained(make, reason):
    assert re.fullmatch(rf"<\w+>: cannot be read: {reason}\.?", error_of(make()))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 800), np.float32), r"shape \(2, 800\) of float32; allowed is one channel at 16 kHz, .+"),
        (np.zeros(800, np.int64), r"shape \(800,\) of int64; allowed is .+"),
        (np.zeros(0, np.float32), "holds no audio samples"),
        (np.array([0.0] * 8_000 + [np.nan]), f"at 0.50 s: {NOT_FINITE}"),
        (np.array([0.0, np.inf]), f"at 0.00 s: {NOT_FINITE}"),
    ],
)
def test_invalid_array_is_explained(array, reason):
    assert re.fullmatch(f"<array>: {reason}", error_of(array))


@pytest.mark.parametrize("name", ["wav float", "wav double stereo"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_first_non_finite_sample_is_located(name, value, tmp_path):
    samples = tone(2.0)
    samples[round(1.25 * SAMPLE_RATE) :: 100] = value
    path = AUDIO_FORMATS[name].write(tmp_path / "talk", samples=samples)

    got, error = decode_until_error(path)
    assert error == f"{path}: at 1.25 s: {NOT_FINITE}"
    assert np.allclose(got, tone(2.0)[: len(got)], atol=2e-4)
    assert len(got) == pytest.approx(1.25 * SAMPLE_RATE, abs=1_100)


def test_read_error_in_the_middle_is_located():
    class Failing(io.BytesIO):
        name = "talk.wav"

        def read(self, size=-1):
            if self.tell() > 100_000:
                raise OSError(5, "Input/output error")
            return super().read(size)

    wav = io.BytesIO()
    with wave.open(wav, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((tone(10.0) * 32767).astype("<i2").tobytes())

    got, error = decode_until_error(Failing(wav.getvalue()))
    assert re.fullmatch(r"talk\.wav: at 4\.\d\d s: .+ \(Input/output error\)", error)
    assert len(got) > 4 * SAMPLE_RATE


def test_read_error_at_the_start_is_not_taken_for_an_empty_file():
    class Failing(io.BytesIO):
        name = "talk.wav"

        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    assert error_of(Failing()) == "talk.wav: cannot be read: Input/output error"


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has other limits of names, and links need a privilege"
)
def test_path_that_the_system_refuses_is_explained(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert re.fullmatch(r"y{300}: cannot be read: .*name too long", error_of("y" * 300), re.IGNORECASE)
    assert re.search(r"loop: cannot be read: .*(symbolic|links)", error_of(tmp_path / "loop"))


def test_mp4_with_index_at_the_end_is_rejected_in_a_pipe(tmp_path):
    data = MP4.write(tmp_path / "talk", seconds=20.0).read_bytes()
    assert error_of(Pipe(data)) == (
        "<Pipe>: an mp4 whose index (moov) is not in front cannot be read from a pipe; give the file itself"
    )
    assert len(load_audio(Pipe(MP4_FRONT.write(tmp_path / "front").read_bytes()))) > 1.9 * SAMPLE_RATE


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False


def test_empty_standard_input_is_explained():
    run = [sys.executable, "-c", "from harken.audio import load_audio; load_audio('-')"]
    done = subprocess.run(run, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "harken.errors.AudioError: <stdin>: is empty (0 bytes)"


def test_ffmpeg_prints_nothing_to_the_terminal(tmp_path):
    """Damaged packets print nothing, not even from FFmpeg's C code."""
    path = AudioFormat(suffix=".mp3", codec="libmp3lame", format="fltp").write(tmp_path / "talk")
    data = bytearray(path.read_bytes())
    data[2_000:6_000] = os.urandom(4_000)
    path.write_bytes(data)
    run = [sys.executable, "-c", f"from harken.audio import load_audio; load_audio({str(path)!r})"]
    done = subprocess.run(run, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def decode_until_error(source) -> tuple[np.ndarray, str]:
    """Return the samples that a stream yields before its error, and the error's message."""
    blocks = []
    try:
        for block in stream_audio(source, block_samples=SAMPLE_RATE):
            blocks.append(block)
    except AudioError as error:
        return np.concatenate(blocks), str(error)
    pytest.fail("the stream ended without an error")


def test_error_of_a_file_object_that_knows_what_is_wrong_is_kept():
    class Absent(io.BytesIO):
        name = "talk.mp3"

        def read(self, size=-1):
            raise AudioNotFound("bucket/talk.mp3: no such file")

    with pytest.raises(AudioNotFound, match=r"^bucket/talk.mp3: no such file$"):
        load_audio(Absent())
